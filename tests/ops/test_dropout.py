"""Dropout on a CPU: the right share, the same mean, the same elements backward, decided by the seed
alone."""

import pytest
import torch

from exlm.ops.dropout import Dropout, dropout

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_scale(dtype, p):
    result = dropout(torch.ones(400, 1001, dtype=dtype), p)
    kept = result != 0
    # Six standard deviations of a share over 400,400 draws, and the rounding of p to 1/32768.
    assert kept.double().mean().item() == pytest.approx(
        1 - p, abs=6 * (p * (1 - p) / 400_400) ** 0.5 + 2e-5
    )
    torch.testing.assert_close(
        result[kept], torch.full_like(result[kept], 1 / (1 - p)), rtol=1e-2, atol=0
    )
    assert result.double().mean().item() == pytest.approx(1.0, abs=0.03)
    assert kept.double().mean(0).std() < 1.3 * (p * (1 - p) / 400) ** 0.5  # no column is favoured


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_pass_where_values_do(dtype):
    # Drawn in float32: some versions of PyTorch draw zeros in bfloat16.
    x = torch.randn(37, 5).to(dtype).transpose(0, 1).requires_grad_()
    result = dropout(x, 0.3)
    gradient = torch.randn(5, 37).to(dtype)
    result.backward(gradient)
    kept = result != 0
    assert torch.equal(x.grad != 0, kept)
    torch.testing.assert_close(result[kept], x.detach()[kept] / 0.7, rtol=1e-2, atol=0)
    torch.testing.assert_close(x.grad[kept], gradient[kept] / 0.7, rtol=1e-2, atol=0)


def test_neighbours_are_independent():
    """Four elements share one random word."""
    kept = (dropout(torch.ones(100_000, 4), 0.5) != 0).float()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02


def test_the_seed_decides():
    x = torch.ones(1000)
    torch.manual_seed(5)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.5), first) and torch.equal(dropout(x, 0.5), second)
    assert not torch.equal(first, second)


def test_infinities_are_dropped_to_zero():
    result = dropout(torch.full((1000,), torch.inf), 0.5)
    assert set(result.tolist()) == {0.0, torch.inf}


def test_nothing_happens_in_evaluation_at_rate_zero_or_on_nothing():
    x = torch.randn(7)
    assert torch.equal(Dropout(0.5).eval()(x), x) and torch.equal(Dropout(0.0)(x), x)
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)
