"""Encoders fine-tuned for a table: it is read once, then any number of seeds are trained."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.errors import note
from exlm.ops.loss import LossSum
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import EncoderSource, load_config, load_encoder_tokenizer
from exlm.tasks.encoders.saved_task import SavedTask, read_model_texts
from exlm.tasks.encoders.supervised import ShuffledBatches, train_with_seed
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.results import RunResult
from exlm.tasks.rows.datasets import load_labelled
from exlm.tasks.rows.reading import TableTokens, TextReader, note_spelling, spelling_of
from exlm.tasks.rows.splits import RowSplit
from exlm.tasks.tables.certainty import errors_to_keep, fit_temperature
from exlm.tasks.tables.outputs import (
    make_predictions,
    make_targets,
    make_token_targets,
    padding_side,
    run_network,
)
from exlm.tasks.tables.scoring import LabelledPredictions
from exlm.tasks.tables.seed_results import write_results
from exlm.tasks.tables.table_config import infer_settings
from exlm.tasks.tables.table_task import TableTask, deviations, make_table_task
from exlm.tasks.tables.unit_table import load_unit_table

DEFAULT_LENGTH = 512
# The largest mean of labels, in their standard deviations, that a float32 output can include
LARGEST_OFFSET = 10_000


def read_table_task(encoder: EncoderSource, config: TaskConfig, device: str) -> TableTask:
    """Reads the table of a config for an encoder that is trained on a device."""
    tokenizer, max_length = load_encoder_tokenizer(
        encoder.name, config.max_length or DEFAULT_LENGTH
    )
    if config.task_type and LABEL_TYPES[config.task_type].of_units:
        table = load_unit_table(config, max_length)
    else:
        table = load_labelled(config)
    table_config = infer_settings(config, table, read_model_texts(load_config(encoder.name)))
    molecules = table_config.molecules
    standardize = table_config.standardize
    if molecules and standardize == "none":
        note_spelling(table.texts, config.dataset)
    reader = TextReader(tokenizer, max_length, molecules, standardize, config.on_invalid)
    checked_table, tokens = reader.read(table)
    return make_table_task(
        table_config,
        checked_table,
        learner=TableFinetuning(encoder, tokenizer, max_length, tokens, device),
        rows_to_split=table.usable,
        spelling=spelling_of(tokenizer, molecules, standardize),
        earlier_run=encoder.earlier_run,
    )


@dataclass(frozen=True)
class TableFinetuning:
    """Encoders that are fine-tuned for a labelled table (a `TableLearner`)."""

    encoder: EncoderSource
    tokenizer: PreTrainedTokenizerFast
    max_length: int  # the longest text, in tokens
    tokens: TableTokens  # of the rows of the table
    device: str

    def train_seed(
        self, task: TableTask, run_dir: Path, hyper: FinetuneConfig, seed: int
    ) -> RunResult:
        """Trains with one seed and keeps the epoch that is best on valid."""
        split = task.split_of(seed)
        return train_with_seed(
            TableSupervision(
                task=task,
                split=split,
                saved_task=self._task_to_save(task, split["train"]),
                tokens=self.tokens,
                tokenizer=self.tokenizer,
                hyper=hyper,
                seed=seed,
            ),
            encoder=self.encoder,
            tokenizer=self.tokenizer,
            hyper=hyper,
            seed=seed,
            metric=task.metric,
            run_dir=run_dir,
            device=self.device,
        )

    def _task_to_save(self, task: TableTask, train: np.ndarray) -> SavedTask:
        """What a training from these rows knows of the task, with the scale of numbers."""
        saved_task = replace(task.task_to_save(train), max_length=self.max_length)
        if not task.table.label_type.is_number:
            return saved_task
        labels = task.table.labels[train]
        return replace(saved_task, mean=np.nanmean(labels, 0).tolist(), std=deviations(labels))


@dataclass(frozen=True)
class TableSupervision:
    """The rows of a table with their labels, which an encoder learns with one seed (a
    `Supervision`)."""

    task: TableTask
    split: RowSplit
    saved_task: SavedTask
    tokens: TableTokens
    tokenizer: PreTrainedTokenizerFast
    hyper: FinetuneConfig
    seed: int

    @property
    def head_settings(self) -> dict[str, Any]:
        names = self.saved_task.head_names
        return {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": self.saved_task.label_type.problem_type,
        }

    @cached_property
    def batches(self) -> ShuffledBatches:
        assert self.hyper.batch_size  # filled in before
        lengths = [len(example["input_ids"]) for example in self.tokens.examples]
        return ShuffledBatches(
            lengths, self.split["train"], self.hyper.batch_size, self.seed, self._collate
        )

    def _collate(self, rows: np.ndarray) -> dict[str, Tensor]:
        """The tensors of a batch of rows, and the targets as `labels`."""
        examples = [self.tokens.examples[row] for row in rows]
        batch = pad(examples, self.tokenizer, padding_side(self.tokens))
        labels = self.task.table.labels[rows]
        if self.tokens.unit_starts is None:
            targets = make_targets(self.saved_task, labels)
        else:
            length = batch["input_ids"].shape[1]
            targets = make_token_targets(labels, self.tokens.unit_starts[rows], length)
        return batch | {"labels": targets}

    def loss(self, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
        """Summed over the labels of a batch."""
        outputs = network(**model_inputs(network, batch)).logits.float()
        targets = batch["labels"].to(outputs.device)
        total, count = self.saved_task.label_type.loss(outputs, targets)
        return LossSum(total, count, torch.zeros_like(count))

    def score_valid(self, network: PreTrainedModel) -> dict[str, float]:
        valid = self.split["valid"]
        predictions = make_predictions(self.saved_task, self._outputs(network, valid))
        labels = self.task.table.labels
        return LabelledPredictions(self.saved_task, labels, predictions).score(valid)

    def _outputs(self, network: PreTrainedModel, rows: np.ndarray) -> np.ndarray:
        """The outputs of a network for some rows, as `run_network` says."""
        head_names = self.saved_task.head_names
        return run_network(network, self.tokenizer, self.tokens, rows, head_names)

    def finish(self, network: PreTrainedModel, run_dir: Path) -> RunResult:
        is_predicted = self.task.table.usable & self.task.rows_to_predict(self.split)
        outputs = self._outputs(network, np.flatnonzero(is_predicted))
        valid = self.split["valid"]
        finished_task = finish_task(
            self.saved_task, network, outputs[valid], self.task.table.labels[valid]
        )
        network.config.task = finished_task.to_json()
        predictions = make_predictions(self.saved_task, outputs)
        return write_results(self.task, self.split, self.saved_task, predictions, run_dir)


def finish_task(
    saved_task: SavedTask, network: PreTrainedModel, outputs: np.ndarray, labels: np.ndarray
) -> SavedTask:
    """The task to save with a trained network, whose outputs for the valid rows are [n, outputs]:
    with the errors on valid and the temperature of logits. The scale of numbers becomes a part of
    the network."""
    label_type = saved_task.label_type
    if label_type.is_number or label_type.class_per_row:
        errors = label_type.errors(labels, make_predictions(saved_task, outputs))
        saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
    if label_type.is_number:
        return fold_label_scale(network, saved_task)
    truths, logits = label_type.as_rows(labels, outputs)
    return replace(saved_task, temperature=fit_temperature(label_type, logits, truths))


def fold_label_scale(network: PreTrainedModel, saved_task: SavedTask) -> SavedTask:
    """Makes the last layer of a regression network return real units, in place. Returns the task to
    save with it, which has mean 0 and std 1.

    The outputs are those of its last linear layer: the heads of all families end with it. The layer
    stays as it is where float32 could not tell the labels apart."""
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
