"""States Alignment: a dynamic programme over all alignments of targets to states (paper, section
4.3). It computes the paper's f_{M, L}, the sum over all paths A of P(Y, A | X'), of which the loss
is the negative logarithm.

A path visits T states u_0 < u_1 < ... < u_{T-1} of a DAG of N states, starts at state 0, ends at
state N-1, and emits target i at state u_i. With emission P and links E, which here are natural
logarithms of the paper's P and E,

    log f = log sum over paths of exp( P[0, u_0] + sum_i E[u_{i-1}, u_i] + P[i, u_i] ).

All functions take

    emission        [B, T, N]   target i at state u
    links           [B, N, N]   from state u to state v, used for u < v only; -inf for none
    target_lengths  [B]         integer, targets of each sequence
    state_lengths   [B]         integer, states of each sequence

and raise ValueError if their shapes do not agree or lengths are not integers. A sequence without
any path (more targets than states, missing links, emissions of -inf, lengths beyond the tensors)
has log f = -inf and a zero gradient. The recursion is that of DA-Transformer (Huang et al., 2022);
`exlm.ops.alignment_torch` is the easiest of its three back ends to read."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from exlm.ops import alignment_torch
from exlm.ops.alignment_torch import Inputs, Result
from exlm.ops.fused import triton_works

logger = logging.getLogger(__name__)
# Offsets within a sequence then fit int32, and the tiles of its links fit a grid.
MOST_STATES_OF_TRITON = 23_000


@cache
def compiled_library() -> ctypes.CDLL | None:
    """The library that is built with the package where a compiler is found; else None, with one
    warning in the log."""
    for path in Path(__file__).parent.glob("_alignment*.so"):
        try:
            loaded = ctypes.CDLL(str(path))
            loaded.exlm_alignment.argtypes = [
                *[ctypes.c_void_p] * 7,  # tensors; None for a posterior that is not wanted
                *[ctypes.c_long] * 3,  # batch, targets, states
                ctypes.c_int,  # threads
            ]
            loaded.exlm_alignment.restype = ctypes.c_int
            return loaded
        except (OSError, AttributeError) as error:
            logger.debug("%s cannot be loaded: %s", path, error)
    logger.warning("the compiled alignment is not installed; PyTorch takes its place (slower)")
    return None


def _run_c(inputs: Inputs, gradients: bool = True) -> Result:
    """The back end for float32 on a CPU: `_alignment.c` through ctypes."""
    library = compiled_library()
    assert library is not None
    inputs = Inputs(*(tensor.contiguous() for tensor in inputs))
    batch, targets, states = inputs.emission.shape
    value = torch.empty(batch, dtype=torch.float64)
    state_posterior = torch.zeros_like(inputs.emission) if gradients else None
    link_use = torch.zeros_like(inputs.links) if gradients else None
    failed = library.exlm_alignment(
        *(tensor.data_ptr() for tensor in inputs),
        value.data_ptr(),
        None if state_posterior is None else state_posterior.data_ptr(),
        None if link_use is None else link_use.data_ptr(),
        batch,
        targets,
        states,
        min(torch.get_num_threads(), max(batch, 1)),
    )
    if failed:
        raise MemoryError(f"no memory for the alignment of {targets} targets with {states} states")
    return value.to(inputs.emission.dtype), state_posterior, link_use


def _run_triton(inputs: Inputs, gradients: bool = True) -> Result:
    """The back end for float32 on a GPU. It is imported here since Triton may be missing."""
    from exlm.ops import alignment_triton

    return alignment_triton.forward_backward(inputs, gradients)


# The second argument of a back end says whether its result has the posteriors.
BACKENDS: dict[str, Callable[[Inputs, bool], Result]] = {
    "torch": alignment_torch.forward_backward,
    "c": _run_c,
    "triton": _run_triton,
}


def usable_backend(name: str, emission: Tensor, links: Tensor) -> str:
    """The back end called `name`, where `auto` means Triton on a GPU and C elsewhere; `torch` where
    that one is not installed or cannot take these tensors."""
    if name == "auto":
        name = "triton" if emission.is_cuda else "c"
    is_float32 = emission.dtype == links.dtype == torch.float32
    devices = {emission.device.type, links.device.type}
    is_usable = True
    if name == "c":
        is_usable = is_float32 and devices == {"cpu"} and compiled_library() is not None
    elif name == "triton":
        fits = emission.numel() > 0 and emission.shape[2] <= MOST_STATES_OF_TRITON
        is_usable = is_float32 and devices == {"cuda"} and fits and triton_works()
    return name if is_usable else "torch"


def _run(backend: str, inputs: Inputs, gradients: bool) -> Result:
    """The result of the back end, or of the one in PyTorch where it cannot be used."""
    name = usable_backend(backend, inputs.emission, inputs.links)
    return BACKENDS[name](inputs, gradients)


class _LogLikelihood(torch.autograd.Function):
    """log f with its gradient, which is the posterior (paper, appendix, "Gradient Calculations").
    One forward and one reverse sweep compute both, without autograd over the targets."""

    @staticmethod
    def forward(ctx: Any, backend: str, *tensors: Tensor) -> Tensor:
        inputs = Inputs(*(tensor.detach() for tensor in tensors))
        value, state_posterior, link_use = _run(backend, inputs, any(ctx.needs_input_grad))
        ctx.save_for_backward(state_posterior, link_use)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # A product with a zero posterior must be zero even where the incoming gradient is infinite.
        d_emission, d_links = (
            torch.where(posterior == 0, 0.0, posterior * grad[:, None, None])
            for posterior in ctx.saved_tensors
        )
        return None, d_emission, d_links, None, None


def log_likelihood(
    emission: Tensor,
    links: Tensor,
    target_lengths: Tensor,
    state_lengths: Tensor,
    backend: str = "auto",
) -> Tensor:
    """log f [B], at least float32: the log-probability of the targets, summed over all alignments
    (paper, section 4.3). Differentiable by emission and links."""
    inputs = _check_inputs(emission, links, target_lengths, state_lengths)
    return _LogLikelihood.apply(backend, *inputs)


def posterior(
    emission: Tensor,
    links: Tensor,
    target_lengths: Tensor,
    state_lengths: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """How probably target i is emitted by state u, given all targets, [B, T, N]; and how often a
    path is expected to use a link, [B, N, N]. The first sums to 1 over the states of every real
    target, the second to T - 1 over all links. Without a path both are 0."""
    inputs = _check_inputs(emission, links, target_lengths, state_lengths)
    _, state_posterior, link_use = _run(backend, inputs, gradients=True)
    assert state_posterior is not None and link_use is not None
    return state_posterior, link_use


def best_path(
    emission: Tensor, links: Tensor, target_lengths: Tensor, state_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The best alignment (Viterbi): states of targets [B, T], -1 for padding or without a path;
    log-probability [B]."""
    inputs = _check_inputs(emission, links, target_lengths, state_lengths)
    sweep = alignment_torch.forward(inputs, best=True)
    path = alignment_torch.backtrack(sweep, lambda score: score.argmax(1))
    return path, sweep.value.to(sweep.alpha.dtype)


