"""The arguments of transformers' own encoders, and its attention interface."""

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from exlm import (
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
    ExLMModel,
    InputError,
)
from exlm.model.encoder import ALL_ATTENTION_FUNCTIONS

READERS = {
    ExLMModel: AutoModel,
    ExLMForSequenceClassification: AutoModelForSequenceClassification,
    ExLMForTokenClassification: AutoModelForTokenClassification,
    ExLMForQuestionAnswering: AutoModelForQuestionAnswering,
}
HEADS = READERS | {ExLMForMaskedLM: AutoModelForMaskedLM}
SWITCHES = [
    {},
    {"expanded_layers": 1},
    {"expanded_layers": 1, "task_layers": 2},
    {"objective": "mlm", "repeat": 2},
]


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def first_output(model: torch.nn.Module, batch: dict) -> Tensor:
    """What the model returns first; of tokens, without padding."""
    with torch.no_grad():
        output = model.eval()(**batch).to_tuple()[0]
    mask = batch.get("attention_mask")
    return output if mask is None or output.shape[:2] != mask.shape else output[mask.bool()]


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("head", READERS)
def test_vectors_in_place_of_tokens_and_numbers_of_words(tiny_config, tiny_batch, head, switches):
    model = head(tiny_config(**switches, initializer_range=0.3))
    inputs = inputs_of(tiny_batch)
    expected = first_output(model, inputs)
    vectors = model.get_input_embeddings()(inputs["input_ids"])
    given = {
        "inputs_embeds": vectors,
        "attention_mask": inputs["attention_mask"],
        "position_ids": torch.arange(vectors.shape[1])[None],
        "token_type_ids": torch.zeros_like(inputs["input_ids"]),
        "output_attentions": False,
    }
    torch.testing.assert_close(first_output(model, given), expected)
    far = inputs | {"position_ids": 2 * torch.arange(vectors.shape[1])[None]}
    assert not torch.allclose(first_output(model, far), expected, atol=1e-4)


def test_positions_of_an_answer_may_have_a_column_and_lie_outside_of_the_text(
    tiny_config, tiny_batch
):
    """As in models of transformers; a position outside of the text does not count in the loss."""
    model = ExLMForQuestionAnswering(tiny_config()).eval()
    inputs = inputs_of(tiny_batch)
    starts, ends = torch.tensor([1, 2, 0, 1]), torch.tensor([3, 2, 1, 1])
    output = model(**inputs, start_positions=starts, end_positions=ends)
    column = model(**inputs, start_positions=starts[:, None], end_positions=ends[:, None])
    assert torch.equal(column.loss, output.loss)
    cross_entropy = torch.nn.functional.cross_entropy
    of_starts = cross_entropy(output.start_logits, starts, reduction="none")
    of_ends = cross_entropy(output.end_logits, ends, reduction="none")
    length = inputs["input_ids"].shape[1]
    for outside in (length, 10_000, -1, -100):
        starts[3], ends[2:] = outside, outside
        loss = model(**inputs, start_positions=starts, end_positions=ends).loss
        torch.testing.assert_close(loss, (of_starts[:3].sum() + of_ends[:2].sum()) / 5)
    nowhere = torch.full((4,), length)
    assert model(**inputs, start_positions=nowhere, end_positions=nowhere).loss == 0


@pytest.mark.parametrize("head", HEADS)
def test_what_cannot_be_used_is_named(tiny_config, tiny_batch, head):
    inputs = inputs_of(tiny_batch)
    model = head(tiny_config())
    with pytest.raises(InputError, match="token_type_ids are not all 0"):
        model(**inputs, token_type_ids=torch.ones_like(inputs["input_ids"]))
    with pytest.raises(InputError, match="output_attentions cannot be used"):
        model(**inputs, output_attentions=True)
    with pytest.raises(InputError, match="give "):
        model(attention_mask=inputs["attention_mask"])
    if head is not ExLMForMaskedLM:
        model = head(tiny_config(boundary_states="k"))
    with pytest.raises(InputError, match="position_ids cannot be used"):
        model(**inputs, position_ids=torch.arange(7)[None])
    with pytest.raises(InputError, match="inputs_embeds cannot be used"):
        model(inputs_embeds=torch.zeros(4, 7, 32))


