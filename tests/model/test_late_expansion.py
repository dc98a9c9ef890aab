"""Late expansion: all layers but the last ones read the plain sequence, as in an MLM."""

import pytest
import torch

from exlm import ExLMForMaskedLM, ExLMForQuestionAnswering, ExLMForSequenceClassification, ExLMModel


def test_as_many_expanded_layers_as_there_are_is_the_paper(tiny_config, tiny_batch):
    losses = []
    for layers in ("all", 2):
        torch.manual_seed(0)
        losses.append(
            ExLMForMaskedLM(tiny_config(expanded_layers=layers)).eval()(**tiny_batch).total
        )
    assert torch.equal(*losses)


def test_layers_before_the_expansion_are_those_of_an_mlm(tiny_config, tiny_batch):
    torch.manual_seed(0)
    late = ExLMModel(tiny_config(expanded_layers=1, copy_embedding=0.5)).eval()
    torch.manual_seed(0)
    plain = ExLMModel(tiny_config(objective="mlm")).eval()
    assert torch.equal(late.layers[1].ffn_in.weight, plain.layers[1].ffn_in.weight)
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    real = tiny_batch["attention_mask"].bool()
    hidden = late.encode(late.expand(**inputs), read_layers=1).hidden
    expected = plain.encode(plain.expand(**inputs), read_layers=1).hidden
    torch.testing.assert_close(hidden[real], expected[real])


@pytest.mark.parametrize("boundary", [1, "k"])
def test_the_copies_of_a_mask_go_on_from_its_hidden_state(tiny_config, tiny_batch, boundary):
    """The hidden states after the expansion, from the layers one by one."""
    model = ExLMModel(
        tiny_config(expanded_layers=1, copy_embedding=0.5, boundary_states=boundary)
    ).eval()
    inputs = []
    model.layers[0].register_forward_hook(lambda _, __, output: inputs.append(output))
    model.layers[1].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    lattice = model.expand(**tiny_batch)
    model.encode(lattice)
    plain, expanded = inputs
    assert plain.shape[1] == tiny_batch["input_ids"].shape[1]
    for b, n in enumerate(lattice.attention_mask.sum(1).tolist()):
        expected = (
            plain[b, lattice.source_token[b, :n]] + model.copies.weight[lattice.copy_index[b, :n]]
        )
        torch.testing.assert_close(expanded[b, :n], expected)
    assert (model.copies.weight[0] == 0).all() and 0.3 < model.copies.weight[1:].std() < 0.7


def test_every_weight_of_a_late_expansion_learns(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(tiny_config(expanded_layers=1, copy_embedding=0.5))
    model(**tiny_batch).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert (model.exlm.copies.weight.grad[1:].abs().sum(1) > 0).all() and (
        model.exlm.copies.weight.grad[0] == 0
    ).all()


@pytest.mark.parametrize("boundary", [1, "k"])
def test_questions_are_read_before_the_expansion(tiny_config, tiny_batch, boundary):
    ids, mask = tiny_batch["input_ids"], tiny_batch["attention_mask"]
    torch.manual_seed(0)
    late = ExLMForQuestionAnswering(tiny_config(expanded_layers=1, boundary_states=boundary)).eval()
    torch.manual_seed(0)
    told = ExLMForQuestionAnswering(tiny_config(task_layers=1)).eval()
    torch.testing.assert_close(late(ids, mask).start_logits, told(ids, mask).start_logits)
    late.config.task_layers = 2
    assert late(ids, mask).end_logits.shape == ids.shape


def test_layers_read_one_by_one_are_those_of_the_whole_model(tiny_config, tiny_batch):
    """The layers before a late expansion rotate by one axis, also if a later layer is read."""
    model = ExLMModel(tiny_config(expanded_layers=1, rotary="full", initializer_range=0.3)).eval()
    sequences = model.task_input(tiny_batch["input_ids"], tiny_batch["attention_mask"])
    model.config.task_layers = 2
    told = model.task_input(tiny_batch["input_ids"], tiny_batch["attention_mask"])
    _, of_layers = model.encode(told, read_layers=2, every_layer=True)
    assert of_layers is not None
    for layers in (1, 2):
        hidden, _ = model.encode(sequences, read_layers=layers)
        expected = model.norm(of_layers[layers]) if layers == 1 else of_layers[layers]
        torch.testing.assert_close(hidden, expected)


@pytest.mark.parametrize("boundary", [1, "k"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_tasks_read_the_layers_that_they_are_told_to(tiny_config, tiny_batch, pooling, boundary):
    """By default those before a late expansion: what comes behind them serves the states."""
    ids, mask = tiny_batch["input_ids"], tiny_batch["attention_mask"]
    torch.manual_seed(0)
    switches = {"expanded_layers": 1, "boundary_states": boundary, "classifier_pooling": pooling}
    late = ExLMForSequenceClassification(tiny_config(**switches)).eval()
    assert late.config.task_layers == 1
    torch.manual_seed(0)
    told = ExLMForSequenceClassification(
        tiny_config(task_layers=1, classifier_pooling=pooling)
    ).eval()
    torch.testing.assert_close(late(ids, mask).logits, told(ids, mask).logits)
    late.config.task_layers = 2
    assert not torch.allclose(late(ids, mask).logits, told(ids, mask).logits, atol=1e-3)
