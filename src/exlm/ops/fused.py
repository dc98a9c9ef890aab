"""Functions fused into one kernel on a GPU, and an exponential of constant speed."""

import logging
import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)
LOG2E = math.log2(math.e)


@cache
def triton_works() -> bool:
    """Whether Triton can build and run kernels on this machine's GPU; if not, the log has one
    warning."""
    try:
        import triton

        target = triton.runtime.driver.active.get_current_target()
        if target.arch < 80:
            raise RuntimeError(f"{target} is too old")
    except Exception as error:  # Triton is not installed, or its driver or C compiler fails
        logger.warning(
            "Triton cannot be used (%s); PyTorch's own kernels take its place (slower)", error
        )
        return False
    return True


def compiles_on(device: torch.device) -> bool:
    """Whether `fused` functions are compiled on a device."""
    return device.type == "cuda" and triton_works()


@cache
def compiled(function: Callable) -> Callable:
    """The function, compiled at its first call."""
    return torch.compile(function, dynamic=True)


def fused(function: Callable) -> Callable:
    """`function(tensor, ...)`, compiled on a GPU to save memory traffic, unless a compiled model
    calls it. Compiled, it computes in the precision of its arguments, also under autocast."""

    @wraps(function)
    def dispatch(first: Tensor, *others: Any) -> Any:
        if not torch.compiler.is_compiling() and compiles_on(first.device):
            # Tensors that need a gradient would need kernels of their own, also where none is
            # computed.
            if not torch.is_grad_enabled():
                first = first.detach()
                others = tuple(x.detach() if isinstance(x, Tensor) else x for x in others)
            # With autocast a forward pass would need kernels of its own.
            with torch.autocast(first.device.type, enabled=False):
                return compiled(function)(first, *others)
        return function(first, *others)

    return dispatch


def exp_(x: Tensor) -> Tensor:
    """e to the x, in place, by base 2: where results underflow, `exp` takes ten times as long on a
    CPU."""
    return x.mul_(LOG2E).exp2_()
