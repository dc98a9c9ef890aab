"""What the benchmarks compare: presets, batches, this library's models and their peers in
transformers.

Batches have equally long sequences of random tokens with the same number of masks in each, so that
the operations of a step are known exactly (`cost.py`).
"""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    RobertaConfig,
)
from transformers.modeling_outputs import MaskedLMOutput

from cost import Shape
from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.model.masked_lm import ExLMMaskedLMOutput
from exlm.ops.precision import autocast, float32_products
from exlm.train.devices import keep_freed_memory
from exlm.train.loop import recompute_layers
from exlm.train.optim import OptimizerConfig, build_optimizer

Batch = dict[str, Tensor]
PEERS = ("bert", "roberta", "modernbert")

PRESETS = {
    "molecules": Shape(128, 46, 0.15, 2, 256, 6, 4, 1024, 175),
    "molecules-1M": Shape(128, 46, 0.15, 2, 128, 4, 4, 512, 175),
    "molecules-paper": Shape(1424, 46, 0.15, 2, 768, 9, 12, 2048, 369),
    "text-small": Shape(4, 512, 0.15, 4, 256, 4, 4, 1024, 16000),
    "text-base-512": Shape(64, 512, 0.15, 4, 768, 12, 12, 3072, 50265),
    "text-base-128": Shape(256, 128, 0.15, 4, 768, 12, 12, 3072, 50265),
}


@dataclass(frozen=True)
class Contender:
    """A model and how it is trained.

    Attributes:
        name: exlm, mlm, or one of PEERS.
        precision: bf16, fp32 or auto as in `exlm pretrain`; `plain` is float32 with no setting
            touched.
        dropout: of hidden states and of attention.
        attention: implementation of a peer's attention, sdpa or eager.
        compile: layers through torch.compile.
        again: layers are computed again in the backward pass (gradient checkpointing).
    """

    name: str
    precision: str = "bf16"
    dropout: float = 0.0
    attention: str = "sdpa"
    compile: bool = False
    again: bool = False


