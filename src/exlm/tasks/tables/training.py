"""Encoders fine-tuned for a table: it is read once, then any number of seeds are trained."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.ops.loss import LossSum
from exlm.storage.models import save_model, weight_files
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import EncoderSource, load_config, load_encoder_tokenizer
from exlm.tasks.encoders.results import SeedScores
from exlm.tasks.encoders.saved_task import SavedTask, TunedModel, fold_label_scale
from exlm.tasks.encoders.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType, Probabilities
from exlm.tasks.rows.datasets import load_labelled
from exlm.tasks.rows.reading import (
    TableTokens,
    TextReader,
    note_spelling,
    remembered,
    spelling_of,
)
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.certainty import errors_to_keep, fit_temperature
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.settings import complete_config
from exlm.tasks.tables.table_task import TableTask, positive_or_one
from exlm.tasks.tables.unit_table import load_unit_table

DEFAULT_LENGTH = 512


def read_table(encoder: EncoderSource, config: TaskConfig, device: str) -> "TableFinetuning":
    """The labelled table of a config, read for an encoder that is trained on a device."""
    tokenizer, max_length = load_encoder_tokenizer(
        encoder.name, config.max_length or DEFAULT_LENGTH
    )
    if config.task_type and LABEL_TYPES[config.task_type].of_units:
        table = load_unit_table(config, max_length)
        config = replace(config, label_columns=table.label_columns, molecules=False)
    else:
        table = load_labelled(config)
    config = complete_config(config, table, remembered(load_config(encoder.name)))
    molecules = bool(config.molecules)
    how = config.standardize or "none"
    if molecules and how == "none":
        note_spelling(table.texts, config.dataset)
    reader = TextReader(tokenizer, max_length, molecules, how, config.on_invalid)
    checked, tokens = reader.read(table)
    return TableFinetuning(encoder, config, checked, table.usable, reader, tokens, device)


class TableFinetuning(TableTask):
    """Fine-tunes encoders for a table.

    The `LabelType` says what is learned of the labels. `saved_task`, with what the training finds
    out, is kept with a model; it tells `OutputMeaning` how to read its outputs."""

    def __init__(
        self,
        encoder: EncoderSource,
        config: TaskConfig,
        table: TextTable,
        rows_to_split: np.ndarray,
        reader: TextReader,
        tokens: TableTokens,
        device: str,
    ) -> None:
        """`reader` made the `tokens` of the table; for the others see `TableTask`."""
        self.encoder = encoder
        self.tokenizer: PreTrainedTokenizerFast = reader.tokenizer
        self.max_length = reader.max_length
        self.tokens = tokens
        self.device = device
        spelling = spelling_of(reader.tokenizer, reader.molecules, reader.standardize)
        super().__init__(config, table, rows_to_split, spelling, encoder.earlier_run)

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> SeedScores:
        """Trains with one seed and keeps the epoch that is best on valid. Returns it, and the
        scores."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        split = self.split_of(seed)
        valid = split["valid"]
        meaning = meaning_of(self.task_to_save(split["train"]))
        names = meaning.head_names
        model_settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": meaning.label_type.problem_type,
            "task": meaning.saved_task.to_json(),
        }
        network = self.encoder.load(meaning.model_classes, hyper, model_settings)
        tuned = TunedModel(network, self.tokenizer)

        def validate() -> dict[str, float]:
            outputs = meaning.outputs(tuned, self.tokens, valid)
            predictions = meaning.as_predictions(outputs)
            return self.score(predictions, valid, meaning.saved_task.error_units)

        best_epoch = train_best_epoch(
            network=network,
            loss=partial(training_loss, meaning.label_type),
            batches=self._batches(meaning, split["train"], hyper.batch_size, seed),
            run_dir=run_dir,
            hyper=hyper,
            score=validate,
            metric=self.metric,
            device=self.device,
        )
        predicted_rows = self.table.usable & self.rows_to_predict(split)
        outputs = meaning.outputs(tuned, self.tokens, np.flatnonzero(predicted_rows))
        saved_task = self._task_after_training(network, meaning, outputs[valid], valid)
        network.config.task = saved_task.to_json()
        save_model(run_dir, network, self.tokenizer)
        return {
            "best_epoch": best_epoch,
            "weight_files": {"model": weight_files(self.encoder.name)},
            **self.write_predictions(run_dir, split, meaning.as_predictions(outputs)),
        }

    def _batches(
        self, meaning: OutputMeaning, rows: np.ndarray, batch_size: int, seed: int
    ) -> ShuffledBatches:
        """Batches of the rows to train on, with their labels."""
        unit_starts = self.tokens.unit_starts

        def collate(rows_of_batch: np.ndarray) -> dict[str, Tensor]:
            examples = [self.tokens.examples[row] for row in rows_of_batch]
            batch = pad(examples, self.tokenizer, meaning.padding_side)
            starts = None if unit_starts is None else unit_starts[rows_of_batch]
            labels = self.table.labels[rows_of_batch]
            length = batch["input_ids"].shape[1]
            return batch | {"labels": meaning.targets(labels, starts, length)}

        lengths = [len(example["input_ids"]) for example in self.tokens.examples]
        return ShuffledBatches(lengths, rows, batch_size, seed, collate)

    def _task_after_training(
        self,
        network: PreTrainedModel,
        meaning: OutputMeaning,
        outputs: np.ndarray,
        valid: np.ndarray,
    ) -> SavedTask:
        """What a trained network keeps of the task, whose outputs for the `valid` rows are [n,
        outputs]: also the temperature of logits, or the scale of numbers as part of the network,
        and the errors on valid."""
        label_type = meaning.label_type
        truth = self.table.labels[valid]
        saved_task = meaning.saved_task
        if label_type.is_number or label_type.class_per_row:
            errors = label_type.errors(truth, meaning.as_predictions(outputs))
            saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
        if not isinstance(label_type, Probabilities):
            return fold_label_scale(network, saved_task)
        truth, logits = label_type.as_rows(truth, outputs)
        temperature = fit_temperature(label_type, logits, truth)
        return replace(saved_task, temperature=temperature)

    def task_to_save(self, train_rows: np.ndarray) -> SavedTask:
        """What a model keeps of the task. `mean` and `std` [labels] are those of the labels in
        train, if they are numbers."""
        mean = np.zeros(len(self.table.label_columns))
        std = np.ones(len(self.table.label_columns))
        if self.table.label_type.is_number:
            labels = self.table.labels[train_rows]
            mean = np.nanmean(labels, 0)
            std = positive_or_one(np.nanstd(labels, 0))
        return replace(
            super().task_to_save(train_rows),
            max_length=self.max_length,
            mean=mean.tolist(),
            std=std.tolist(),
        )


def training_loss(label_type: LabelType, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
    """Summed over the labels of a batch."""
    outputs = network(**model_inputs(network, batch)).logits.float()
    total, count = label_type.loss(outputs, batch["labels"].to(outputs.device))
    return LossSum(total, count, torch.zeros_like(count))
