"""Models as ONNX files, which run without PyTorch."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from exlm.errors import InputError, import_optional, note
from exlm.model.downstream import (
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
)
from exlm.model.modeling_exlm import ExLMModel
from exlm.ops.precision import exact_level
from exlm.storage.manifest import new_directory, write_manifest
from exlm.storage.models import check_model, load_model, longest_text, task_entry
from exlm.storage.tokenizers import save_tokenizer
from exlm.tasks.encoders.loading import load_config
from exlm.tasks.encoders.saved_task import read_text_settings

# The names of the outputs by the class of a model
OUTPUTS: dict[type[PreTrainedModel], list[str]] = {
    ExLMModel: ["last_hidden_state", "sentence_embedding"],
    ExLMForSequenceClassification: ["logits"],
    ExLMForTokenClassification: ["logits"],
    ExLMForQuestionAnswering: ["start_logits", "end_logits"],
}


def export(model: str, output: str, format: Literal["onnx"] = "onnx") -> Path:
    """Writes a model as `model.onnx`, with its tokenizer and configuration, for use without
    PyTorch, and the manifest that `exlm verify` reads.

    The inputs are input_ids and attention_mask [rows, length] int64, padded on the right, for any
    number of rows and any length. A fine-tuned model gives `logits`, or for questions
    `start_logits` and `end_logits`. A pre-trained one gives `last_hidden_state` [rows, length,
    width] and `sentence_embedding` [rows, width], as `exlm embed` does. `tokenizer.json` cuts texts
    and pairs where `exlm predict` and `exlm embed` cut them.

    Args:
        model: a pre-trained or fine-tuned model directory.
        output: directory to write.
        format: the file format; there is only `onnx`."""
    import_optional("onnxscript", "export", "exlm export")
    onnx = import_optional("onnx", "export", "exlm export")
    check_model(model)
    architectures = load_config(model).architectures or []
    model_class = next((head for head in OUTPUTS if head.__name__ in architectures), ExLMModel)
    network, tokenizer = load_model(model, model_class)
    config = network.config
    _check_exportable(config)
    # The exporter follows one batch through the model. `variable_axes` leave its size open.
    input_ids = torch.full((2, 7), config.bos_token_id)
    attention_mask = torch.ones(2, 7, dtype=torch.long)
    exact_level(network.device)  # measured here, as the exporter must not follow the measurement
    variable_axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("length")}
    with new_directory(Path(output)) as folder, torch.no_grad(), _quiet_exporter():
        program = torch.onnx.export(
            _ToTuple(network).eval(),
            (input_ids, attention_mask),
            input_names=["input_ids", "attention_mask"],
            output_names=OUTPUTS[model_class],
            dynamic_shapes=(variable_axes, variable_axes),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        onnx_model = program.model_proto
        _remove_debug_data(onnx_model)
        onnx.save(onnx_model, folder / "model.onnx")
        _write_cutting_tokenizer(folder, tokenizer)
        config.save_pretrained(folder)
        write_manifest(folder, list(folder.iterdir()))
    outputs = " and ".join(OUTPUTS[model_class])
    print(
        f"{output}: model.onnx with {outputs}, config.json, and tokenizer.json, which cuts what is "
        f"longer than {longest_text(tokenizer)} tokens"
    )
    standardize = read_text_settings(config).standardize
    if standardize != "none":
        note(f"the model was trained with standardize {standardize}; write molecules so, too")
    return Path(output) / "model.onnx"


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences the warnings of PyTorch's exporter about its own code, and the one that torchvision
    is not installed, which no model needs."""

    def is_useful(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("torchvision is not installed")

    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    logger.addFilter(is_useful)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(is_useful)


def _remove_debug_data(message: Any) -> None:
    """Removes from a protobuf message, and from all messages in it, how the model was made, such as
    paths of source files, and shapes of inner values: quantization would refuse some of these."""
    for field, content in message.ListFields():
        if field.name in ("metadata_props", "doc_string", "value_info"):
            message.ClearField(field.name)
        elif field.message_type:
            is_single = hasattr(content, "ListFields")
            for inner in [content] if is_single else content:
                _remove_debug_data(inner)


def _check_exportable(config: PreTrainedConfig) -> None:
    """Raises InputError for a model that an ONNX file cannot hold."""
    if config.tasks_copy_boundaries:
        raise InputError(
            "a model with boundary_states k cannot be exported: its input grows inside the model"
        )
    if any(task_entry(config).get("mean") or []):
        raise InputError(
            "the labels of this model have too large an offset for its float32 outputs, so that "
            "only exlm predict gives them; subtract it from the labels and fine-tune again"
        )


def _write_cutting_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Writes a tokenizer that cuts by itself what is too long for its model, the longer text of a
    pair first. (transformers cuts as each call says.)"""
    save_tokenizer(folder, tokenizer)
    file = str(folder / "tokenizer.json")
    cutting = Tokenizer.from_file(file)
    cutting.enable_truncation(longest_text(tokenizer), direction=tokenizer.truncation_side)
    cutting.save(file)


class _ToTuple(nn.Module):
    """A model as a function from tensors to a tuple of tensors."""

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(self.network, ExLMModel):
            return self.network(input_ids, attention_mask).to_tuple()
        hidden_states = self.network(input_ids, attention_mask).last_hidden_state
        return hidden_states, self.network.embedding(input_ids, attention_mask)
