"""Rotary position embedding (RoPE; RoFormer, Su et al. 2021) over one or two axes (2D RoPE; paper,
section 4.2).

Two features of a head are a point in a plane. It is turned by an angle, the position times a
frequency of this pair. So the product of a query and a key depends on the difference of their
positions alone.

The features are cut into blocks of equal width, in which feature j is paired with feature
j + width / 2. With one axis, the token position, there is one block. With two axes there are
n = 1 / `state_share` blocks (the paper: 2), of which the last turns by the copy index, and the
others by the token position. A head of 8 features in two blocks:

    block                 0            1
    turns by        token position  copy index
    pairs            (0, 2) (1, 3)  (4, 6) (5, 7)

The pairs of all blocks that turn by the token position share one falling sequence of
frequencies."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from exlm.ops.fused import fused


def rotary_tables(
    positions: Tensor, head_dim: int, base: float = 10000.0, state_share: float = 0.5
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `apply_rotary`, always in float32: half precision loses far positions.

    Args:
        positions: [B, L, A] integer coordinates on A = 1 or 2 axes, token position and copy index.
        head_dim: features of one attention head, a multiple of 2 or, with two axes, of 2 n.
        base: the longest wavelength is 2 pi times this.
        state_share: share of the features that turn by the copy index, 1/n with a whole n > 1; the
            paper: 1/2.

    Returns:
        cos and sin, each [B, L, blocks, 2, pairs of a block]; the sine of the first of each pair is
        negated."""
    blocks = 1 if positions.shape[-1] == 1 else round(1 / state_share)
    pairs = head_dim // blocks // 2  # how many a block has
    token_blocks = max(1, blocks - 1)
    angles = _angles(positions[..., 0], token_blocks * pairs, base).unflatten(-1, (-1, pairs))
    if blocks > 1:
        copy_angles = _angles(positions[..., 1], pairs, base)
        angles = torch.cat([angles, copy_angles[..., None, :]], dim=-2)  # [B, L, blocks, pairs]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([cos, cos], dim=-2), torch.stack([-sin, sin], dim=-2)


def _angles(position: Tensor, pairs: int, base: float) -> Tensor:
    """[B, L, pairs] the angles by which positions [B, L] turn each pair of features."""
    exponent = torch.arange(0, 2 * pairs, 2, device=position.device, dtype=torch.float32)
    frequency = base ** -(exponent / (2 * pairs))
    return position[..., None].float() * frequency


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x [B, H, L, head_dim]` by the tables of `rotary_tables`; result in the dtype of
    `x`."""
    return _Rotation.apply(x, cos.to(x.dtype), sin.to(x.dtype))


class _Rotation(torch.autograd.Function):
    """The rotation with a backward pass of its own: the gradient is the inverse rotation, so no
    intermediate result is kept."""

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
    """The pair (a, b) becomes (a cos - b sin, b cos + a sin). x [B, H, L, head_dim] is contiguous:
    on a CPU all steps but one then run over whole rows, and a GPU compiles one kernel, not one for
    each order of strides."""
    first, second = x.unflatten(-1, cos.shape[-3:]).unbind(-2)  # the two features of each pair
    swapped = torch.stack([second, first], dim=-2).flatten(-3)
    return (x * cos.flatten(-3)[:, None]).addcmul_(swapped, sin.flatten(-3)[:, None])
