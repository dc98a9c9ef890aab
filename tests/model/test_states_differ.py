"""Copies of a mask come to stand for different readings: a toy that needs it
(`benchmarks/agreement.py`)."""

import pytest
from benchmarks.agreement import batch, sequences, train

from exlm import ExLMForMaskedLM
from exlm.model.evaluation import evaluate_batch

AGREEMENT = sequences("agreement")
SETTINGS = {
    "initializer_range": 0.06,
    "rotary_base": 100.0,
    "order_prior": 10.0,
    "sticky_prior": 3.0,
}


@pytest.mark.parametrize("layers,embedding", [("all", 0.06), (1, 0.5)])
def test_two_masks_learn_to_agree(layers, embedding):
    settings = {**SETTINGS, "expanded_layers": layers, "copy_embedding": embedding}
    finals = [train(AGREEMENT, seed, 200, **settings)[1][-1] for seed in range(2)]
    # independent masks 2.773, two letters on one state 1.73, the best 1.386
    assert max(finals) < 1.85


def test_independent_masks_cannot(tiny_config):
    final = train(AGREEMENT, 0, 200, objective="mlm", initializer_range=0.06, rotary_base=100.0)[1][
        -1
    ]
    assert final == pytest.approx(2.773, abs=0.02)


def test_the_toys_letters_are_equally_probable(tiny_config):
    found = batch(AGREEMENT)
    assert found["labels"][:, 1].tolist() == found["labels"][:, 2].tolist() == [4, 5, 6, 7]
    model = ExLMForMaskedLM(tiny_config(vocab_size=9, mask_token_id=8)).eval()
    assert evaluate_batch(model, found)["masked"] == 8
