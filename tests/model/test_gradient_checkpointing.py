"""Layers that are computed again in the backward pass: the same loss and gradients to the last
digit, less memory."""

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from exlm import (
    ExLMForMaskedLM,
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
    ExLMModel,
    InputError,
)
from exlm.model import encoder
from exlm.train.loop import recompute_layers
from tests.model.test_layout import each_sequence

SWITCHES = [
    {},
    {"expanded_layers": 1, "copy_embedding": 0.5, "boundary_states": "k"},
    {"objective": "mlm", "rotary": "1d"},
    {"objective": "ctc"},
]
HEADS = {
    ExLMForSequenceClassification: {"labels": torch.tensor([0, 1, 1, 0])},
    ExLMForTokenClassification: {"labels": torch.tensor([[0, 1, 1, 0, 1, 0, 1]]).expand(4, 7)},
    ExLMForQuestionAnswering: {
        "start_positions": torch.tensor([1, 1, 2, 0]),
        "end_positions": torch.tensor([2, 2, 2, 3]),
    },
}


def losses(config, batch, head=ExLMForMaskedLM, dtype=torch.float32):
    """Loss, gradients and how often a layer ran, without and with layers that are computed
    again."""
    for again in (False, True):
        torch.manual_seed(0)
        model, calls = head(config).train(), []
        if again:
            recompute_layers(model)
        for layer in model.exlm.layers:
            layer.ffn_in.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = model(**batch).loss
        after = torch.rand(1)  # the generator goes on as if nothing was computed again
        loss.backward()
        yield loss.detach(), after, [p.grad for p in model.parameters()], len(calls)


def assert_equal(pair):
    (loss, after, gradients, calls), (loss_again, after_again, gradients_again, calls_again) = pair
    assert torch.equal(loss, loss_again) and torch.equal(after, after_again)
    for left, right in zip(gradients, gradients_again, strict=True):
        assert (left is None and right is None) or torch.equal(left, right)
    assert calls_again == 2 * calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_loss_and_gradients_are_the_same(tiny_config, tiny_batch, switches, rate, dtype):
    rates = dict(
        hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, activation_dropout=rate
    )
    assert_equal(losses(tiny_config(**switches, **rates), tiny_batch, dtype=dtype))


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize("switches", SWITCHES[:2], ids=str)
def test_rows_without_padding_too(tiny_config, tiny_batch, monkeypatch, switches, rate):
    monkeypatch.setattr(ExLMModel, "removes_padding", lambda *_: True)
    monkeypatch.setattr(encoder, "flash_attention", each_sequence)
    assert_equal(losses(tiny_config(**switches, attention_probs_dropout_prob=rate), tiny_batch))


def test_traced_states_too(tiny_config, tiny_batch):
    assert_equal(
        losses(tiny_config(expanded_layers=1), {**tiny_batch, "output_hidden_states": True})
    )


@pytest.mark.parametrize("head", HEADS)
def test_heads_of_tasks_too(tiny_config, tiny_batch, head):
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    assert_equal(losses(tiny_config(num_labels=2, expanded_layers=1), inputs | HEADS[head], head))


def test_the_method_of_transformers_switches_it_on_and_off(tiny_config, tiny_batch):
    model = ExLMForMaskedLM(tiny_config())
    layers = model.exlm.layers
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing and all(layer.gradient_checkpointing for layer in layers)
    with torch.inference_mode():
        assert model.eval()(**tiny_batch).loss.isfinite()
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def test_nothing_inside_a_layer_is_kept(tiny_config, tiny_batch):
    """Autograd keeps hardly more elements for four layers than for two. (Their inputs it does not
    count.)"""

    def kept(layers: int, again: bool) -> int:
        model = ExLMForMaskedLM(
            tiny_config(num_hidden_layers=layers, intermediate_size=256)
        ).train()
        if again:
            recompute_layers(model)
        elements = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: elements.append(x.numel()) or x, lambda x: x
        ):
            model(**tiny_batch).loss  # noqa: B018
        return sum(elements)

    two_layers, two_again = (kept(4, again) - kept(2, again) for again in (False, True))
    assert two_again < two_layers / 10


def test_the_trainer_can_ask_for_it(tiny_config, tiny_batch, tmp_path):
    pytest.importorskip("accelerate")
    rows = [{name: t[b] for name, t in tiny_batch.items()} for b in range(4)]
    weights = []
    for again in (False, True):
        torch.manual_seed(0)
        model = ExLMForMaskedLM(tiny_config())
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=3,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            gradient_checkpointing=again,
        )
        Trainer(model, arguments, train_dataset=rows).train()
        assert model.is_gradient_checkpointing == again
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_model_that_cannot_is_named():
    class Lone(nn.Module):
        def gradient_checkpointing_enable(self, _):
            raise ValueError("Lone does not support gradient checkpointing.")

    with pytest.raises(
        InputError, match="Lone cannot compute its layers again; leave out gradient_checkpointing"
    ):
        recompute_layers(Lone())
