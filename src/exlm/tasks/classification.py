"""Classification and regression of a text or of a pair: load the data once, then train any number
of seeds; and predict with their models."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedModel

from exlm.data.frames import read_frame, with_columns
from exlm.errors import InputError
from exlm.model.task_losses import classification_loss
from exlm.storage.models import save_model
from exlm.tasks.calibration import calibration_error, fit_temperature
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import (
    EncoderSource,
    Models,
    SavedTask,
    fold_units,
    load_config,
    load_encoder_tokenizer,
)
from exlm.tasks.inference import model_inputs, pad, row_outputs
from exlm.tasks.labelled import LabelledTask, output_names
from exlm.tasks.metrics import Score, as_rows, score_labels, score_predictions
from exlm.tasks.predictions import (
    LabelScore,
    Predictions,
    PredictOptions,
    SeedModel,
    TunedModel,
    distance_to_training,
)
from exlm.tasks.reading import TextKind, TextReader, text_kind
from exlm.tasks.splits import RowSplit
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LabelledTable, make_table

DEFAULT_LENGTH = 512
# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


class Classification(LabelledTask):
    """A labelled table, its tokens, and how to train a model on it (`FinetuningTask`).

    A further kind of task changes what it needs of the methods: `load_table` (labels),
    `batch_labels` and `loss` (training), `logits`, `as_predictions` and `prediction_columns`
    (predictions). What a method needs of a saved model is in `saved`, which `task_to_save`
    makes."""

    model_classes: ClassVar[Models] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    has_baselines: ClassVar[bool] = True
    reads_parts: ClassVar[bool] = True  # whether a file can be predicted part by part
    padding_side: ClassVar[str | None] = None  # of batches; None: as the tokenizer prefers

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_LENGTH
        )
        super().__init__(config, text_kind(load_config(encoder.name)))

    def read_rows(self, table: LabelledTable) -> LabelledTable:
        reader = TextReader(
            tokenizer=self.tokenizer,
            max_length=self.max_length,
            molecules=bool(self.config.molecules),
            standardize=self.config.standardize or "none",
            on_invalid=self.config.on_invalid,
        )
        return reader.read(table)

    # Training

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed and keeps the epoch that is best on valid. Returns it, and what
        `record` tells."""
        torch.manual_seed(seed)
        split = self.split(seed)
        saved = self.task_to_save(split["train"], hyper)
        names = self.table.classes or self.table.label_columns
        settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": self.problem_type,
            "task": saved,
        }
        network = self.encoder.load(self.model_classes, hyper, settings)
        best_epoch = self._train(network, saved, run_dir, hyper, seed, split)

        table = self.table
        predicted_rows = table.usable & self.rows_to_predict(split)
        model = TunedModel(network, self.tokenizer, saved)
        logits = self.logits(model, table, np.flatnonzero(predicted_rows))
        predictions = self.as_predictions(logits, saved)
        if table.task_type == "regression":
            saved = fold_units(network, saved)
        else:
            valid = split["valid"]
            labels, valid_logits = as_rows(table.labels[valid], logits[valid])
            saved = {**saved, "temperature": fit_temperature(valid_logits, labels)}
        network.config.task = saved
        save_model(run_dir, network, self.tokenizer)
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}

    def _train(
        self,
        network: PreTrainedModel,
        saved: SavedTask,
        run_dir: Path,
        hyper: FinetuneConfig,
        seed: int,
        split: RowSplit,
    ) -> int:
        """Trains a network in place; returns the epoch that is best on valid, whose weights it
        has."""
        assert hyper.batch_size  # filled in before

        def collate(rows: np.ndarray) -> dict[str, Tensor]:
            examples = [self.table.examples[row] for row in rows]
            batch = pad(examples, self.tokenizer, self.padding_side)
            return batch | {"labels": self.batch_labels(batch, rows, saved)}

        def training_loss(
            model: nn.Module, batch: dict[str, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor]:
            logits = model(**model_inputs(model, batch)).logits.float()
            total, count = self.loss(logits, batch["labels"].to(logits.device))
            return total, count, torch.zeros_like(count)

        def validate(network: nn.Module) -> dict[str, float]:
            model = TunedModel(network, self.tokenizer, saved)
            logits = self.logits(model, self.table, split["valid"])
            predictions = self.as_predictions(logits, saved)
            return self.score(predictions, split["valid"], saved["error_units"])

        lengths = [len(example["input_ids"]) for example in self.table.examples]
        batches = ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate)
        return train_best_epoch(
            network, training_loss, batches, run_dir, hyper, validate, self.metric, self.device
        )

    @property
    def problem_type(self) -> str:
        """The loss, as transformers call it."""
        if self.table.classes:
            return "single_label_classification"
        is_regression = self.table.task_type == "regression"
        return "regression" if is_regression else "multi_label_classification"

    def loss(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of the labels of a batch (`batch_labels`), and their number."""
        return classification_loss(logits, labels, self.problem_type)

    def batch_labels(self, batch: dict[str, Tensor], rows: np.ndarray, saved: SavedTask) -> Tensor:
        """The labels of a batch's rows as the loss takes them: [n] or [n, labels], of numbers in
        standard deviations from the mean."""
        labels = (self.table.labels[rows] - saved["mean"]) / saved["std"]
        return torch.from_numpy(labels[:, 0] if labels.shape[1] == 1 else labels).float()

    def task_to_save(self, train_rows: np.ndarray, hyper: FinetuneConfig) -> SavedTask:
        """What is needed to predict with the model. `mean` and `std` [labels] are those of the
        training labels of a regression."""
        table = self.table
        mean = np.zeros(len(table.label_columns))
        std = np.ones(len(table.label_columns))
        if table.task_type == "regression":
            labels = table.labels[train_rows]
            mean = np.nanmean(labels, 0)
            std = np.nanstd(labels, 0)
        return {
            **self.saved_table(train_rows),
            "max_length": self.max_length,
            "precision": hyper.precision,
            "mean": mean.tolist(),
            "std": np.where(std > 0, std, 1.0).tolist(),
        }

    # Predicting

    @staticmethod
    def logits(
        model: TunedModel, table: LabelledTable, rows: np.ndarray, progress: str | None = None
    ) -> np.ndarray:
        """A model's outputs for some rows: [all rows, outputs] float64, NaN for all others.
        `progress` names a bar."""
        network, tokenizer, saved = model
        outputs = row_outputs(
            network,
            lambda **batch: network(**batch).logits,
            len(saved["classes"] or saved["label_columns"]),
            table,
            rows,
            tokenizer,
            saved["precision"],
            progress,
        )
        return outputs.astype(np.float64)

    @staticmethod
    def as_predictions(
        logits: np.ndarray, saved: SavedTask, temperature: float = 1.0
    ) -> np.ndarray:
        """Probabilities, of logits divided by a `temperature`, or values in the units of the
        labels: [rows, outputs]. Models whose head returns real units have mean 0 and std 1."""
        if saved["task_type"] == "regression":
            return logits * np.asarray(saved["std"]) + np.asarray(saved["mean"])
        if saved["classes"]:
            return softmax(logits / temperature, -1)
        return 1 / (1 + np.exp(-np.clip(logits / temperature, -700, 700)))

    @staticmethod
    def prediction_columns(
        runs: Sequence[np.ndarray], table: LabelledTable, saved: SavedTask
    ) -> dict[str, Any]:
        """The columns to add, from the predictions [rows, outputs] of every model: means, standard
        deviations, and for one label with classes the predicted class and its probability."""
        means = np.mean(runs, 0)
        columns: dict[str, Any] = {}
        for i, name in enumerate(output_names(saved["classes"] or saved["label_columns"])):
            columns[name] = means[:, i]
            if len(runs) > 1:
                columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
        if saved["classes"] or saved["task_type"] == "binary":
            columns |= _class_columns(means, saved["classes"], saved.get("words"))
        return columns

    @staticmethod
    def saved_labels(table: LabelledTable, input: str, saved: SavedTask) -> np.ndarray:
        """The labels of a table in the form that the model was trained on: [rows, labels].
        InputError if a value is no label."""
        labelled = make_table(
            table.frame,
            input,
            table.text_column,
            saved["label_columns"],
            saved["task_type"],
            saved["classes"] or saved.get("words"),
        )
        return labelled.labels

    @classmethod
    def predict(
        cls,
        models: Sequence[SeedModel],
        input: str,
        options: PredictOptions,
        part: pd.DataFrame | None = None,
    ) -> Predictions:
        """Predictions for a table, or for one `part` of it: means over the models, with standard
        deviations."""
        saved = models[0].saved
        if options.calibrated and any("temperature" not in model.saved for model in models):
            raise InputError(
                "calibrated probabilities need a classification "
                "that was fine-tuned by this version of exlm"
            )
        frame = read_frame(input, options.header, options.sheet) if part is None else part
        table, runs = cls._run(models, frame, input, options, shows_progress=part is None)
        columns = cls.prediction_columns(list(runs.values()), table, saved)
        counts = table.counts("predicted")
        if options.distance:
            directories = [model.directory for model in models]
            distances = distance_to_training(directories, table.texts)
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        result = with_columns(frame, {**columns, "problem": table.problems})

        label_columns = options.labels_in(frame, input, saved["label_columns"])
        needed_columns = [*label_columns, saved.get("mask_column")]
        if part is not None or not all(name in frame for name in needed_columns if name):
            return Predictions(result, counts)
        try:
            labels = cls.saved_labels(table, input, {**saved, "label_columns": label_columns})
        except InputError as error:
            return Predictions(result, counts, note=str(error))
        labelled = np.flatnonzero(table.usable & ~np.isnan(labels).all(1))
        scores, score_every_label = _scores(labels, saved, runs)
        return Predictions(
            frame=result,
            counts=counts,
            scores=scores,
            labelled=labelled,
            score_labels=score_every_label,
            texts=table.texts,
        )

    @staticmethod
    def table_to_predict(
        frame: pd.DataFrame, input: str, options: PredictOptions, saved: SavedTask
    ) -> LabelledTable:
        """The rows of a frame, without labels."""
        text_column = options.text_column
        if text_column is None and saved["text_column"] in frame:
            text_column = saved["text_column"]
        return make_table(frame, input, text_column, [], pair_column=saved["pair_column"])

    @classmethod
    def _run(
        cls,
        models: Sequence[SeedModel],
        frame: pd.DataFrame,
        input: str,
        options: PredictOptions,
        shows_progress: bool,
    ) -> tuple[LabelledTable, dict[str, np.ndarray]]:
        """The rows of a frame, and what every model predicts for them: [rows, outputs] by name."""
        saved = models[0].saved
        table = cls.table_to_predict(frame, input, options, saved)
        # the rows that begin the file tell what its texts are
        first_texts = table.texts if frame.index[0] == 0 else []
        trained_on = TextKind(saved["molecules"], saved.get("standardize", "none"))
        reader = TextReader.for_file(
            first_texts, input, models[0].loaded.tokenizer, saved["max_length"], trained_on, options
        )
        read_table = reader.read_part(table, input)
        tokenizer_files = models[0].tokenizer_files
        runs = dict[str, np.ndarray]()
        for model in models:
            # Usually all seeds have one tokenizer, and the texts are read once.
            if model.tokenizer_files != tokenizer_files:
                tokenizer_files = model.tokenizer_files
                reader = replace(reader, tokenizer=model.loaded.tokenizer)
                read_table = reader.read_part(table, input)
            usable_rows = np.flatnonzero(read_table.usable)
            progress = model.directory.name if shows_progress else None
            logits = cls.logits(model.loaded, read_table, usable_rows, progress)
            temperature = model.saved["temperature"] if options.calibrated else 1.0
            runs[model.directory.name] = cls.as_predictions(logits, model.saved, temperature)
        return read_table, runs


def _class_columns(
    means: np.ndarray, classes: list[str] | None, words: list[str] | None
) -> dict[str, Any]:
    """The predicted class of every row, and how sure the models are of it, from mean probabilities
    [rows, classes] or, of label 1, [rows, 1]. `words` are the names of labels 0 and 1."""
    if classes:
        best = means.argmax(1)
        confidence = means.max(1)
    else:
        best = (means[:, 0] >= 0.5).astype(int)
        confidence = np.maximum(means, 1 - means)[:, 0]
    predicted = pd.Series(best, dtype="Int64").mask(np.isnan(means[:, 0]))
    names = classes or words
    if names:
        predicted = predicted.map(dict(enumerate(names)))
    # without the index: that of a part begins at its first row
    return {"predicted class": predicted.array, "confidence": confidence}


def _scores(
    labels: np.ndarray, saved: SavedTask, runs: dict[str, np.ndarray]
) -> tuple[dict[str, Score], LabelScore]:
    """How every model, and the mean of several, is scored on some rows; and how every label is, by
    the first of these."""
    task_type = saved["task_type"]
    if len(runs) > 1:
        runs = {"ensemble": np.mean(list(runs.values()), 0), **runs}

    def score(predictions: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        scores = score_predictions(
            task_type,
            labels[rows],
            predictions[rows],
            saved.get("error_units"),
            classes=saved["classes"],
        )
        if task_type != "regression":  # the predictions are probabilities
            row_labels, probabilities = as_rows(labels[rows], predictions[rows])
            scores["calibration_error"] = calibration_error(row_labels, probabilities)
        return scores

    def score_every_label(rows: np.ndarray) -> dict[str, dict[str, float]]:
        predictions = next(iter(runs.values()))
        return score_labels(task_type, saved["label_columns"], labels[rows], predictions[rows])

    scores: dict[str, Score] = {
        name: partial(score, predictions) for name, predictions in runs.items()
    }
    return scores, score_every_label
