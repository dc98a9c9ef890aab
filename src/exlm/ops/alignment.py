"""States Alignment: a dynamic programme over all alignments of targets to states (paper, section 4.3).

A path visits T states u_0 < u_1 < ... < u_{T-1} of a DAG of N states, starts at state 0, ends at state N-1, and
emits target i at state u_i. With emission P and transition E (log-probabilities, natural logarithm)

    log f = log sum over paths of exp( P[0, u_0] + sum_i E[u_{i-1}, u_i] + P[i, u_i] ).

All functions take

    emission     [B, T, N]   target i at state u
    transition   [B, N, N]   from state u to state v, used for u < v only; -inf where there is no edge
    num_targets  [B]         integer, targets of each sequence
    num_states   [B]         integer, states of each sequence

and treat a sequence without any path (more targets than states, missing edges, emissions of -inf, lengths beyond the
tensors) as -inf with a zero gradient. The recursion is that of DA-Transformer (Huang et al., 2022).
"""

import logging
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import alignment_c, alignment_reference, alignment_torch

logger = logging.getLogger(__name__)


@cache
def _gpu() -> ModuleType | None:
    """The back end in Triton, or None where there is no Triton (said once in the log)."""
    try:
        from . import alignment_triton
    except ImportError as error:
        logger.warning("Triton is not installed (%s); the alignment runs in PyTorch (slower on a GPU)", error)
        return None
    return alignment_triton


def _triton(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return (_gpu() or alignment_torch).forward_backward(*args, **options)


# Each back end: (emission, transition, num_targets, num_states) -> (log_likelihood [B], emission posterior
# [B, T, N], transition posterior [B, N, N]); the posteriors are None unless asked for by `gradients=True`.
BACKENDS: dict[str, Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]] = {
    "reference": alignment_reference.forward_backward,
    "torch": alignment_torch.forward_backward,
    "c": alignment_c.forward_backward,
    "triton": _triton,
}


def _backend(
    name: str, emission: Tensor, transition: Tensor
) -> Callable[..., tuple[Tensor, Tensor | None, Tensor | None]]:
    """The back end called `name`; `auto` takes the compiled ones where they can be used, C on a CPU, Triton on CUDA."""
    if name == "auto":
        name = "torch"
        if alignment_c.usable(emission, transition):
            name = "c"
        elif emission.is_cuda and (gpu := _gpu()) and gpu.usable(emission, transition):
            name = "triton"
    return BACKENDS[name]


class _LogLikelihood(torch.autograd.Function):
    """The gradient of log f is the posterior, so one forward and one reverse sweep replace a tape over targets."""

    @staticmethod
    def forward(
        ctx: Any, emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, backend: str
    ) -> Tensor:
        needed = any(ctx.needs_input_grad[:2])
        value, *posteriors = _backend(backend, emission, transition)(
            emission.detach(), transition.detach(), num_targets, num_states, gradients=needed
        )
        ctx.save_for_backward(*posteriors)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        emission, transition = ctx.saved_tensors
        scale = grad[:, None, None]
        # A product with a zero posterior must be zero even where the incoming gradient is infinite.
        return (
            torch.where(emission == 0, 0.0, emission * scale),
            torch.where(transition == 0, 0.0, transition * scale),
            None,
            None,
            None,
        )


def log_likelihood(
    emission: Tensor,
    transition: Tensor,
    num_targets: Tensor,
    num_states: Tensor,
    backend: str = "auto",
) -> Tensor:
    """log f [B], at least float32: the log-probability of the targets summed over all alignments. Differentiable.

    Raises:
        ValueError: if shapes do not agree or lengths are not integers.
    """
    num_targets, num_states = _lengths(emission, transition, num_targets, num_states)
    return _LogLikelihood.apply(emission, transition, num_targets, num_states, backend)


def posterior(
    emission: Tensor,
    transition: Tensor,
    num_targets: Tensor,
    num_states: Tensor,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Posterior [B, T, N] that target i is emitted by state u, and expected use [B, N, N] of every edge.

    Rows of the first sum to 1 for every real target, the second sums to T - 1; both are 0 if there is no path.
    """
    num_targets, num_states = _lengths(emission, transition, num_targets, num_states)
    _, at_state, on_edge = _backend(backend, emission, transition)(
        emission, transition, num_targets, num_states, gradients=True
    )
    assert at_state is not None and on_edge is not None
    return at_state, on_edge


def best_path(emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable alignment (Viterbi).

    Returns:
        path [B, T], the state of each target (-1 on padding and if there is no path), and its log-probability [B].
    """
    num_targets, num_states = _lengths(emission, transition, num_targets, num_states)
    return alignment_torch.best_path(emission, transition, num_targets, num_states)


def sample(
    emission: Tensor,
    transition: Tensor,
    num_targets: Tensor,
    num_states: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One alignment [B, T] drawn from the posterior over paths (-1 on padding and if there is no path)."""
    num_targets, num_states = _lengths(emission, transition, num_targets, num_states)
    return alignment_torch.sample(emission, transition, num_targets, num_states, generator)


def _lengths(emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor) -> tuple[Tensor, Tensor]:
    """Both lengths as int64 on the device of `emission`, once all shapes are seen to agree."""
    if emission.dim() != 3 or transition.shape != (emission.shape[0], emission.shape[2], emission.shape[2]):
        raise ValueError(
            f"emission must be [batch, targets, states] and transition [batch, states, states], "
            f"got {list(emission.shape)} and {list(transition.shape)}"
        )
    for name, lengths in (("num_targets", num_targets), ("num_states", num_states)):
        if lengths.shape != emission.shape[:1] or lengths.is_floating_point():
            raise ValueError(f"{name} must be {len(emission)} integers, got {lengths.dtype} {list(lengths.shape)}")
    return num_targets.to(emission.device, torch.int64), num_states.to(emission.device, torch.int64)
