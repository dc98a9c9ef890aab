"""Encoders fine-tuned for a table whose rows have labels, classes or numbers: it is loaded once,
then any number of seeds are trained."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedModel

from exlm.ops.loss import LossSum
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.inference import model_inputs, pad
from exlm.tasks.encoders.loading import (
    EncoderSource,
    ModelClasses,
    load_config,
    load_encoder_tokenizer,
)
from exlm.tasks.encoders.results import SeedScores
from exlm.tasks.encoders.saved_task import SavedTask, TunedModel, fold_label_scale
from exlm.tasks.encoders.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.labels.label_types import LabelType, Probabilities
from exlm.tasks.rows.datasets import load_labelled
from exlm.tasks.rows.predictions import PredictorMaker
from exlm.tasks.rows.reading import TextReader, remembered, spelling_of
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.certainty import errors_to_keep, fit_temperature
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.predictor import TablePredictor
from exlm.tasks.tables.settings import complete_config
from exlm.tasks.tables.table_task import TableTask, positive_or_one

DEFAULT_LENGTH = 512


class TableFinetuning(TableTask):
    """Fine-tunes encoders for a table (a `Finetuning`, see `tasks/task.py`).

    The `LabelType` says what is learned of the labels. `saved_task`, with what the training finds
    out, is kept with a model; it tells `OutputMeaning` how to read its outputs."""

    model_classes: ClassVar[ModelClasses] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    predictor: ClassVar[PredictorMaker] = TablePredictor.for_file

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_LENGTH
        )
        table = self.load_table(config)
        config = complete_config(config, table, remembered(load_config(encoder.name)))
        molecules = bool(config.molecules)
        how = config.standardize or "none"
        reader = TextReader(self.tokenizer, self.max_length, molecules, how, config.on_invalid)
        checked, self.tokens = reader.read(table)
        spelling = spelling_of(self.tokenizer, molecules, how)
        super().__init__(config, checked, table.usable, spelling, encoder.earlier_run)

    @staticmethod
    def load_table(config: TaskConfig) -> TextTable:
        """The table with its labels."""
        return load_labelled(config)

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
        network = self.encoder.load(self.model_classes, hyper, model_settings)
        tuned = TunedModel(network, self.tokenizer)

        def validate(_: nn.Module) -> dict[str, float]:
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
        predictions = meaning.as_predictions(outputs)
        return {
            "best_epoch": best_epoch,
            "weight_files": self.encoder.weight_files(),
            **self.write_predictions(run_dir, split, predictions),
        }

    def _batches(
        self, meaning: OutputMeaning, rows: np.ndarray, batch_size: int, seed: int
    ) -> ShuffledBatches:
        """Batches of the rows to train on, with their labels."""

        def collate(rows_of_batch: np.ndarray) -> dict[str, Tensor]:
            examples = [self.tokens.examples[row] for row in rows_of_batch]
            batch = pad(examples, self.tokenizer, meaning.padding_side)
            return batch | {"labels": self.batch_labels(batch, rows_of_batch, meaning.saved_task)}

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
        if label_type.has_intervals:
            errors = label_type.errors(truth, meaning.as_predictions(outputs))
            saved_task = replace(saved_task, validation_errors=errors_to_keep(errors))
        if not isinstance(label_type, Probabilities):
            return fold_label_scale(network, saved_task)
        if not label_type.has_temperature:
            return saved_task
        truth, logits = label_type.as_rows(truth, outputs)
        temperature = fit_temperature(label_type, logits, truth)
        return replace(saved_task, temperature=temperature)

    def batch_labels(
        self, batch: dict[str, Tensor], rows: np.ndarray, saved_task: SavedTask
    ) -> Tensor:
        """The labels of a batch's rows as the loss takes them, numbers in standard deviations from
        the mean."""
        labels = self.table.labels[rows]
        if self.table.label_type.is_number:
            labels = (labels - saved_task.mean) / saved_task.std
        return self.table.label_type.targets(labels)

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
