"""What operators share: chains of elementwise passes as one kernel on a GPU, and an exponential of even cost."""

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
    """Whether Triton can build and run kernels on this machine's GPU (said once in the log if not)."""
    try:
        import triton

        target = triton.runtime.driver.active.get_current_target()
        if target.arch < 80:
            raise RuntimeError(f"{target} is too old")
    except Exception as error:  # not installed, or from the driver, or from the C compiler that it needs
        logger.warning("Triton cannot be used (%s); PyTorch's own kernels take its place (slower)", error)
        return False
    return True


def fused(function: Callable) -> Callable:
    """`function(tensor, ...)`, compiled for tensors on a GPU, where memory traffic counts; unchanged on a CPU.

    Within a compiled model it stays as it is: it is fused there already.
    """
    compiled = cache(lambda: torch.compile(function, dynamic=True))

    @wraps(function)
    def dispatch(first: Tensor, *rest: Any) -> Any:
        fuse = first.is_cuda and not torch.compiler.is_compiling() and triton_works()
        return (compiled() if fuse else function)(first, *rest)

    return dispatch


def exp_(x: Tensor) -> Tensor:
    """e to the x, in place. By base 2: the natural one takes ten times as long on a CPU where it underflows."""
    return x.mul_(LOG2E).exp2_()