def sample(
    emission: Tensor,
    links: Tensor,
    target_lengths: Tensor,
    state_lengths: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One alignment [B, T] sampled from the posterior over paths (-1 on padding and if there is no
    path)."""

    def sample_state(score: Tensor) -> Tensor:
        return torch.multinomial(score.softmax(1), 1, generator=generator)[:, 0]

    inputs = _check_inputs(emission, links, target_lengths, state_lengths)
    sweep = alignment_torch.forward(inputs)
    return alignment_torch.backtrack(sweep, sample_state)


def _check_inputs(
    emission: Tensor, links: Tensor, target_lengths: Tensor, state_lengths: Tensor
) -> Inputs:
    """The inputs after a check of all shapes; the lengths become int64 on the device of
    `emission`."""
    shape = emission.shape
    if len(shape) != 3 or links.shape != (shape[0], shape[2], shape[2]):
        raise ValueError(
            "emission must be [batch, targets, states], links [batch, states, states]; got "
            f"{list(shape)} and {list(links.shape)}"
        )
    for name, lengths in (("target_lengths", target_lengths), ("state_lengths", state_lengths)):
        if lengths.shape != shape[:1] or lengths.is_floating_point():
            raise ValueError(
                f"{name} must be {len(emission)} integers, got {lengths.dtype} "
                f"{list(lengths.shape)}"
            )
    target_lengths = target_lengths.to(emission.device, torch.int64)
    state_lengths = state_lengths.to(emission.device, torch.int64)
    return Inputs(emission, links, target_lengths, state_lengths)
