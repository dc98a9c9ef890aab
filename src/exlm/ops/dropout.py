"""Dropout made fast on a CPU.

PyTorch samples one Bernoulli number at a time on a CPU, which takes 10 to 15% of a pre-training
step. Here one random 64-bit integer serves four elements, and a bitwise AND zeroes the elements
that are dropped. `torch.manual_seed` seeds the integers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEVELS = 1 << 15  # drop probabilities are multiples of 1 / LEVELS
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, level: int) -> Tensor:
        integers = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        numbers = integers.view(torch.int16)[: x.numel()].bitwise_and_(LEVELS - 1)  # one an element
        # An element is dropped if its number is below the level: then all its bits are 0, else 1.
        bits = numbers.sub_(level).bitwise_right_shift_(15).bitwise_not_().view(x.shape)
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
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    level = min(round(p * LEVELS), LEVELS - 1)
    return _Dropout.apply(x, level) if level else x


class Dropout(nn.Dropout):
    """`dropout` in training, nothing in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