def test_a_lattice_takes_the_place_of_the_batch_that_it_was_made_of(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(tiny_config()).eval()
    lattice = model.exlm.expand(**tiny_batch)
    assert torch.equal(model(lattice=lattice).loss, model(**tiny_batch).loss)
    for name, tensor in tiny_batch.items():
        with pytest.raises(InputError, match=f"{name} cannot be used: the lattice has all"):
            model(lattice=lattice, **{name: tensor})


@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_loaded_by_its_auto_class_with_either_attention(
    tiny_config, tiny_batch, tmp_path, head
):
    model = head(tiny_config(expanded_layers=1, initializer_range=0.3))
    model.save_pretrained(tmp_path)
    inputs = inputs_of(tiny_batch)
    expected = first_output(model, inputs)
    assert torch.equal(first_output(HEADS[head].from_pretrained(tmp_path), inputs), expected)
    eager = HEADS[head].from_pretrained(tmp_path, attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    torch.testing.assert_close(first_output(eager, inputs), expected, atol=1e-5, rtol=1e-5)
    model.set_attn_implementation("eager")
    assert torch.equal(first_output(model, inputs), first_output(eager, inputs))


def test_attention_of_a_server_reads_texts_in_one_row(tiny_config, tiny_batch, monkeypatch):
    """As vLLM does: its function, by name, gets what it needs beside the inputs."""
    inputs = inputs_of(tiny_batch)
    model = ExLMModel(tiny_config(initializer_range=0.3))
    real = inputs["attention_mask"].bool()
    expected = first_output(model, inputs)
    layers = []

    def one_row(module, query, key, value, attention_mask, scaling, text_of_token, **options):
        layers.append(module.layer_idx)
        assert attention_mask is None and not module.is_causal
        mask = text_of_token[:, None] == text_of_token
        scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2)[0].flatten(1), None

    monkeypatch.setitem(AttentionInterface._global_mapping, "server", one_row)
    assert ALL_ATTENTION_FUNCTIONS["server"] is one_row and model.is_backend_compatible()
    model.set_attn_implementation("server")
    lengths = real.sum(1)
    row = {
        "input_ids": inputs["input_ids"][real][None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "text_of_token": torch.repeat_interleave(torch.arange(4), lengths),
    }
    torch.testing.assert_close(first_output(model, row)[0], expected, atol=1e-5, rtol=1e-5)
    assert layers == [0, 1]


@pytest.mark.parametrize("head", [ExLMModel, ExLMForSequenceClassification])
def test_a_model_that_reads_is_compiled_as_one_graph(tiny_config, tiny_batch, head):
    model = head(tiny_config(expanded_layers=1, task_layers=2)).eval()
    inputs = inputs_of(tiny_batch)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(first_output(compiled, inputs), first_output(model, inputs))


def test_a_traced_model_fits_batches_with_padding(tiny_config, tiny_batch):
    model = ExLMModel(tiny_config(return_dict=False)).eval()
    one_text = torch.randint(5, 9, (1, 4)), torch.ones(1, 4, dtype=torch.long)
    traced = torch.jit.trace(model, one_text)
    inputs = tiny_batch["input_ids"], tiny_batch["attention_mask"]
    real = tiny_batch["attention_mask"].bool()
    torch.testing.assert_close(traced(*inputs)[0][real], model(*inputs)[0][real])


@pytest.mark.parametrize("head", HEADS)
def test_linear_layers_can_be_quantised(tiny_config, tiny_batch, head):
    torch.manual_seed(0)
    model = head(tiny_config(num_labels=2)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
    inputs = inputs_of(tiny_batch)
    expected, output = first_output(model, inputs), first_output(quantised, inputs)
    real = expected > -1e30
    assert 0 < float((output - expected)[real].abs().max()) < 0.1
    if head is ExLMForMaskedLM:
        with pytest.raises(InputError, match="loss .* quantise model.exlm alone"):
            quantised(**tiny_batch)
