"""The alignment as the paper writes it, one sequence at a time, in float64, and differentiated by
autograd.

It is slow but easy to check; every back end is tested against it. To import it adds it to
`BACKENDS` as `reference`, and without a GPU the kernels in Triton's interpreter as `interpreted`.
"""

import os
from importlib.util import find_spec

import torch

from exlm.ops import alignment, alignment_torch
from exlm.ops.alignment_torch import LOG_ZERO, NO_PATH_BELOW, Inputs, Result, feasible
from exlm.ops.precision import at_least_float32


def forward_backward(inputs: Inputs, gradients: bool = True) -> Result:
    """A back end of `BACKENDS`."""
    emission, transition, target_lengths, state_lengths = inputs
    used = feasible(inputs)
    with torch.enable_grad():
        leaves = [x.detach().double().requires_grad_() for x in (emission, transition)]
        p, e = (
            x.where(mask, LOG_ZERO).clamp(min=LOG_ZERO)
            for x, mask in zip(leaves, used, strict=True)
        )
        value = p[:, :0].sum((1, 2)) + LOG_ZERO  # differentiable, also for an empty batch
        for b, (t, n) in enumerate(
            zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)
        ):
            if 1 <= t <= p.shape[1] and t <= n <= p.shape[2]:
                f = p[b, 0]
                for i in range(1, t):  # f[i, u] = sum over v < u of f[i - 1, v] E[v, u] P[i, u]
                    f = (f[:, None] + e[b]).logsumexp(0) + p[b, i]
                value[b] = f[n - 1]
        value = torch.where(value <= NO_PATH_BELOW, -torch.inf, value)
        result = value.detach().to(at_least_float32(emission.dtype))
        if not gradients:
            return result, None, None
        at_state, on_edge = torch.autograd.grad(
            value.sum(), leaves, allow_unused=True, materialize_grads=True
        )
    return result, at_state.to(emission.dtype), on_edge.to(transition.dtype)


def interpreted(inputs: Inputs, gradients: bool = True) -> Result:
    """The kernels for a GPU; PyTorch where `usable_backend` takes it on a GPU, too."""
    from exlm.ops import alignment_triton

    is_float32 = inputs.emission.dtype == inputs.links.dtype == torch.float32
    module = alignment_triton if is_float32 and inputs.emission.numel() else alignment_torch
    return module.forward_backward(inputs, gradients)


alignment.BACKENDS["reference"] = forward_backward
if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
    alignment.BACKENDS["interpreted"] = interpreted
