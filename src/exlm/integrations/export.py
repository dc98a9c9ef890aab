"""Models as ONNX files, which run without PyTorch."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from exlm.errors import InputError, optional
from exlm.model.downstream import (
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
)
from exlm.model.modeling_exlm import ExLMModel, on_axes
from exlm.ops.expansion import Lattice
from exlm.ops.precision import exact_level
from exlm.storage.manifest import new_directory
from exlm.storage.models import load_model, verify
from exlm.tasks.encoders import load_config

OUTPUTS: dict[Any, list[str]] = {
    ExLMModel: ["last_hidden_state", "sentence_embedding"],
    **dict.fromkeys((ExLMForSequenceClassification, ExLMForTokenClassification), ["logits"]),
    ExLMForQuestionAnswering: ["start_logits", "end_logits"],
}


def export(model: str, output: str, format: Literal["onnx"] = "onnx") -> Path:
    """Writes a model as `model.onnx`, with its tokenizer and configuration, for use without
    PyTorch.

    The inputs are input_ids and attention_mask [rows, length] int64, padded on the right, for any
    number of rows and any length. A fine-tuned model gives `logits`, or for questions
    `start_logits` and `end_logits`. A pre-trained one gives `last_hidden_state` [rows, length,
    width] and `sentence_embedding` [rows, width], as `exlm embed` does.

    Args:
        model: a pre-trained or fine-tuned model directory.
        output: directory to write.
        format: the file format; there is only `onnx`."""
    optional("onnxscript", "export", "exlm export")
    verify(model)
    architectures = load_config(model).architectures or []
    kind = next((kind for kind in OUTPUTS if kind.__name__ in architectures), ExLMModel)
    network, tokenizer = load_model(model, kind)
    config = network.config
    if config.states_per_boundary > 1 and config.read_layers > config.plain_layers:
        raise InputError(
            "a model with boundary_states k cannot be exported: its input grows inside the model"
        )
    inputs = torch.full((2, 7), config.bos_token_id), torch.ones(2, 7, dtype=torch.long)
    exact_level(network.device)  # measured now; the measurement is no part of the model
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length")}
    with new_directory(Path(output)) as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own inside
        program = torch.onnx.export(
            _Fixed(network).eval(),
            inputs,
            input_names=["input_ids", "attention_mask"],
            output_names=OUTPUTS[kind],
            dynamic_shapes=(axes, axes),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(folder / "model.onnx")
        tokenizer.save_pretrained(folder)
        config.save_pretrained(folder)
    print(
        f"{output}: model.onnx with {' and '.join(OUTPUTS[kind])}, tokenizer.json and config.json"
    )
    return Path(output) / "model.onnx"


class _Fixed(nn.Module):
    """A model as a function from tensors to a tuple of tensors, without steps that depend on their
    content."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        network.base_model.expand_unmasked = self._expand_unmasked

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.network, ExLMModel):
            states = self.network.task_states(input_ids, attention_mask).to_tuple()
            return *states, self.network.embedding(input_ids, attention_mask)
        return self.network(input_ids, attention_mask).to_tuple()

    def _expand_unmasked(self, input_ids: Tensor, attention_mask: Tensor) -> Lattice:
        """What `ExLMModel.expand_unmasked` gives for right-padded sequences, where every token
        keeps its place."""
        config = self.network.config
        ids, real = (
            x.repeat_interleave(config.repeat, 1) for x in (input_ids, attention_mask.bool())
        )
        index = torch.arange(ids.shape[1]).expand_as(ids)
        none = torch.zeros_like(index)
        unused: dict[str, Any] = dict.fromkeys(
            ("state_index", "ordinal", "targets", "target_index"), none
        )
        unused |= dict.fromkeys(("state_lengths", "target_lengths"), none[:, 0])
        words = index[..., None]
        lattice = Lattice(
            ids, real, words, copy=none, source=index, first=index, target_is_mask=~real, **unused
        )
        expanded = on_axes(lattice, config.rotary_axes(copies=config.expands))
        if not config.plain_layers:
            return expanded
        plain = on_axes(lattice, config.rotary_axes(copies=False))
        return (
            plain if config.read_layers <= config.plain_layers else replace(expanded, plain=plain)
        )
