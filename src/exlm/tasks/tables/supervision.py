"""What encoders learn of a labelled table, which is read once for all seeds."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.spelling import Spelling
from exlm.errors import note
from exlm.ops.loss import LossSum
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import EncoderSource, load_config
from exlm.tasks.encoders.saved_task import SavedTask, read_text_settings
from exlm.tasks.encoders.training import ShuffledBatches, Supervision
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.results import SeedResult
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.reading import TableTokens, TextReader, note_spelling
from exlm.tasks.rows.splits import RowSplit
from exlm.tasks.tables.certainty import errors_to_keep, fit_temperature
from exlm.tasks.tables.labelled_predictions import LabelledPredictions
from exlm.tasks.tables.network_outputs import (
    make_predictions,
    make_targets,
    make_token_targets,
    padding_side,
    run_network,
)
from exlm.tasks.tables.seed_directory import write_results
from exlm.tasks.tables.table_config import infer_settings
from exlm.tasks.tables.table_task import TableTask, deviations, make_table_task
from exlm.tasks.tables.unit_table import read_unit_table

DEFAULT_LENGTH = 512
# The largest mean of labels, in their standard deviations, that a float32 output can include
LARGEST_OFFSET = 10_000


def read_table_task(encoder: EncoderSource, config: TaskConfig) -> "EncoderTableTask":
    """Reads the labelled table of a config, and its tokens for an encoder."""
    tokenizer = encoder.tokenizer
    max_length = encoder.limit_length(config.max_length or DEFAULT_LENGTH)
    if config.task_type and LABEL_TYPES[config.task_type].of_units:
        table = read_unit_table(config, max_length, tokenizer)
    else:
        table = read_labelled_table(config)
    table_config = infer_settings(config, table, read_text_settings(load_config(encoder.name)))
    molecules = table_config.molecules
    standardize = table_config.standardize
    if molecules and standardize == "none":
        note_spelling(table.texts, config.dataset)
    reader = TextReader(
        tokenizer=tokenizer,
        max_length=max_length,
        molecules=molecules,
        standardize=standardize,
        on_invalid=config.on_invalid,
        unit_pattern=table.labels.unit_pattern,
    )
    checked_table, tokens = reader.read(table)
    if not checked_table.usable.any():
        checked_table.check(config.dataset, config.on_invalid)
    task = make_table_task(
        table_config,
        checked_table,
        rows_to_split=table.usable,
        spelling=Spelling(molecules, standardize, tokenizer).as_compared,
        earlier_run=encoder.earlier_run,
    )
    return EncoderTableTask(task=task, encoder=encoder, max_length=max_length, tokens=tokens)


@dataclass(frozen=True)
class EncoderTableTask:
    """A labelled table and its tokens for an encoder: an `EncoderTask` (`tasks/task_kinds.py`)."""

    task: TableTask
    encoder: EncoderSource
    max_length: int  # the longest text, in tokens
    tokens: TableTokens  # of the rows of the table

    def supervise(self, seed: int, hyper: FinetuneConfig) -> "TableSupervision":
        """What the encoder learns with a seed. It learns numbers in standard deviations from their
        mean, both of train."""
        assert hyper.batch_size  # filled in before
        split = self.task.split_of(seed)
        train = split["train"]
        saved_task = replace(self.task.task_to_save(train), max_length=self.max_length)
        if saved_task.label_type.is_number:
            labels = self.task.table.labels.values[train]
            mean = np.nanmean(labels, 0).tolist()
            saved_task = replace(saved_task, mean=mean, std=deviations(labels))
        names = saved_task.head_names
        return TableSupervision(
            saved_task=saved_task,
            head_settings={
                "id2label": dict(enumerate(names)),
                "label2id": {name: i for i, name in enumerate(names)},
                "problem_type": saved_task.label_type.problem_type,
            },
            batches=ShuffledBatches(
                lengths=[len(example["input_ids"]) for example in self.tokens.examples],
                rows=train,
                batch_size=hyper.batch_size,
                seed=seed,
                collate=partial(self._collate, saved_task),
            ),
            task=self.task,
            split=split,
            tokens=self.tokens,
            tokenizer=self.encoder.tokenizer,
        )

    def _collate(self, saved_task: SavedTask, rows: np.ndarray) -> dict[str, Tensor]:
        """A batch of rows, with their targets as `labels`."""
        examples = [self.tokens.examples[row] for row in rows]
        batch = pad(examples, self.encoder.tokenizer, padding_side(self.tokens))
        labels = self.task.table.labels.values[rows]
        if self.tokens.unit_starts is None:
            return batch | {"labels": make_targets(saved_task, labels)}
        unit_starts = self.tokens.unit_starts[rows]
        length = batch["input_ids"].shape[1]
        return batch | {"labels": make_token_targets(labels, unit_starts, length)}


@dataclass(frozen=True)
class TableSupervision(Supervision[np.ndarray]):
    """What a network learns of a table whose rows have the parts that a seed gives them."""

    task: TableTask
    split: RowSplit
    tokens: TableTokens
    tokenizer: PreTrainedTokenizerFast

    def loss(self, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
        """Summed over the labels of a batch."""
        outputs = network(**model_inputs(network, batch)).logits.float()
        targets = batch["labels"].to(outputs.device)
        total, count = self.saved_task.label_type.loss(outputs, targets)
        return LossSum(total, count, torch.zeros_like(count))

    def score_valid(self, network: PreTrainedModel) -> dict[str, float]:
        """The scores of valid, by metric."""
        valid = self.split["valid"]
        predictions = make_predictions(self.saved_task, self._outputs(network, valid))
        labels = self.task.table.labels.values
        return LabelledPredictions(self.saved_task, labels, predictions).score(valid)

    def predict(self, network: PreTrainedModel) -> np.ndarray:
        """The outputs for the usable rows that are predicted: [all rows, outputs]."""
        is_predicted = self.task.table.usable & self.task.rows_to_predict(self.split)
        return self._outputs(network, np.flatnonzero(is_predicted))

    def calibrate_head(self, network: PreTrainedModel, outputs: np.ndarray) -> SavedTask:
        """The task to save, with what the valid rows tell. A head of numbers is rescaled."""
        valid = self.split["valid"]
        valid_labels = self.task.table.labels.values[valid]
        saved_task = fit_calibration(self.saved_task, outputs[valid], valid_labels)
        if saved_task.label_type.is_number:
            return rescale_head(network, saved_task)
        return saved_task

    def write_results(self, outputs: np.ndarray, run_dir: Path) -> SeedResult:
        predictions = make_predictions(self.saved_task, outputs)
        return write_results(self.task, self.split, self.saved_task, predictions, run_dir)

    def _outputs(self, network: PreTrainedModel, rows: np.ndarray) -> np.ndarray:
        """The outputs for some rows, in the places of all rows (`run_network`)."""
        output_count = len(self.saved_task.head_names)
        return run_network(network, self.tokenizer, self.tokens, rows, output_count)


def fit_calibration(saved_task: SavedTask, outputs: np.ndarray, labels: np.ndarray) -> SavedTask:
    """The task with what the valid rows tell, from their outputs [n, outputs] and labels: the
    errors, and the temperature of logits."""
    label_type = saved_task.label_type
    if label_type.is_number or label_type.class_per_row:
        errors = label_type.errors(labels, make_predictions(saved_task, outputs))
        saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
    if label_type.is_number:
        return saved_task
    truths, logits = label_type.as_rows(labels, outputs)
    return replace(saved_task, temperature=fit_temperature(label_type, logits, truths))


def rescale_head(network: PreTrainedModel, saved_task: SavedTask) -> SavedTask:
    """Changes a network, which returns numbers in standard deviations from the mean, so that it
    returns them on the scale of the labels. Returns the task to save with it, whose mean is 0 and
    whose std is 1.

    It changes the last linear layer, with which the heads of all families end. The layer stays as
    it is where float32 could not tell the labels apart."""
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
