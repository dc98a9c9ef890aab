"""A whole step on a GPU: batches from the host, no waiting, the losses and gradients of the CPU."""

import pytest
import torch

from exlm import ExLMForMaskedLM, ExLMForSequenceClassification

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
SWITCHES = [
    {},
    {"rotary": "1d"},
    {"rotary": "full", "expanded_layers": 1},
    {"dag": "sparse", "boundary_states": "k"},
    {"objective": "mlm"},
    {"objective": "ctc"},
]
SWITCHES += [
    {"order_prior": 10.0, "sticky_prior": 3.0, "copy_embedding": 0.1},
    {"order_prior": 10.0, "sticky_prior": 3.0, "copy_embedding": 0.1, "expanded_layers": 1},
]


def step(model, batch, half):
    model.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
        output = model(**batch)
    output.total.backward()
    return output.total


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["packed", "padded"])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_a_step_does_not_wait_for_the_device(tiny_config, tiny_batch, switches, dropout):
    model = ExLMForMaskedLM(tiny_config(**switches, attention_probs_dropout_prob=dropout)).cuda()
    step(model, tiny_batch, half=True)  # compiles kernels, which may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        total = step(model, tiny_batch, half=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert total.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_losses_and_gradients_are_those_of_the_cpu(tiny_config, tiny_batch, switches, half):
    model = ExLMForMaskedLM(tiny_config(**switches)).eval()
    expected = model(**tiny_batch).total
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    total = step(model.cuda(), tiny_batch, half)
    torch.testing.assert_close(total.cpu(), expected, rtol=0.02 if half else 1e-3, atol=0)
    for ours, theirs in zip(model.parameters(), gradients, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(
            ours.grad.cpu(), theirs, rtol=0, atol=(0.1 if half else 5e-3) * scale + 1e-6
        )


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_classification_takes_batches_from_the_host(tiny_config, tiny_batch, pooling):
    model = ExLMForSequenceClassification(
        tiny_config(num_labels=2, classifier_pooling=pooling)
    ).eval()
    inputs = {name: tiny_batch[name] for name in ("input_ids", "attention_mask")}
    expected = model(**inputs).logits
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(
            model.cuda()(**inputs).logits.cpu(), expected, atol=0.05, rtol=0.05
        )
