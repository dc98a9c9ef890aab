"""Joint probability of all masked tokens, proven by enumerating every filling of small cases."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from exlm import ExLMForMaskedLM
from exlm.model.evaluation import evaluate_batch, sum_names, summary
from exlm.model.objectives import OBJECTIVES
from exlm.model.passes import nll_in_passes
from exlm.ops.transition import PriorStrength

VOCABULARY = 8
SWITCHES = [
    {},
    {"boundary_states": "k"},
    {"dag": "sparse"},
    {"num_states": 1},
    {"objective": "mlm"},
    {"objective": "ctc"},
    {"order_prior": 3.0, "sticky_prior": 2.0, "copy_embedding": 0.5, "expanded_layers": 1},
]


def probabilities(model, name):
    """[V, V] of the pairs that fill two masks."""
    row = torch.tensor([[0, 7, 4, 7, 2]])
    result = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for pair in itertools.product(range(VOCABULARY), repeat=2):
        labels = torch.tensor([[-100, pair[0], -100, pair[1], -100]])
        batch = {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": labels}
        result[pair] = math.exp(-evaluate_batch(model, batch)[name])
    return result


@pytest.fixture
def build(tiny_config):
    def model(**switches):
        config = tiny_config(
            **{"num_states": 2, **switches},
            vocab_size=VOCABULARY,
            mask_token_id=7,
            initializer_range=0.5,
        )
        return ExLMForMaskedLM(config).double().eval()

    return model


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_the_probabilities_of_all_fillings_sum_to_one_and_their_marginals_are_the_marginal_ones(
    build, switches
):
    model = build(**switches)
    joint, marginal = probabilities(model, "joint_nll"), probabilities(model, "nll")
    assert float(joint.sum()) == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(
        marginal, torch.outer(joint.sum(1), joint.sum(0)), atol=1e-6, rtol=1e-5
    )
    if model.transition is None:
        torch.testing.assert_close(joint, marginal)


def test_joint_numbers_are_sums_over_paths(build):
    """All paths of two states in order, written out."""
    model = build()
    row, labels = torch.tensor([[0, 7, 4, 7, 2]]), torch.tensor([[-100, 5, -100, 6, -100]])
    batch = {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": labels}
    lattice = model.exlm.expand(**batch)
    states = model.lattice_states(lattice)
    links, probs = model.transition(states, lattice)[0].exp(), model.head(states).softmax(-1)[0]
    paths = {
        (u, v): links[0, u] * links[u, v] * links[v, 5]
        for u, v in itertools.combinations(range(1, 5), 2)
    }
    emitted = {(u, v): p * probs[u, 5] * probs[v, 6] for (u, v), p in paths.items()}
    sums = evaluate_batch(model, batch)
    total = float(sum(paths.values()))
    assert sums["joint_nll"] == pytest.approx(-math.log(float(sum(emitted.values())) / total))
    for c in (1, 2):
        first = float(sum(p for (u, _), p in paths.items() if u == c)) / total
        second = float(sum(p for (_, v), p in paths.items() if v == 2 + c)) / total
        assert sums[f"by_state_{c}"] == pytest.approx(first + second)


def test_a_prior_in_place_of_the_configurations_counts(build):
    model, row = build(), torch.tensor([[0, 7, 4, 7, 2]])
    batch = {
        "input_ids": row,
        "attention_mask": torch.ones_like(row),
        "labels": torch.where(row == 7, 5, -100),
    }
    free, held = (
        evaluate_batch(model, batch),
        evaluate_batch(model, batch, PriorStrength(30.0, 0.0)),
    )
    assert summary(held)["own_states"] > 0.999 > summary(free)["own_states"]
    model.config.order_prior = 30.0
    assert evaluate_batch(model, batch) == held


def test_means_are_per_masked_token_and_a_batch_without_masks_adds_nothing(
    build, tiny_config, tiny_batch
):
    model = ExLMForMaskedLM(tiny_config()).eval()
    sums = evaluate_batch(model, tiny_batch)
    assert sums["masked"] == 6 and sum_names(model.config) == [*sums]
    result = summary(sums)
    assert result["nll"] == pytest.approx(sums["nll"] / 6) and result[
        "perplexity"
    ] == pytest.approx(math.exp(result["nll"]))
    assert result["joint_perplexity"] == pytest.approx(math.exp(sums["joint_nll"] / 6))
    assert (
        0 < result["own_states"] == pytest.approx(sum(result["by_state"]))
        and len(result["by_state"]) == 3
    )
    alone = {name: t[2:3] for name, t in tiny_batch.items()}  # no mask
    sums = evaluate_batch(model, alone)
    assert sums.pop("sequences") == len(alone["input_ids"])
    assert not any(sums.values())


def test_a_masked_blank_leaves_the_numbers_of_a_ctc_model_finite(tiny_config):
    """`<unk>` is no answer of such a model; it counts as impossible, not as infinity."""
    model = ExLMForMaskedLM(tiny_config(objective="ctc")).eval()
    row, labels = torch.tensor([[0, 29, 7, 29, 2]]), torch.tensor([[-100, 3, -100, 8, -100]])
    found = summary(
        evaluate_batch(
            model, {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": labels}
        )
    )
    assert 40 < found["nll"] < 90 and math.isfinite(found["perplexity"])


def test_the_objective_of_the_page_learns_and_is_evaluated_and_saved(
    tiny_config, tiny_batch, monkeypatch, tmp_path
):
    page = Path(__file__).parents[2] / "docs" / "howto" / "objective.md"
    [code] = re.findall("```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.setitem(OBJECTIVES, "vote", None)  # so that it is removed at the end
    exec(code, {"__name__": "page"})
    torch.manual_seed(0)
    model = ExLMForMaskedLM(tiny_config(objective="vote", initializer_range=0.1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(25):
        loss = model(**tiny_batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    sums = evaluate_batch(model.eval(), tiny_batch)
    assert sums["masked"] == 6 and sums["joint_nll"] == pytest.approx(sums["nll"])
    output = model.lattice_output(model.exlm.expand(**tiny_batch))
    marginals = model.objective.marginals(output)[output.lattice.target_is_mask]
    torch.testing.assert_close(marginals.exp().sum(-1), torch.ones(6))
    in_one_pass = float(nll_in_passes(model, tiny_batch, 1).sum())
    assert in_one_pass == pytest.approx(sums["joint_nll"], rel=1e-5)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert loaded(**tiny_batch).loss == model(**tiny_batch).loss
