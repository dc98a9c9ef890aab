"""Rows that fill the width of their batch, which the authors' release drops or misreads, count like
all others."""

import pytest
import torch

from exlm import ExLMForMaskedLM
from exlm.ops import alignment

# Two rows of equal length, with one mask and with two, so that the first has fewer states; no
# column of padding.
ROWS = torch.tensor([[0, 5, 29, 7, 8, 2], [0, 6, 29, 9, 29, 2]])
ANSWERS = torch.tensor([[-100, -100, 6, -100, -100, -100], [-100, -100, 10, -100, 11, -100]])


@pytest.fixture
def losses_of(tiny_config, monkeypatch):
    """A function from rows, and columns of padding behind them, to the loss of each row and their
    sum."""
    model = ExLMForMaskedLM(tiny_config(boundary_states="k", num_states=2)).eval()
    each = []

    def spy(emission, transition, target_lengths, state_lengths, original=alignment.log_likelihood):
        each.append(-original(emission, transition, target_lengths, state_lengths) / target_lengths)
        return -each[-1] * target_lengths

    monkeypatch.setattr(alignment, "log_likelihood", spy)

    def losses(rows, padding=0):
        ids, labels = (
            torch.nn.functional.pad(x[rows], (0, padding), value=v)
            for x, v in ((ROWS, 1), (ANSWERS, -100))
        )
        output = model(input_ids=ids, attention_mask=(ids != 1).long(), labels=labels)
        assert output.infeasible == 0
        return each.pop().detach(), output.total.detach()

    return losses


def test_the_loss_of_a_row_does_not_depend_on_the_others_nor_on_padding(losses_of):
    together, total = losses_of([0, 1])
    padded, _ = losses_of([0, 1], padding=1)
    alone = torch.cat([losses_of([row])[0] for row in (0, 1)])
    assert (together > 0).all() and together.isfinite().all()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(together, padded, rtol=0, atol=1e-5)
    torch.testing.assert_close(total, alone.sum(), rtol=0, atol=1e-5)
