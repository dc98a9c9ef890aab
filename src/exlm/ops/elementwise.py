"""Elementwise steps made fast: fused into one kernel on a GPU, an exponential of constant speed,
and dropout on a CPU.

PyTorch draws one Bernoulli number at a time on a CPU, which takes 10 to 15% of a pre-training step.
Here one random 64-bit word serves four elements, and a bitwise AND zeroes the dropped ones.
`torch.manual_seed` seeds the draws."""

import logging
import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

logger = logging.getLogger(__name__)
LOG2E = math.log2(math.e)
LEVELS = 1 << 15  # drop probabilities are multiples of 1 / LEVELS
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


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


def fused(function: Callable) -> Callable:
    """`function(tensor, ...)`, compiled on a GPU to save memory traffic, unless a compiled model
    calls it."""
    compiled = cache(lambda: torch.compile(function, dynamic=True))

    @wraps(function)
    def dispatch(first: Tensor, *rest: Any) -> Any:
        fuse = first.is_cuda and not torch.compiler.is_compiling() and triton_works()
        return (compiled() if fuse else function)(first, *rest)

    return dispatch


def exp_(x: Tensor) -> Tensor:
    """e to the x, in place, by base 2: where results underflow, `exp` takes ten times as long on a
    CPU."""
    return x.mul_(LOG2E).exp2_()


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, level: int) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        draw = words.view(torch.int16)[: x.numel()].bitwise_and_(LEVELS - 1)
        # 0 if dropped, else all are set
        bits = draw.sub_(level).bitwise_right_shift_(15).bitwise_not_().view(x.shape)
        ctx.save_for_backward(bits)
        ctx.scale = LEVELS / (LEVELS - level)
        return _keep(x, bits, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _keep(grad, ctx.saved_tensors[0], ctx.scale), None


def _keep(x: Tensor, bits: Tensor, scale: float) -> Tensor:
    """x * scale where the bits are set, 0 elsewhere, also where x is infinite."""
    integer = INTEGERS[x.element_size()]
    return (x.view(integer) & bits.to(integer)).view(x.dtype).mul_(scale)


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeroes elements of `x` with probability `p` < 1 (on a CPU to 1/32768) and scales the rest to
    the same mean."""
    level = round(p * LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, min(level, LEVELS - 1)) if level else x


class Dropout(nn.Dropout):
    """`dropout` in training, nothing in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
