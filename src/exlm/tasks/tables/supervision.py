"""What encoders learn of a labelled table, which is read once for all seeds."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

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
    reader = TextReader(tokenizer, max_length, molecules, standardize, config.on_invalid)
    checked_table, tokens = reader.read(table)
    task = make_table_task(
        table_config,
        checked_table,
        rows_to_split=table.usable,
        spelling=Spelling(molecules, standardize, tokenizer).as_compared,
        earlier_run=encoder.earlier_run,
    )
    return EncoderTableTask(**vars(task), encoder=encoder, max_length=max_length, tokens=tokens)


@dataclass(eq=False, kw_only=True)
class EncoderTableTask(TableTask):
    """A labelled table that an encoder learns: an `EncoderTask` (`tasks/task.py`)."""

    encoder: EncoderSource
    max_length: int  # the longest text, in tokens
    tokens: TableTokens  # of the rows of the table

    def supervise(self, seed: int, hyper: FinetuneConfig) -> Supervision:
        """What the encoder learns with a seed. It learns numbers in standard deviations from their
        mean, both of train."""
        assert hyper.batch_size  # filled in before
        split = self.split_of(seed)
        train = split["train"]
        saved_task = replace(self.task_to_save(train), max_length=self.max_length)
        if self.table.labels.type.is_number:
            labels = self.table.labels.values[train]
            mean = np.nanmean(labels, 0).tolist()
            saved_task = replace(saved_task, mean=mean, std=deviations(labels))
        split_table = SplitTable(self, split, saved_task)
        names = saved_task.head_names
        lengths = [len(example["input_ids"]) for example in self.tokens.examples]
        return Supervision(
            saved_task=saved_task,
            head_settings={
                "id2label": dict(enumerate(names)),
                "label2id": {name: i for i, name in enumerate(names)},
                "problem_type": saved_task.label_type.problem_type,
            },
            batches=ShuffledBatches(lengths, train, hyper.batch_size, seed, split_table.collate),
            loss=split_table.loss,
            score_valid=split_table.score_valid,
            write_results=split_table.write_results,
        )


@dataclass(frozen=True)
class SplitTable:
    """A table and the parts that its rows have with one seed: how a network learns them."""

    task: EncoderTableTask
    split: RowSplit
    saved_task: SavedTask  # what is saved with the network

    def collate(self, rows: np.ndarray) -> dict[str, Tensor]:
        """A batch of rows, with their targets as `labels`."""
        tokens = self.task.tokens
        examples = [tokens.examples[row] for row in rows]
        batch = pad(examples, self.task.encoder.tokenizer, padding_side(tokens))
        labels = self.task.table.labels.values[rows]
        if tokens.unit_starts is None:
            return batch | {"labels": make_targets(self.saved_task, labels)}
        unit_starts = tokens.unit_starts[rows]
        length = batch["input_ids"].shape[1]
        return batch | {"labels": make_token_targets(labels, unit_starts, length)}

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

    def write_results(self, network: PreTrainedModel, run_dir: Path) -> SeedResult:
        """Calibrates a trained network, and writes its predictions."""
        is_predicted = self.task.table.usable & self.task.rows_to_predict(self.split)
        outputs = self._outputs(network, np.flatnonzero(is_predicted))
        valid = self.split["valid"]
        valid_labels = self.task.table.labels.values[valid]
        calibrated_task = calibrate(self.saved_task, network, outputs[valid], valid_labels)
        network.config.task = calibrated_task.to_json()
        predictions = make_predictions(self.saved_task, outputs)
        return write_results(self.task, self.split, self.saved_task, predictions, run_dir)

    def _outputs(self, network: PreTrainedModel, rows: np.ndarray) -> np.ndarray:
        """The outputs for some rows, in the places of all rows (`run_network`)."""
        tokenizer = self.task.encoder.tokenizer
        output_count = len(self.saved_task.head_names)
        return run_network(network, tokenizer, self.task.tokens, rows, output_count)


def calibrate(
    saved_task: SavedTask, network: PreTrainedModel, outputs: np.ndarray, labels: np.ndarray
) -> SavedTask:
    """Returns the task to save with a trained network. It has what the valid rows tell, from their
    outputs [n, outputs] and labels: the errors, and the temperature of logits. Of numbers, the
    network itself is changed, so that it returns them on the scale of the labels."""
    label_type = saved_task.label_type
    if label_type.is_number or label_type.class_per_row:
        errors = label_type.errors(labels, make_predictions(saved_task, outputs))
        saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
    if label_type.is_number:
        return rescale_outputs(network, saved_task)
    truths, logits = label_type.as_rows(labels, outputs)
    return replace(saved_task, temperature=fit_temperature(label_type, logits, truths))


def rescale_outputs(network: PreTrainedModel, saved_task: SavedTask) -> SavedTask:
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
