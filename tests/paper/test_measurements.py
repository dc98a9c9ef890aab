"""Entropy, corrupted semantics and cost: against formulas, enumeration and slow references in
float64."""

import itertools
import math

import numpy as np
import pytest
import torch

from exlm import ExLMConfig, ExLMForMaskedLM, ExLMForSequenceClassification
from exlm.model.downstream import ExLMForQuestionAnswering
from exlm.ops.alignment import sample
from exlm.paper import measurements
from exlm.paper.measurements import (
    batch_entropies,
    entropy,
    measure_corruption,
    measure_entropy,
)
from exlm.pretrain.held_out import HeldOutData, score_held_out
from exlm.pretrain.settings import ArchitectureConfig, DataConfig
from exlm.storage.tokenizers import load_tokenizer
from tests.paper.fake_runs import fixed_count_of_masks

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def model_of(corpus, repeat=1, **switches):
    architecture = ArchitectureConfig(**SMALL, max_position_embeddings=512, **switches)
    return ExLMForMaskedLM(architecture.build(load_tokenizer(str(corpus)), repeat)).eval()


def batches_of(corpus, ratio, repeat=1):
    data = DataConfig(str(corpus), ratio, repeat, tokens_per_batch=600, tokens_per_micro_batch=600)
    return list(HeldOutData(data, load_tokenizer(str(corpus)), 0).batches())


def test_entropy_is_in_bits_and_a_certain_or_impossible_token_adds_nothing():
    uniform = torch.full((8,), -math.log(8))
    certain = torch.tensor([0.0, -math.inf, -math.inf])
    half = torch.tensor([0.5, 0.5, 0.0]).log()
    assert float(entropy(uniform)) == pytest.approx(3)
    assert float(entropy(certain)) == 0
    assert float(entropy(half)) == pytest.approx(1)


@pytest.mark.parametrize("repeat", [1, 2])
def test_entropy_of_an_mlm_counts_only_tokens_without_a_visible_copy_and_averages_copies(
    corpus, repeat
):
    model = model_of(corpus, repeat, objective="mlm")
    batches = batches_of(corpus, 0.6, repeat)
    found = measure_entropy(model, batches)
    expected, some_visible = [], 0
    for batch in batches:
        with torch.no_grad():
            logits = model(batch["input_ids"], batch["attention_mask"]).logits.double()
        for row, labels in enumerate(batch["labels"].tolist()):
            for start in range(0, len(labels), repeat):
                copies = [i for i in range(start, start + repeat) if labels[i] != -100]
                if len(copies) < repeat:
                    some_visible += bool(copies)
                    continue
                p = [logits[row, i].softmax(-1).numpy() for i in copies]
                expected.append(np.mean([-(q * np.log2(q)).sum() for q in p]))
    assert found["tokens"] == len(expected) > 50
    assert (some_visible > 0) == (repeat > 1)
    assert found["mean"] == pytest.approx(np.mean(expected), abs=1e-4)
    assert found["std"] == pytest.approx(np.std(expected), abs=1e-4)
    assert found["states"] is None


