"""The cost model of the benchmarks: known ratios, and what PyTorch counts in a real step."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import cost
import estimate
import run
from cost import Shape
from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.ops.emission import CHUNK

# The release's boundary states (k) and a last layer that computes all rows, as the figures below
# were worked out.
TEXT = Shape(64, 512, 0.15, 4, 768, 12, 12, 3072, 50265, boundary_states=4)
MOLECULES = Shape(1560, 42, 0.15, 2, 768, 9, 12, 2048, 369, boundary_states=2)


def k(num_states: int, **changes) -> Shape:
    return replace(TEXT, num_states=num_states, boundary_states=num_states, **changes)


@pytest.mark.parametrize(
    ("shape", "chunk", "expected"),
    [
        (TEXT, None, 1.70),
        (TEXT, 0, 1.74),
        (replace(TEXT, length=128), None, 1.71),
        (replace(TEXT, length=128), 0, 1.77),
        (k(2), None, 1.23),
        (k(8), None, 2.69),
        (replace(TEXT, mask_ratio=0.387), None, 2.69),
        (MOLECULES, None, 1.215),
        (MOLECULES, 0, 1.215),
    ],
)
def test_ratio_of_a_step_without_last_layer_sparsity(shape, chunk, expected):
    # Worked out without the product for the targets' logits, which adds at most 0.006.
    assert cost.ratio_bound(shape, sparse_last=False, chunk=chunk) == pytest.approx(
        expected, abs=0.008
    )


def test_operations_of_one_text_sequence():
    mlm, exlm = (
        cost.parts(replace(TEXT, batch=1), name, sparse_last=False) for name in ("mlm", "exlm")
    )
    giga = {name: part.flops / 1e9 for name, part in exlm.items()}
    assert mlm["trunk"].flops / 1e9 == pytest.approx(86.97, abs=0.01)
    assert mlm["attention"].flops / 1e9 == pytest.approx(9.66, abs=0.01)
    assert (mlm["transform"] + mlm["vocabulary"]).flops / 1e9 == pytest.approx(6.04, abs=0.01)
    assert giga["trunk"] == pytest.approx(127.2, abs=0.1)
    assert giga["attention"] == pytest.approx(20.7, abs=0.1)
    assert giga["transform"] + giga["vocabulary"] == pytest.approx(24.8, abs=0.1)
    assert giga["transition"] + giga["mixture"] == pytest.approx(1.66, abs=0.01)


SMALL_MOLECULES = Shape(128, 46, 0.15, 2, 256, 6, 4, 1024, 400, boundary_states=2)


@pytest.mark.parametrize(
    ("shape", "mlm", "exlm"),
    [
        (TEXT, 0.057, 0.035),
        (SMALL_MOLECULES, 0.12, 0.09),
        (replace(SMALL_MOLECULES, hidden=128, layers=4, intermediate=512), 0.17, 0.14),
    ],
)
def test_what_last_layer_sparsity_saves(shape, mlm, exlm):
    for name, expected in (("mlm", mlm), ("exlm", exlm)):
        saved = 1 - cost.step_flops(shape, name) / cost.step_flops(shape, name, sparse_last=False)
        assert saved == pytest.approx(expected, abs=0.01)


def test_the_paper_boundary_lowers_the_ratio_a_little():
    released, paper = (cost.ratio_bound(replace(TEXT, boundary_states=b)) for b in (4, 1))
    assert 0.95 * released < paper < released


# Of a sequence: 2 masks, 4 targets, 8 states, 14 expanded positions; an MLM's last layer computes 4
# rows.
TINY = Shape(2, 10, 0.2, 3, 4, 3, 2, 8, 11)
# products of a layer's trunk
PLAIN, EXPANDED, LAST = 2 * 2 * 10 * 128, 2 * 2 * 14 * 128, 2 * 2 * (14 * 32 + 8 * 96)
ATTENDED = {
    "plain": 4 * 2 * 10 * 10 * 4,
    "expanded": 4 * 2 * 14 * 14 * 4,
    "last": 4 * 2 * 8 * 14 * 4,
}


@pytest.mark.parametrize(
    ("layers", "trunk", "attended"),
    [
        (1, 2 * PLAIN + LAST, 2 * ATTENDED["plain"] + ATTENDED["last"]),
        (2, PLAIN + EXPANDED + LAST, sum(ATTENDED.values())),
        (3, 2 * EXPANDED + LAST, 2 * ATTENDED["expanded"] + ATTENDED["last"]),
        (4, 2 * EXPANDED + LAST, 2 * ATTENDED["expanded"] + ATTENDED["last"]),
        (None, 2 * EXPANDED + LAST, 2 * ATTENDED["expanded"] + ATTENDED["last"]),
    ],
)
def test_only_the_last_layers_pay_for_a_late_expansion(layers, trunk, attended):
    late = replace(TINY, expanded_layers=layers)
    assert cost.trunk_linear(late).flops == trunk
    assert cost.trunk_linear(late, sparse_last=False).flops == trunk - LAST + EXPANDED
    assert cost.attention(late).flops == attended
    heads = 512 + 1408 + 2560 + 1024 + 360  # transform, vocabulary, transition, mixture, alignment
    assert cost.step_flops(late, "exlm") == 3 * (trunk + attended + heads)
    mlm = (
        2 * PLAIN
        + 2 * 2 * (10 * 32 + 4 * 96)
        + 2 * ATTENDED["plain"]
        + 4 * 2 * 4 * 10 * 4
        + 128
        + 352
    )
    assert cost.step_flops(late, "mlm") == 3 * mlm
    assert cost.ratio_bound(late) == pytest.approx((trunk + attended + heads) / mlm)


def test_bytes_of_a_late_expansion():
    late = replace(TINY, expanded_layers=1)
    plain_inputs, last_inputs = 2 * 10 * (4 * 4 + 8), 2 * (14 * 4 + 8 * (3 * 4 + 8))
    assert cost.trunk_linear(late).saved == 2 * (2 * plain_inputs + last_inputs)
    assert cost.attention(late).saved == 2 * 2 * 4 * 2 * (2 * (10 + 10) + (14 + 8))


def test_late_expansion_keeps_a_step_on_molecules_within_eight_percent():
    late = Shape(1560, 42, 0.15, 2, 768, 9, 12, 2048, 170, expanded_layers=1)
    assert cost.ratio_bound(late) == pytest.approx(1.037, abs=0.001)


def test_bytes():
    kept, made_again = (
        cost.vocabulary_product(TEXT, TEXT.states, keep).saved for keep in (True, False)
    )
    assert kept - made_again == 4 * 64 * 316 * 50265
    assert cost.mixture(TEXT).saved == pytest.approx(25.6e6 + 4 * 64 * 316 * 2 * 768, rel=0.01)
    assert cost.alignment(TEXT).saved == pytest.approx(25.6e6 + 6.4e6, rel=0.01)
    assert cost.alignment(TEXT).traffic == pytest.approx(2 * 25.6e6 + 4 * 6.4e6, rel=0.01)


def test_a_shape_counts_what_the_lattice_holds(batch, model):
    lattice = model("exlm").exlm.expand(**batch)
    assert lattice.input_ids.shape[1] == SMALL.expanded
    assert lattice.state_lengths.tolist() == [SMALL.states] * 2
    assert lattice.target_lengths.tolist() == [SMALL.targets] * 2


SMALL = Shape(2, 20, 0.3, 3, 32, 3, 4, 48, 50)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 49, (2, 20))
    labels = torch.full_like(ids, -100)
    labels[:, 3 : 3 + SMALL.masks] = ids[:, 3 : 3 + SMALL.masks]
    return {"input_ids": ids.masked_fill(labels >= 0, 49), "labels": labels}


@pytest.fixture
def model():
    def build(objective: str, expanded_layers: int | None = None) -> ExLMForMaskedLM:
        return ExLMForMaskedLM(
            ExLMConfig(
                vocab_size=SMALL.vocabulary,
                hidden_size=SMALL.hidden,
                num_hidden_layers=SMALL.layers,
                num_attention_heads=SMALL.heads,
                intermediate_size=SMALL.intermediate,
                mask_token_id=49,
                objective=objective,
                num_states=SMALL.num_states,
                expanded_layers=expanded_layers or "all",
            )
        )

    return build


def counted(function) -> tuple[int, object]:
    """Operations that PyTorch counts in a call, and what it returns."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        result = function()
    return counter.get_total_flops(), result


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
@pytest.mark.parametrize("expanded_layers", [None, 1, 2])
def test_the_encoder_computes_what_the_model_of_it_says(objective, expanded_layers, batch, model):
    network = model(objective, expanded_layers)
    lattice = network.exlm.expand(**batch)
    expected = cost.parts(replace(SMALL, expanded_layers=expanded_layers), objective)
    flops, _ = counted(lambda: network.lattice_states(lattice))
    assert flops == expected["trunk"].flops + expected["attention"].flops


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
def test_the_heads_compute_what_the_model_of_them_says(objective, batch, model):
    network = model(objective)
    lattice = network.exlm.expand(**batch)
    network(**batch)  # what is found out once in a process is not counted
    encoder, _ = counted(lambda: network.lattice_states(lattice))
    whole, output = counted(lambda: network(**batch))
    expected = cost.parts(SMALL, objective)
    unseen = expected["alignment"].flops if objective == "exlm" else 0  # no matrix product
    heads = (
        sum(part.flops for name, part in expected.items() if name not in ("trunk", "attention"))
        - unseen
    )
    assert whole - encoder == heads
    backward, _ = counted(output.loss.backward)
    step = cost.step_flops(SMALL, objective, chunk=CHUNK["cpu"]) - 3 * unseen
    # a gradient of a bias may be a product too
    assert whole + backward == pytest.approx(step, rel=1e-3)


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
def test_logits_that_do_not_fit_a_chunk_are_made_again(objective, batch, model, monkeypatch):
    network = model(objective)
    fitting, _ = counted(network(**batch).loss.backward)
    monkeypatch.setitem(CHUNK, "cpu", 100)
    chunked, _ = counted(network(**batch).loss.backward)
    once_more = cost.parts(SMALL, objective)["vocabulary"].flops
    assert chunked - fitting == once_more
    assert (
        cost.step_flops(SMALL, objective, chunk=100)
        - cost.step_flops(SMALL, objective, chunk=10**6)
        == once_more
    )


def test_every_job_on_a_gpu_may_take_its_whole_time():
    assert sum(limit for _, limit in run.JOBS["cuda"]) < run.BUDGET["cuda"]


@pytest.mark.parametrize("improvement", estimate.IMPROVEMENTS)
def test_an_estimate_for_a_gpu_is_longer_without_an_improvement(improvement):
    batch = 16 if improvement == "heads" else 512  # heads are together where lattices are small
    shape = replace(SMALL, batch=batch, length=128, hidden=512, vocabulary=5001)
    now = estimate.estimate(shape)
    before = estimate.estimate(shape, without=(improvement,))
    part = {"unpadded": "attention", "heads": "transition"}.get(improvement, improvement)
    assert before.seconds[part] > now.seconds[part] > 0
    # No product is faster than the peak.
    assert sum(now.seconds.values()) > cost.step_flops(shape, "exlm") / estimate.PEAK