def random_batch(shape: Shape, seed: int = 0) -> Batch:
    """BOS, random tokens of which `shape.masks` are [MASK], EOS; on the host, as the loader makes
    it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(
        5, shape.vocabulary - 1, (shape.batch, shape.length), generator=generator
    )
    tokens[:, 0], tokens[:, -1] = 0, 2
    order = torch.rand(shape.batch, shape.length - 2, generator=generator).argsort(1)
    masks = torch.full((shape.batch, 1), shape.masks)
    if shape.unequal_masks:
        pairs = shape.batch // 2
        masks[:pairs] += shape.masks // 2
        masks[pairs : 2 * pairs] -= shape.masks // 2
    is_masked = torch.zeros_like(tokens, dtype=torch.bool)
    is_masked[:, 1:-1] = order < masks
    return {
        "input_ids": tokens.masked_fill(is_masked, shape.vocabulary - 1),
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens.masked_fill(~is_masked, -100),
    }


def sizes(shape: Shape) -> dict[str, Any]:
    """Under the names that all configurations share."""
    return dict(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        max_position_embeddings=2 * shape.expanded + 8,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )


def peer_config(shape: Shape, contender: Contender) -> PreTrainedConfig:
    """The peer's configuration at the same sizes; every ModernBERT layer attends globally, as the
    others do."""
    common, dropout = sizes(shape), contender.dropout
    if contender.name == "modernbert":
        return ModernBertConfig(
            **common,
            cls_token_id=0,
            sep_token_id=2,
            layer_types=["full_attention"] * shape.layers,
            attention_dropout=dropout,
            mlp_dropout=dropout,
            embedding_dropout=dropout,
        )
    family = {"bert": BertConfig, "roberta": RobertaConfig}[contender.name]
    return family(**common, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def build_model(shape: Shape, contender: Contender, device: str) -> nn.Module:
    """Freshly initialised, in training mode, on its device."""
    torch.manual_seed(0)
    if contender.name in PEERS:
        config = peer_config(shape, contender)
        model = AutoModelForMaskedLM.from_config(config, attn_implementation=contender.attention)
    else:
        model = ExLMForMaskedLM(
            ExLMConfig(
                **sizes(shape),
                objective=contender.name,
                num_states=shape.num_states,
                expanded_layers="all" if shape.expanded_layers is None else shape.expanded_layers,
                boundary_states=1 if shape.boundary_states == 1 else "k",
                hidden_dropout_prob=contender.dropout,
                attention_probs_dropout_prob=contender.dropout,
                mask_token_id=shape.vocabulary - 1,
            )
        )
    if contender.compile:
        for layer in layers(model):
            layer.compile(dynamic=True)
    if contender.again:
        recompute_layers(model)
    return model.to(device).train()


def layers(model: nn.Module) -> nn.ModuleList:
    """The Transformer layers."""
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


def training_step(shape: Shape, contender: Contender, device: str) -> Callable[[], Tensor]:
    """A function that does one update with a fixed batch and returns the loss; forward, backward,
    fused AdamW."""
    keep_freed_memory()  # as in training; peers have it too
    model = build_model(shape, contender, device)
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=1e-4))
    batch = random_batch(shape)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with as_trained(device, contender.precision):
            loss = loss_of(model, batch, contender.precision)
            loss.backward()
            optimizer.step()
        return loss.detach()

    return step


def as_trained(device: str, precision: str) -> AbstractContextManager:
    """How our training computes products that stay float32; `plain` is how a process starts."""
    return (
        nullcontext() if precision == "plain" else float32_products(torch.device(device), precision)
    )


def output_of(
    model: nn.Module, batch: Batch, precision: str
) -> MaskedLMOutput | ExLMMaskedLMOutput:
    """Of a batch on the host; models of this library bring it to their device themselves."""
    device = next(model.parameters()).device
    if not isinstance(model, ExLMForMaskedLM):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
    if precision == "plain":
        return model(**batch)
    with autocast(device, precision):
        return model(**batch)


def loss_of(model: nn.Module, batch: Batch, precision: str) -> Tensor:
    loss = output_of(model, batch, precision).loss
    assert loss is not None
    return loss


def check(shape: Shape, contender: Contender, device: str) -> dict[str, float]:
    """Loss and number of parameters, once the loss is finite and every weight matrix has a finite
    gradient.

    A peer's loss must be the mean cross entropy of the masked tokens, that of `mlm` the mean of
    what it predicts there.

    Raises:
        AssertionError: if any of this does not hold.
    """
    contender = dataclasses.replace(contender, dropout=0.0, compile=False)
    model, batch = build_model(shape, contender, device), random_batch(shape)
    masked = batch["labels"] >= 0
    assert int(masked.sum()) == shape.batch * shape.masks
    with torch.no_grad():
        output = output_of(model, batch, "fp32")
    if not isinstance(output, ExLMMaskedLMOutput):
        assert output.logits is not None
        expected = F.cross_entropy(
            output.logits[masked.to(device)], batch["labels"][masked].to(device)
        )
        torch.testing.assert_close(output.loss, expected, rtol=1e-4, atol=0.0)
    elif contender.name == "mlm":
        assert output.count is not None and int(output.count) == int(masked.sum())
        with torch.no_grad():
            unlabelled = {name: tensor for name, tensor in batch.items() if name != "labels"}
            predicted = output_of(model.eval(), unlabelled, "fp32").logits
        assert predicted is not None
        expected = F.nll_loss(
            predicted[masked.to(device)].float(), batch["labels"][masked].to(device)
        )
        torch.testing.assert_close(output.loss, expected)
        model.train()
    del output
    loss = loss_of(model, batch, contender.precision)
    loss.backward()
    assert loss.isfinite(), f"the loss of {contender.name} is {loss}"
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            assert weight.grad is not None and weight.grad.isfinite().all(), (
                f"{name} has no finite gradient"
            )
    return {"loss": loss.item(), "parameters": sum(weight.numel() for weight in model.parameters())}