def test_the_states_of_exlm_are_never_more_uncertain_than_their_mixture(corpus):
    model = model_of(corpus, num_states=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for batch in batches_of(corpus, 0.3):
        found = batch_entropies(model, batch)
        assert len(found["mixture"]) == int((batch["labels"] != -100).sum())
        assert (found["states"] <= found["mixture"] + 1e-9).all() and (
            found["states"] < found["mixture"]
        ).any()


@pytest.mark.parametrize(
    "switches", [{}, {"dag": "sparse"}, {"rotary": "1d"}, {"boundary_states": "k"}]
)
def test_where_targets_stand_agrees_with_sampled_paths(corpus, switches):
    model = model_of(corpus, num_states=3, **switches).double()
    with torch.no_grad():
        for parameter in model.transition.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    batch = {name: values[:1] for name, values in batches_of(corpus, 0.2)[0].items()}
    found = score_held_out(model, [batch])
    lattice = model.exlm.expand(**batch)
    with torch.no_grad():
        links = model.lattice_output(lattice).links
    free = links.new_zeros(1, lattice.targets.shape[1], links.shape[1])
    many = 4000
    paths = sample(
        *(
            x.expand(many, *x.shape[1:])
            for x in (free, links, lattice.target_lengths, lattice.state_lengths)
        )
    )
    counts = torch.zeros(3)
    masks = range(1, int(lattice.target_lengths) - 1)
    for path in paths.tolist():
        for target in masks:
            place = int(lattice.state_index[0, path[target]])
            copy = place - int(lattice.first_copy[0, lattice.target_index[0, target]])
            if 0 <= copy < 3 and lattice.source_token[0, place] == lattice.target_index[0, target]:
                counts[copy] += 1 / (many * len(masks))
    assert torch.allclose(counts, torch.tensor(found["by_state"], dtype=torch.float32), atol=0.02)
    assert found["own_states"] == pytest.approx(sum(found["by_state"]))
    if switches.get("dag") == "sparse":
        assert found["own_states"] == pytest.approx(1)


@pytest.mark.parametrize("objective", ["exlm", "mlm", "ctc"])
def test_entropy_is_measured_in_pieces_of_bounded_size(corpus, objective, monkeypatch):
    model, batches = model_of(corpus, num_states=3, objective=objective), batches_of(corpus, 0.3)
    whole, sizes = measure_entropy(model, batches), []

    def noting(log_probabilities):
        sizes.append(log_probabilities.numel())
        return entropy(log_probabilities)

    limit = 5_000
    monkeypatch.setattr(measurements, "entropy", noting)
    monkeypatch.setattr(measurements, "MOST_LOGITS", limit)
    pieces = measure_entropy(model, batches)
    assert 1000 < max(sizes) <= limit and len(sizes) > 3 * len(batches)
    assert pieces["tokens"] == whole["tokens"]
    for name in ("mean", "std", "stderr"):
        assert pieces[name] == pytest.approx(whole[name], abs=1e-6)
        if objective == "exlm":
            assert pieces["states"][name] == pytest.approx(whole["states"][name], abs=1e-6)


def test_without_transitions_the_entropy_is_that_of_the_marginals(corpus):
    model = model_of(corpus, num_states=2, objective="ctc")
    found = measure_entropy(model, batches_of(corpus, 0.3))
    assert 0 < found["mean"] <= math.log2(model.config.vocab_size) and found["states"] is None


def test_the_appendix_formula_gives_the_papers_numbers():
    sequence = torch.ones(1, 2 * (512 + 2), dtype=torch.long)
    found = measure_corruption([{"attention_mask": sequence, "labels": -100 * sequence}], 0.387, 2)
    assert found["predicted"] == pytest.approx(0.1498, abs=1e-4) and found["mean"] == 0
    assert found["predicted_std"] == pytest.approx(0.0158, abs=1e-4)


@pytest.mark.parametrize("repeat,p", [(1, 0.3), (2, 0.4), (2, 0.55), (3, 0.7)])
def test_masking_a_fixed_count_agrees_with_enumeration(repeat, p):
    tokens = 4
    copies = tokens * repeat
    mean = square = 0.0
    low = math.floor(p * copies)
    for count, weight in ((low, 1 - (p * copies - low)), (low + 1, p * copies - low)):
        shares = []
        for chosen in itertools.combinations(range(copies), count):
            shares.append(
                sum(set(range(t * repeat, (t + 1) * repeat)) <= set(chosen) for t in range(tokens))
                / tokens
            )
        mean += weight * np.mean(shares)
        square += weight * np.mean(np.square(shares))
    found = fixed_count_of_masks(p, repeat, np.array([tokens]))
    assert found[0][0] == pytest.approx(mean, abs=1e-12)
    assert found[1][0] == pytest.approx(square - mean**2, abs=1e-12)


@pytest.mark.parametrize("p,repeat", [(0.15, 1), (0.387, 2), (0.622, 4)])
def test_measured_corruption_is_what_masking_a_fixed_count_predicts(corpus, p, repeat):
    batches = batches_of(corpus, p, repeat)
    found = measure_corruption(batches, p, repeat)
    lengths = torch.cat([batch["attention_mask"].sum(1) // repeat - 2 for batch in batches]).numpy()
    mean, variance = fixed_count_of_masks(p, repeat, lengths)
    assert (
        abs(found["mean"] - mean.mean())
        < 4 * math.sqrt((variance.mean() + mean.var()) / len(lengths)) + 1e-9
    )
    assert found["predicted"] == pytest.approx(p**repeat)
    if repeat == 1:
        assert found["std"] < found["predicted_std"]


@pytest.mark.parametrize("model_class", [ExLMForSequenceClassification, ExLMForQuestionAnswering])
def test_heads_for_tasks_repeat_their_input_as_in_pre_training(model_class):
    settings = {"vocab_size": 20, "mask_token_id": 4, "max_position_embeddings": 64, **SMALL}
    model = model_class(ExLMConfig(**settings, repeat=3)).eval()
    plain = model_class(ExLMConfig(**settings)).eval()
    plain.load_state_dict(model.state_dict())
    ids = torch.tensor([[0, 7, 8, 4, 2], [0, 9, 2, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    found = model(ids, mask)
    expected = plain(ids.repeat_interleave(3, 1), mask.repeat_interleave(3, 1))
    if model_class is ExLMForSequenceClassification:
        assert torch.allclose(found.logits, expected.logits, atol=1e-6)
    else:
        assert found.start_logits.shape == ids.shape
        assert torch.allclose(found.start_logits, expected.start_logits[:, ::3], atol=1e-6)
        assert torch.allclose(found.end_logits, expected.end_logits[:, ::3], atol=1e-6)
