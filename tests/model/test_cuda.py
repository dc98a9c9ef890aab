"""On a GPU: steps take batches from the host without waiting and have the losses and gradients of
the CPU; runs stop, go on and are shared by processes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from exlm import ExLMForMaskedLM, ExLMForSequenceClassification
from exlm.errors import Interrupted
from exlm.model.encoder import Spans, sdpa_attention, unpadded_attention
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig
from exlm.storage.files import to_json_types
from exlm.train import loop
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig

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


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["unpadded", "padded"])
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


def test_masked_attention_in_bfloat16_is_close_to_float32():
    query, key, value = torch.randn(3, 2, 4, 33, 16, device="cuda").unbind()
    mask = (torch.arange(33, device="cuda") < torch.tensor([[33], [20]], device="cuda"))[
        :, None, None
    ]
    module = torch.nn.Module()  # not read
    expected, _ = sdpa_attention(module, query.cpu(), key.cpu(), value.cpu(), mask.cpu())
    half, _ = sdpa_attention(module, query.bfloat16(), key.bfloat16(), value.bfloat16(), mask)
    torch.testing.assert_close(half.float().cpu(), expected, atol=0.05, rtol=0.05)


def test_unpadded_attention_drops_weights_and_keeps_their_mean():
    """With all values 1, a row of attention is the sum of its weights: 1 without dropout."""
    ends = torch.tensor([0, 700, 1000], dtype=torch.int32, device="cuda")
    query, key = torch.randn(2, 1, 4, 1000, 32, device="cuda", dtype=torch.bfloat16).unbind()
    value = torch.ones_like(key, requires_grad=True)
    spans = Spans(ends, 700, places=ends)  # attention reads no places
    whole = unpadded_attention(query, key, value, spans, spans, 0.0)
    torch.testing.assert_close(whole, torch.ones_like(whole), atol=0.02, rtol=0)
    torch.manual_seed(0)
    dropped = unpadded_attention(query, key, value, spans, spans, 0.1)
    torch.manual_seed(0)
    assert torch.equal(dropped, unpadded_attention(query, key, value, spans, spans, 0.1))
    assert dropped.std() > 0.01 and abs(dropped.float().mean() - 1) < 0.01
    dropped.sum().backward()
    assert value.grad.isfinite().all() and (value.grad != 0).any()


@pytest.fixture
def recipe(corpus, tmp_path):
    """A run of 20 updates in bfloat16 with evaluations and checkpoints."""
    return {
        "output": str(tmp_path / "run"),
        "data": DataConfig(
            str(corpus), 0.3, tokens_per_batch=512, tokens_per_micro_batch=256, eval_sequences=50
        ),
        "model": ArchitectureConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
        ),
        "train": LoopConfig(20, OptimizerConfig(1e-3, 2), precision="bf16", eval_every=10),
        "seed": 3,
        "device": "cuda",
    }


def losses(directory):
    lines = Path(directory, "log.jsonl").read_text().splitlines()
    records = map(json.loads, lines)
    return [record["exlm_loss"] for record in records if record["kind"] == "train"]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_run_stops_and_goes_on(recipe, monkeypatch, tmp_path, compiled, dropout):
    """With threads, evaluation and checkpoints; a GPU adds some sums in any order."""
    recipe["compile"] = compiled
    recipe["model"] = replace(recipe["model"], attention_probs_dropout_prob=dropout)
    whole = pretrain(**recipe | {"output": str(tmp_path / "whole")})
    update = loop.update

    def stopped(step, **options):
        if step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(step=step, **options)

    monkeypatch.setattr(loop, "update", stopped)
    with pytest.raises(Interrupted):
        pretrain(**recipe)
    monkeypatch.setattr(loop, "update", update)
    resumed = pretrain(**recipe)
    assert losses(recipe["output"]) == pytest.approx(losses(tmp_path / "whole"), rel=0.02)
    for name in ("nll", "joint_nll"):
        assert resumed["evaluation"][name] == pytest.approx(whole["evaluation"][name], rel=0.02)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_processes_share_a_run(recipe, tmp_path):
    alone = pretrain(**recipe | {"output": str(tmp_path / "alone")})
    path = tmp_path / "recipe.yaml"
    del recipe["device"]
    path.write_text(yaml.safe_dump(to_json_types(recipe)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc_per_node", "2", "-m", "exlm", "pretrain", str(path)]
    subprocess.run(command, check=True, timeout=300)
    result = json.loads(Path(recipe["output"], "result.json").read_text())
    assert result["evaluation"]["nll"] == pytest.approx(alone["evaluation"]["nll"], rel=0.02)
