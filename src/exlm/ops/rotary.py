"""Rotary position embedding over one or two axes (RoFormer, Su et al. 2021; 2D form: paper, section 4.2).

In two dimensions the first half of each head's features rotates by the word position, the second half by the
state index, so that attention scores depend on differences of words and on differences of states.
"""

import torch
from torch import Tensor


def rotary_tables(positions: Tensor, head_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `apply_rotary`, always in float32: half precision loses far positions.

    Args:
        positions: [B, L, A] integer coordinates on A axes; every axis gets `head_dim / A` features.
        head_dim: features of one attention head.
        base: the longest wavelength is 2 pi times this.

    Returns:
        cos and sin, each [B, 1, L, A, head_dim / A].

    Raises:
        ValueError: if `head_dim` is not a multiple of 2 A.
    """
    axes = positions.shape[-1]
    if head_dim % (2 * axes):
        raise ValueError(f"head size {head_dim} must be a multiple of {2 * axes} for {axes} rotary axes")
    width = head_dim // axes
    exponent = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angle = positions[..., None].float() * base**-exponent  # [B, L, A, width / 2]
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)
    return angle.cos(), angle.sin()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates `x [B, H, L, head_dim]` by the tables of `rotary_tables`; result in the dtype of `x`."""
    parts = x.unflatten(-1, cos.shape[-2:])
    left, right = parts.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return (parts * cos + turned * sin).flatten(-2).to(x.dtype)
