"""A fine-tuned model and what is saved with it about its task."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize
from exlm.errors import InputError, note
from exlm.storage.models import verify
from exlm.tasks.encoders import ModelClasses, load_config, load_finetuned
from exlm.train import distributed

# The precision of all scores of a training, whatever its own: that of predictions, so that both
# agree, on every machine.
SCORING = "fp32"
# The largest mean of labels, in their standard deviations, that a float32 output can include
LARGEST_OFFSET = 10_000


class SavedTask(TypedDict, total=False):
    """What is saved about its task with a fine-tuned model: `task` in its config.json. Models of
    earlier versions lack some keys."""

    task_type: str  # as in `TaskConfig`
    max_length: int  # longest text, pair of texts, or window of a question, in tokens
    precision: str  # of the scores of the training; predictions have their own

    # TableFinetuning and what builds on it
    text_column: str  # column of the texts
    pair_column: str | None  # column of the second texts
    label_columns: list[str]  # columns of the labels
    classes: list[str] | None  # the label values, by class index
    words: list[str] | None  # what labels 0 and 1 are called, if the table has words
    molecules: bool | None  # whether the texts are SMILES
    standardize: Standardize  # how molecules are rewritten before the model reads them
    mean: list[float]  # [labels], regression: what the head's outputs are shifted by
    std: list[float]  # [labels], regression: what the head's outputs are multiplied by
    # [labels], regression of several labels: standard deviations in train, the units of errors
    error_units: list[float] | None
    temperature: float  # not for regression: fitted on valid, the divisor of the logits
    # regression, or one class a row: for every label the sorted errors on valid (`errors_to_keep`)
    validation_errors: list[list[float]]

    # TokenClassification
    unit: str  # a regular expression for what has a label
    mask_column: str | None  # column that says which units count

    # QuestionAnswering
    stride: int  # tokens that neighbouring windows share
    max_answer: int  # longest answer in tokens


def load_saved_task(path: str) -> SavedTask:
    """What was saved with a fine-tuned model about its task."""
    verify(path)
    saved = getattr(load_config(path), "task", None)
    if saved is None:
        raise InputError(
            f"{path} is not fine-tuned; run exlm finetune and give its output directory"
        )
    return saved


class TunedModel(NamedTuple):
    """A model with the head of a task, and its tokenizer."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


@dataclass(frozen=True)
class SeedModel:
    """The model of one seed, loaded when it is used first: the ensemble of a fine-tuning has
    several. `model_classes` have the head of its kind of task."""

    directory: Path
    saved: SavedTask
    model_classes: ModelClasses
    device: str

    @cached_property
    def loaded(self) -> TunedModel:
        """The model on its device."""
        network, tokenizer = load_finetuned(str(self.directory), self.model_classes)
        distributed.place_model(network, self.device)
        return TunedModel(network, tokenizer)


def fold_label_scale(network: PreTrainedModel, saved: SavedTask) -> SavedTask:
    """Makes the last layer of a regression network return real units, in place; returns what is
    saved with it, with mean 0 and std 1. The outputs are those of its last linear layer: the heads
    of all families end with it. The layer stays as it is where float32 could not tell the labels
    apart."""
    mean = torch.tensor(saved["mean"], dtype=torch.float64)
    std = torch.tensor(saved["std"], dtype=torch.float64)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    has_no_layer = not layers or layers[-1].bias is None or layers[-1].out_features != len(mean)
    if has_no_layer or (mean.abs() > LARGEST_OFFSET * std).any():
        note(
            f"the head of {network.config.model_type} stays standardised; use exlm predict, "
            f"not pipelines"
        )
        return saved
    last = layers[-1]
    with torch.no_grad():
        last.weight.copy_(last.weight.cpu().double() * std[:, None])
        last.bias.copy_(last.bias.cpu().double() * std + mean)
    return {**saved, "mean": [0.0] * len(mean), "std": [1.0] * len(std)}
