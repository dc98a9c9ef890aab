"""A fine-tuned model and what it keeps of its task."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize
from exlm.data.columns import text_columns
from exlm.data.formats import format_of
from exlm.errors import InputError, note
from exlm.storage.models import check_model
from exlm.tasks.encoders.loading import ModelClasses, kept_task, load_config, load_finetuned
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.train import devices

# The largest mean of labels, in their standard deviations, that a float32 output can include
LARGEST_OFFSET = 10_000
SDF_STRUCTURES = "smiles"  # what the column of the structures of an .sdf file is called
# Fields whose keys in files are other words
KEYS = {"class_names": "classes", "binary_names": "words", "unit_pattern": "unit"}


@dataclass(frozen=True)
class SavedTask:
    """What a model or a baseline keeps of its task: `task` in config.json or baseline.json. A field
    has its default where the type of task has no such thing, and where an earlier version of this
    library did not keep it."""

    task_type: str = ""  # as in `TaskConfig`; "" for a model that is only pre-trained
    max_length: int = 0  # longest text, pair of texts, or window of a question, in tokens

    # of tables
    text_column: str = ""  # column of the texts
    pair_column: str | None = None  # column of the second texts
    label_columns: list[str] = field(default_factory=list)  # columns of the labels
    class_names: list[str] | None = None  # of several classes, by index
    binary_names: list[str] | None = None  # what labels 0 and 1 are called, if they have names
    molecules: bool | None = None  # whether the texts are SMILES; None: not known
    standardize: Standardize = "none"  # how molecules are rewritten before the model reads them
    mean: list[float] = field(default_factory=list)  # [labels], what outputs are shifted by
    std: list[float] = field(default_factory=list)  # [labels], what outputs are multiplied by
    # [labels], regression of several labels: standard deviations in train, the units of errors
    error_units: list[float] | None = None
    # fitted on valid, the divisor of logits; None for regression
    temperature: float | None = None
    # regression, or one class a row: for every label the sorted errors on valid (`errors_to_keep`)
    validation_errors: list[list[float]] | None = None

    # of token classification
    unit_pattern: str = ""  # a regular expression for what has a label
    mask_column: str | None = None  # column that says which units count

    # of question answering
    stride: int = 0  # tokens that neighbouring windows share
    max_answer: int = 0  # longest answer in tokens

    @property
    def label_type(self) -> LabelType:
        """That of the labels of a table; KeyError for another task."""
        return LABEL_TYPES[self.task_type]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What a file keeps."""
        keys = {name: KEYS.get(name, name) for name in cls.__dataclass_fields__}
        return cls(**{name: content[key] for name, key in keys.items() if key in content})

    def to_json(self) -> dict[str, Any]:
        """What goes into a file: all fields that have something in them."""
        return {
            KEYS.get(name, name): value
            for name, value in vars(self).items()
            if value or value is False
        }

    def text_column_in(self, columns: Collection[Any], path: str) -> str | None:
        """The column of the file `path` that has the texts: as it is called in the training, in any
        case, or for molecules the one called smiles; of an .sdf file that of the structures,
        whatever its properties are called. None if there is none."""
        if format_of(path) == "sdf":
            return SDF_STRUCTURES
        if self.text_column and self.text_column in columns:
            return self.text_column
        in_any_case = {str(column).lower(): str(column) for column in columns}
        if self.text_column and self.text_column.lower() in in_any_case:
            return in_any_case[self.text_column.lower()]
        structures = text_columns(columns, "smiles") if self.molecules else []
        return structures[0] if len(structures) == 1 else None


def load_saved_task(path: str) -> SavedTask:
    """What a fine-tuned model keeps of its task; InputError if it is not fine-tuned."""
    check_model(path)
    content = kept_task(load_config(path))
    if content is None:
        raise InputError(
            f"{path} was not made by exlm finetune; give the output directory of one (pipelines of "
            "transformers take other models, docs/howto/other-tools.md)"
        )
    return SavedTask.from_json(content)


class TunedModel(NamedTuple):
    """A model with the head of a task, and its tokenizer."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class SeedModel:
    """The model of one seed, loaded when it is used first: the ensemble of a fine-tuning has
    several. `model_classes` have the head of its type of task."""

    directory: Path
    saved_task: SavedTask
    model_classes: ModelClasses
    device: str

    @cached_property
    def loaded(self) -> TunedModel:
        """The model on its device."""
        network, tokenizer = load_finetuned(str(self.directory), self.model_classes)
        devices.place_model(network, self.device)
        return TunedModel(network, tokenizer)


def fold_label_scale(network: PreTrainedModel, saved_task: SavedTask) -> SavedTask:
    """Makes the last layer of a regression network return real units, in place; returns what is
    saved with it, with mean 0 and std 1. The outputs are those of its last linear layer: the heads
    of all families end with it. The layer stays as it is where float32 could not tell the labels
    apart."""
    mean = torch.tensor(saved_task.mean, dtype=torch.float64)
    std = torch.tensor(saved_task.std, dtype=torch.float64)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    has_no_layer = not layers or layers[-1].bias is None or layers[-1].out_features != len(mean)
    if has_no_layer or (mean.abs() > LARGEST_OFFSET * std).any():
        note(
            f"the head of {network.config.model_type} stays standardised; use exlm predict, "
            f"not pipelines"
        )
        return saved_task
    last = layers[-1]
    with torch.no_grad():
        last.weight.copy_(last.weight.cpu().double() * std[:, None])
        last.bias.copy_(last.bias.cpu().double() * std + mean)
    return replace(saved_task, mean=[0.0] * len(mean), std=[1.0] * len(std))
