"""Rotary position embedding over one or two axes (RoFormer, Su et al. 2021; 2D form: paper, section
4.2).

In two dimensions the first features of each head rotate by the token position, the others by the
copy index, so that attention scores depend on differences of token positions and of copies.
In the paper each axis has one half."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from exlm.ops.fused import fused


def rotary_tables(
    positions: Tensor, head_dim: int, base: float = 10000.0, state_share: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `apply_rotary`, always in float32: half precision loses far positions.

    A head's features are cut into blocks of equal width, and each block pairs its first half with
    its second. With one axis there is one block. With two there are n = 1 / `state_share`: the last
    is that of the copy index, and the token position has the n - 1 before it, over which one
    sequence of wavelengths is spread.

    Args:
        positions: [B, L, A] integer coordinates on A = 1 or 2 axes, token position and copy index.
        head_dim: features of one attention head, a multiple of 2 A or, with two axes, of 2 n.
        base: the longest wavelength is 2 pi times this.
        state_share: share of the features that turn by the copy index, 1/n with a whole n > 1; the
            paper: 1/2.

    Returns:
        cos and sin, each [B, L, blocks, 2, width / 2]; the sine of the first of each pair is
        negated."""
    blocks = 1 if positions.shape[-1] == 1 else round(1 / state_share)
    width = head_dim // blocks
    angle = _angles(positions[..., 0], max(1, blocks - 1) * width, base).unflatten(
        -1, (-1, width // 2)
    )
    if blocks > 1:
        of_state = _angles(positions[..., 1], width, base).unsqueeze(-2)
        angle = torch.cat([angle, of_state], dim=-2)  # [B, L, blocks, width / 2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, cos], dim=-2), torch.stack([-sin, sin], dim=-2)


def _angles(position: Tensor, features: int, base: float) -> Tensor:
    """[B, L, features / 2] the angles of positions [B, L], one for each pair of features."""
    exponent = torch.arange(0, features, 2, device=position.device, dtype=torch.float32) / features
    return position[..., None].float() * base**-exponent


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x [B, H, L, head_dim]` by the tables of `rotary_tables`; result in the dtype of
    `x`."""
    return _Rotation.apply(x, cos.to(x.dtype), sin.to(x.dtype))


class _Rotation(torch.autograd.Function):
    """Has its own backward pass: the gradient is the inverse rotation, so no intermediate result is
    kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x.contiguous(), cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad.contiguous(), cos, -sin), None, None


@fused
def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, L, head_dim], contiguous: on a CPU all steps but one then run over whole rows, and a
    GPU compiles one kernel, not one for each order of strides."""
    first, second = x.unflatten(-1, cos.shape[-3:]).unbind(-2)
    swapped = torch.stack([second, first], dim=-2).flatten(-3)
    return (x * cos.flatten(-3)[:, None]).addcmul_(swapped, sin.flatten(-3)[:, None])
