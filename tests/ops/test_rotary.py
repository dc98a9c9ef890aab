"""2D rotary positions: scores depend on differences along each axis."""

import pytest
import torch

from exlm.ops.rotary import apply_rotary, rotary_tables


def score(query, key, at, other):
    rotated = []
    for vector, position in ((query, at), (key, other)):
        tables = rotary_tables(torch.tensor([[position]]), 16)
        rotated.append(apply_rotary(vector[None, None, None], *tables).flatten())
    return (rotated[0] * rotated[1]).sum()


def test_scores_depend_only_on_differences_on_each_axis():
    query, key = torch.randn(16), torch.randn(16)
    base = score(query, key, (3, 1), (7, 2))
    torch.testing.assert_close(score(query, key, (103, 1), (107, 2)), base, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(score(query, key, (3, 5), (7, 6)), base, atol=1e-4, rtol=1e-4)
    assert (score(query, key, (3, 1), (8, 2)) - base).abs() > 1e-3
    assert (score(query, key, (3, 1), (7, 3)) - base).abs() > 1e-3


def test_each_axis_turns_its_own_half():
    x = torch.randn(1, 1, 1, 16)
    by_word = apply_rotary(x, *rotary_tables(torch.tensor([[[5, 0]]]), 16))
    by_state = apply_rotary(x, *rotary_tables(torch.tensor([[[0, 5]]]), 16))
    assert torch.equal(by_word[..., 8:], x[..., 8:]) and not torch.allclose(
        by_word[..., :8], x[..., :8]
    )
    assert torch.equal(by_state[..., :8], x[..., :8])


@pytest.mark.parametrize("share", [0.25, 0.125])
def test_a_smaller_share_turns_by_the_state(share):
    x, ordinary = torch.randn(1, 1, 1, 16), round(16 * (1 - share))
    by_state = apply_rotary(x, *rotary_tables(torch.tensor([[[0, 5]]]), 16, state_share=share))
    assert torch.equal(by_state[..., :ordinary], x[..., :ordinary])
    assert not (by_state[..., ordinary:] == x[..., ordinary:]).any()
    by_word = apply_rotary(x, *rotary_tables(torch.tensor([[[5, 0]]]), 16, state_share=share))
    assert torch.equal(by_word[..., ordinary:], x[..., ordinary:])
    assert not (by_word[..., :ordinary] == x[..., :ordinary]).any()


def test_the_wavelengths_of_each_axis_are_those_of_its_width():
    """As many angles as pairs of features, from 1 down by one factor, whatever blocks they are cut
    into."""
    cos, _ = rotary_tables(torch.tensor([[[1, 1]]]), 32, state_share=0.25)
    angle = cos.acos().flatten(0, 2)[:, 0]  # [blocks, width / 2]
    expected = torch.cat([10000.0 ** (-torch.arange(0, n, 2) / n) for n in (24, 8)])
    # acos loses digits of small angles
    torch.testing.assert_close(angle.flatten(), expected, atol=1e-3, rtol=0)


def test_one_axis_is_the_rotary_embedding_of_roformer():
    """Against the complex form: features j and j + d/2 are one complex number turned by position *
    base^(-2j/d)."""
    x, position = torch.randn(1, 1, 6, 8), torch.arange(6)[None, :, None]
    turned = apply_rotary(x, *rotary_tables(position, 8))
    angle = torch.arange(6)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1))


def test_lengths_are_kept_and_half_precision_stays_half():
    x = torch.randn(2, 3, 5, 16)
    tables = rotary_tables(torch.randint(0, 700, (2, 5, 2)), 16)
    torch.testing.assert_close(apply_rotary(x, *tables).norm(dim=-1), x.norm(dim=-1))
    assert apply_rotary(x.bfloat16(), *tables).dtype == torch.bfloat16


def test_the_gradient_is_the_rotation_backwards():
    x = (
        torch.randn(2, 3, 5, 8, dtype=torch.float64)
        .transpose(1, 2)
        .contiguous()
        .transpose(1, 2)
        .requires_grad_()
    )
    cos, sin = rotary_tables(torch.randint(0, 9, (2, 5, 2)), 8)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, cos, sin), x)
