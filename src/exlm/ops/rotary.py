"""Rotary position embedding over one or two axes (RoFormer, Su et al. 2021; 2D form: paper, section 4.2).

In two dimensions the first half of each head's features rotates by the word position, the second half by the
state index, so that attention scores depend on differences of words and on differences of states."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rotary_tables(positions: Tensor, head_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `apply_rotary`, always in float32: half precision loses far positions.

    Args:
        positions: [B, L, A] integer coordinates on A axes; every axis gets `head_dim / A` features.
        head_dim: features of one attention head, a multiple of 2 A.
        base: the longest wavelength is 2 pi times this.

    Returns:
        cos and sin, each [B, L, A, 2, head_dim / 2A]; the sine of the first of each pair is negated."""
    width = head_dim // positions.shape[-1]
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angle = positions[..., None].float() * base**-exponent  # [B, L, A, width / 2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, cos], dim=-2), torch.stack([-sin, sin], dim=-2)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x [B, H, L, head_dim]` by the tables of `rotary_tables`; result in the dtype of `x`."""
    return _Rotation.apply(x, cos.to(x.dtype), sin.to(x.dtype))


class _Rotation(torch.autograd.Function):
    """Has its own backward pass: the gradient is the inverse rotation, so no intermediate result is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x = x.contiguous()  # then all steps below but one run over whole rows of L x head_dim
    first, second = x.unflatten(-1, cos.shape[-3:]).unbind(-2)
    swapped = torch.stack([second, first], dim=-2).flatten(-3)
    return (x * cos.flatten(-3)[:, None]).addcmul_(swapped, sin.flatten(-3)[:, None])
