"""The memory of recipes by the model of the benchmarks, which is held against what PyTorch really
keeps."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memory
import scale
from cost import Shape
from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.model import encoder
from exlm.ops.emission import CHUNK
from memory import CPU, GPU

SHAPE = Shape(3, 50, 0.2, 3, 64, 4, 4, 160, 300)


def micro_batch(shape: Shape) -> dict[str, torch.Tensor]:
    """Sequences without padding, with equally many masks."""
    ids = torch.randint(5, shape.vocabulary - 1, (shape.batch, shape.length))
    labels = torch.full_like(ids, -100)
    labels[:, 3 : 3 + shape.masks] = ids[:, 3 : 3 + shape.masks]
    return {"input_ids": ids.masked_fill(labels >= 0, shape.vocabulary - 1), "labels": labels}


def model_of(shape: Shape, objective: str, rate: float) -> ExLMForMaskedLM:
    config = ExLMConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        mask_token_id=shape.vocabulary - 1,
        objective=objective,
        num_states=shape.num_states,
        expanded_layers=shape.expanded_layers or "all",
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=rate,
    )
    return ExLMForMaskedLM(config).train()


def bytes_kept(model: nn.Module, batch: dict[str, torch.Tensor], half: bool) -> int:
    """What autograd saves in a forward pass: every storage once, without the weights themselves."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            # held, so that its address is not given to another one
            saved[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
    ):
        model(**batch)
    return sum(storage.nbytes() for storage in saved.values())


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused attention, whose result has the heads of a position side by side, and masks of dropout
    of one byte."""

    def attention(module, query, key, value, mask, **options):
        # the result is laid out as the query
        rows = query.transpose(1, 2).contiguous().transpose(1, 2)
        return F.scaled_dot_product_attention(rows, key, value).transpose(1, 2), None

    def dropout(x, p):
        return torch.native_dropout(x, p, True)[0] if p else x

    monkeypatch.setitem(encoder.ALL_ATTENTION_FUNCTIONS, "sdpa", attention)
    monkeypatch.setattr("exlm.ops.dropout.dropout", dropout)


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
@pytest.mark.parametrize("expanded_layers", [None, 1, 2])
@pytest.mark.parametrize("machine", [GPU, CPU], ids=["GPU", "CPU"])
@pytest.mark.parametrize(("element", "rate"), [(2, 0.1), (2, 0.0), (4, 0.1), (4, 0.0)])
def test_a_micro_batch_keeps_what_the_model_of_it_says(
    objective, expanded_layers, machine, element, rate, monkeypatch
):
    shape = replace(SHAPE, element=element, expanded_layers=expanded_layers)
    if machine is GPU:
        as_on_a_gpu(monkeypatch)
    found = bytes_kept(model_of(shape, objective, rate), micro_batch(shape), half=element == 2)
    assert memory.kept(
        shape, objective, memory.used(machine, element, rate), rate
    ) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("objective", ["exlm", "mlm"])
def test_logits_that_do_not_fit_a_chunk_are_not_kept(objective, monkeypatch):
    few, many = (
        memory.kept(SHAPE, objective, replace(CPU, chunk=chunk), rate=0.0)
        for chunk in (1000, 10**6)
    )
    monkeypatch.setitem(CHUNK, "cpu", 1000)
    found = bytes_kept(model_of(SHAPE, objective, rate=0.0), micro_batch(SHAPE), half=True)
    assert few == pytest.approx(found, rel=0.01) and few < 0.99 * many


GB = 1e9
ON_A_GPU, ON_A_LAPTOP = 70 * GB, 5 * GB  # of 80 and of 8: the rest is for what is not counted


@pytest.mark.parametrize("recipe", scale.recipes())
def test_every_recipe_fits_the_machine_that_it_is_meant_for(recipe):
    _, needed = scale.memory_of_recipe(recipe)
    assert needed.peak < (ON_A_GPU if scale.for_a_gpu(recipe) else ON_A_LAPTOP)


def test_the_table_of_the_page_is_what_the_program_prints():
    page = (scale.RECIPES.parent / "docs/howto/paper-scale.md").read_text()
    assert "\n".join(scale.rows()) in page, "print it again: python benchmarks/scale.py"


def test_micro_batches_that_were_too_large_for_a_gpu_are_found():
    (large,), analysis = (
        scale.models_of("text/paper-large-exlm"),
        scale.models_of("text/analysis-paper"),
    )
    eight = next(model for model in analysis if model.name == "exlm-p38.7-k8")
    for model, gigabytes in ((large, 105), (eight, 113)):
        data = replace(model.data, tokens_per_micro_batch=65536)
        needed = memory.memory_of(
            data, model.model, model.longest, model.vocabulary, GPU, element=2
        )
        assert needed.peak == pytest.approx(gigabytes * GB, rel=0.02)
