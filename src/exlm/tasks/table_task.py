"""A table whose rows have labels, classes or numbers: load it once, then train any number of seeds;
and predict with their models."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from rdkit.DataStructs import ExplicitBitVect
from scipy.special import softmax
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from exlm.data.frames import read_frame, read_frames, with_columns
from exlm.data.parts import ROWS, output_path
from exlm.errors import InputError
from exlm.model.downstream import classification_loss
from exlm.storage.models import save_model
from exlm.tasks.certainty import (
    calibration_error,
    conformal_columns,
    conformal_errors,
    conformal_margins,
    errors_to_keep,
    fit_temperature,
)
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import (
    SCORING,
    EncoderSource,
    Models,
    SavedTask,
    fold_label_scale,
    load_config,
    load_encoder_tokenizer,
    prediction_names,
)
from exlm.tasks.explain import explain, write_page
from exlm.tasks.inference import model_inputs, pad, row_outputs
from exlm.tasks.labelled import LabelledTask, positive_or_one, prediction_titles
from exlm.tasks.metrics import as_rows, score_labels, score_predictions
from exlm.tasks.predictions import (
    ChunkPredictor,
    Predictions,
    PredictOptions,
    SeedModel,
    TunedModel,
    distance_to_training,
    training_fingerprints,
)
from exlm.tasks.reading import TextReader, decide_molecules, text_kind
from exlm.tasks.splits import RowSplit
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LABEL_TYPES, LabelledTable, Tokens, make_table

DEFAULT_LENGTH = 512
# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


class TablePredictor:
    """The models of all seeds, and the file that they predict for. What is decided once for all of
    its rows: whether its texts are `molecules`, the fingerprints of the `training` molecules for
    distances, and the `margins` [labels] of intervals."""

    def __init__(
        self,
        kind: type["TableTask"],
        models: Sequence[SeedModel],
        path: str,
        options: PredictOptions,
        first_rows: pd.DataFrame,
    ) -> None:
        self.kind = kind
        self.models = models
        self.path = path
        self.options = options
        self.saved = models[0].saved
        self._check_options()
        self.margins = None
        if options.interval is not None:
            self.margins = conformal_margins(models, options.interval)
        texts = kind.table_to_predict(first_rows, path, options, self.saved).texts
        self.molecules = decide_molecules(texts, self.saved["molecules"], options.molecules, path)
        self.training: list[ExplicitBitVect] = []
        if options.distance:
            self.training = training_fingerprints([model.directory for model in models])

    def _check_options(self) -> None:
        """InputError for options that these models do not have."""
        options = self.options
        if options.calibrated and any("temperature" not in model.saved for model in self.models):
            raise InputError(
                "calibrated probabilities need a classification "
                "that was fine-tuned by this version of exlm"
            )
        if options.calibrated and options.interval is not None:
            raise InputError(
                "interval takes the probabilities as they are, which have been compared with the "
                "validation rows; leave out calibrated"
            )
        if options.explain and not self.kind.can_explain:
            raise InputError(
                "explain is for fine-tuned encoders that predict for whole texts, not for "
                f"{self.models[0].directory}; leave it out"
            )
        if options.explain:
            output_path("", self.path, options.explain, "", (".html",))

    def predict(self, rows: pd.DataFrame) -> Predictions:
        """Predictions for all rows of the file, and how they are scored if it has labels."""
        table, runs = self.run(rows, shows_progress=True)
        result, counts = self._with_predictions(table, runs)
        if self.options.explain:
            result = with_columns(result, {"explanation": self._explain(table)})
        label_columns = self.options.labels_in(rows, self.path, self.saved["label_columns"])
        needed_columns = {*label_columns, self.saved.get("mask_column")} - {None}
        if not needed_columns <= set(rows):
            return Predictions(result, counts)
        try:
            saved: SavedTask = {**self.saved, "label_columns": label_columns}
            labels = self.kind.saved_labels(table, self.path, saved)
        except InputError as error:
            return Predictions(result, counts, note=str(error))
        if len(runs) > 1:
            runs = {"ensemble": np.mean(list(runs.values()), 0), **runs}
        labelled = np.flatnonzero(table.usable & ~np.isnan(labels).all(1))
        return Predictions(
            frame=result,
            counts=counts,
            scorers={name: partial(self._score, labels, run) for name, run in runs.items()},
            labelled=labelled,
            label_scores=score_labels(
                self.saved["task_type"],
                self.saved["label_columns"],
                labels[labelled],
                next(iter(runs.values()))[labelled],
            ),
            texts=table.texts,
        )

    def predict_chunk(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
        """Some rows of the file with their predictions, and how many there are of every kind."""
        return self._with_predictions(*self.run(rows, shows_progress=False))

    def run(
        self, rows: pd.DataFrame, shows_progress: bool
    ) -> tuple[LabelledTable, dict[str, np.ndarray]]:
        """Some rows of the file, and what every model predicts for them: [rows, outputs] by
        name."""
        table = self.kind.table_to_predict(rows, self.path, self.options, self.saved)
        runs = dict[str, np.ndarray]()
        for model in self.models:
            name = model.directory.name
            reader = TextReader(
                tokenizer=model.loaded.tokenizer,
                max_length=self.saved["max_length"],
                molecules=self.molecules,
                standardize=self.saved.get("standardize", "none"),
                on_invalid=self.options.on_invalid,
            )
            read_table = reader.read_chunk(table, self.path)
            usable_rows = np.flatnonzero(read_table.usable)
            progress = name if shows_progress else None
            runs[name] = self._predictions_of(model, read_table, usable_rows, progress)
        return read_table, runs

    def _predictions_of(
        self,
        model: SeedModel,
        table: LabelledTable,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """What a model predicts for some rows: [all rows, outputs], NaN for all others."""
        outputs = self.kind.outputs(model.loaded, table, rows, progress)
        temperature = model.saved["temperature"] if self.options.calibrated else 1.0
        return self.kind.as_predictions(outputs, model.saved, temperature)

    def _with_predictions(
        self, table: LabelledTable, runs: dict[str, np.ndarray]
    ) -> tuple[pd.DataFrame, dict[str, int]]:
        """The rows of a table with their predictions: means, standard deviations, and for one label
        with classes the predicted class; and how many rows there are of every kind."""
        means = np.mean(list(runs.values()), 0)
        columns = self.kind.prediction_columns(means, table, self.saved)
        if len(runs) > 1 and means.ndim == 2:
            spread = np.std(list(runs.values()), 0, ddof=1)
            spreads = self.kind.prediction_columns(spread, table, self.saved)
            values = columns
            columns = {}
            for name in values:
                columns[name] = values[name]
                columns[f"{name} std"] = spreads[name]
        if LABEL_TYPES[self.saved["task_type"]].one_class:
            columns |= _class_columns(means, self.saved["classes"], self.saved.get("words"))
        if self.margins is not None:
            columns |= conformal_columns(means, self.margins, self.saved)
        counts = table.counts("predicted")
        if self.options.distance:
            distances = distance_to_training(self.training, table.texts)
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        return with_columns(table.frame, {**columns, "problem": table.problems}), counts

    def _explain(self, table: LabelledTable) -> list[str | None]:
        """Writes the page of explanations of the mean predictions; returns the numbers of every
        row as JSON."""

        def predict(examples: list[Tokens]) -> np.ndarray:
            masked = replace(table, examples=examples)
            rows = np.arange(len(examples))
            return np.mean([self._predictions_of(model, masked, rows) for model in self.models], 0)

        tokenizer = self.models[0].loaded.tokenizer
        explanations = explain(table, predict, tokenizer, self.saved, self.molecules)
        names = prediction_titles(self.saved)
        assert self.options.explain
        write_page(Path(self.options.explain), explanations, names, bool(self.saved["classes"]))
        return [explanation and explanation.as_json(names) for explanation in explanations]

    def _score(
        self, labels: np.ndarray, predictions: np.ndarray, rows: np.ndarray
    ) -> dict[str, float]:
        """The metrics of predictions [all rows, outputs] on some rows. Coverage is the share of
        errors within the `margins`."""
        saved = self.saved
        label_type = LABEL_TYPES[saved["task_type"]]
        labels = labels[rows]
        predictions = predictions[rows]
        scores = score_predictions(
            saved["task_type"],
            labels,
            predictions,
            saved.get("error_units"),
            classes=saved["classes"],
        )
        if not label_type.is_number:  # the predictions are probabilities
            scores["calibration_error"] = calibration_error(
                *as_rows(labels, predictions), label_type.has_classes
            )
        if self.margins is not None:
            errors = conformal_errors(labels, predictions, label_type.has_classes)
            scores["coverage"] = float(np.mean((errors <= self.margins)[~np.isnan(errors)]))
        return scores


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


class TableTask(LabelledTask):
    """A labelled table, its tokens, and how to train a model on it (`FinetuningTask`).

    A further kind of task changes what it needs of the hooks. For training: `load_table` (labels),
    `head_names` (how many outputs the head has), `batch_labels` and `loss`. For predictions:
    `outputs`, `as_predictions` and `prediction_columns`. What a hook needs of a saved model is in
    `saved`, which `saved_table` and `task_to_save` make. The flags below and those of its entry in
    LABEL_TYPES decide the rest."""

    model_classes: ClassVar[Models] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    has_baselines: ClassVar[bool] = True
    # Whether a temperature is fitted that divides the outputs before they become probabilities;
    # never where the labels are numbers. False if the outputs are no logits of the labels.
    fits_temperature: ClassVar[bool] = True
    predicts_in_chunks: ClassVar[bool] = True  # whether some rows can be predicted without the rest
    can_explain: ClassVar[bool] = True  # whether texts can be masked, and have one prediction each
    padding_side: ClassVar[str | None] = None  # of batches; None: as the tokenizer prefers
    predictor: ClassVar[type[TablePredictor]] = TablePredictor

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
        split = self.split_of(seed)
        saved = self.task_to_save(split["train"])
        names = self.head_names(saved)
        model_settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": self.problem_type,
            "task": saved,
        }
        network = self.encoder.load(self.model_classes, hyper, model_settings)
        tuned = TunedModel(network, self.tokenizer, saved)
        best_epoch = self._train(tuned, run_dir, hyper, seed, split)

        predicted_rows = self.table.usable & self.rows_to_predict(split)
        outputs = self.outputs(tuned, self.table, np.flatnonzero(predicted_rows))
        network.config.task = self._completed(tuned, outputs[split["valid"]], split["valid"])
        save_model(run_dir, network, self.tokenizer)
        predictions = self.as_predictions(outputs, saved)
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}

    def _train(
        self, tuned: TunedModel, run_dir: Path, hyper: FinetuneConfig, seed: int, split: RowSplit
    ) -> int:
        """Trains a network in place; returns the epoch that is best on valid, whose weights it
        has."""
        assert hyper.batch_size  # filled in before

        def collate(rows: np.ndarray) -> dict[str, Tensor]:
            examples = [self.table.examples[row] for row in rows]
            batch = pad(examples, self.tokenizer, self.padding_side)
            return batch | {"labels": self.batch_labels(batch, rows, tuned.saved)}

        def training_loss(
            model: nn.Module, batch: dict[str, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor]:
            outputs = model(**model_inputs(model, batch)).logits.float()
            total, count = self.loss(outputs, batch["labels"].to(outputs.device))
            return total, count, torch.zeros_like(count)

        def validate(_: nn.Module) -> dict[str, float]:
            outputs = self.outputs(tuned, self.table, split["valid"])
            predictions = self.as_predictions(outputs, tuned.saved)
            return self.score(predictions, split["valid"], tuned.saved["error_units"])

        lengths = [len(example["input_ids"]) for example in self.table.examples]
        return train_best_epoch(
            network=tuned.network,
            loss=training_loss,
            batches=ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate),
            run_dir=run_dir,
            hyper=hyper,
            score=validate,
            metric=self.metric,
            device=self.device,
        )

    def _completed(self, tuned: TunedModel, outputs: np.ndarray, valid: np.ndarray) -> SavedTask:
        """What is saved with a trained network, whose outputs for the `valid` rows are [n,
        outputs]: the temperature of logits, or the scale of numbers as part of the network, and the
        errors on valid."""
        label_type = self.table.label_type
        labels = self.table.labels[valid]
        saved = tuned.saved
        if label_type.is_number or label_type.one_class:
            predictions = self.as_predictions(outputs, saved)
            errors = conformal_errors(labels, predictions, label_type.has_classes)
            saved = {**saved, "validation_errors": errors_to_keep(errors)}
        if label_type.is_number:
            return fold_label_scale(tuned.network, saved)
        if not self.fits_temperature:
            return saved
        labels, logits = as_rows(labels, outputs)
        temperature = fit_temperature(logits, labels, label_type.has_classes)
        return {**saved, "temperature": temperature}

    @staticmethod
    def head_names(saved: SavedTask) -> list[str]:
        """A name for every output of the model's head; there are as many as outputs."""
        return prediction_names(saved)

    @property
    def problem_type(self) -> str:
        """The loss, as transformers call it."""
        if self.table.label_type.has_classes:
            return "single_label_classification"
        is_number = self.table.label_type.is_number
        return "regression" if is_number else "multi_label_classification"

    def loss(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of the labels of a batch (`batch_labels`), and their number."""
        return classification_loss(outputs, labels, self.problem_type)

    def batch_labels(self, batch: dict[str, Tensor], rows: np.ndarray, saved: SavedTask) -> Tensor:
        """The labels of a batch's rows as the loss takes them: [n] or [n, labels], of numbers in
        standard deviations from the mean."""
        labels = (self.table.labels[rows] - saved["mean"]) / saved["std"]
        return torch.from_numpy(labels[:, 0] if labels.shape[1] == 1 else labels).float()

    def task_to_save(self, train_rows: np.ndarray) -> SavedTask:
        """What is needed to predict with the model. `mean` and `std` [labels] are those of the
        training labels, if they are numbers."""
        mean = np.zeros(len(self.table.label_columns))
        std = np.ones(len(self.table.label_columns))
        if self.table.label_type.is_number:
            labels = self.table.labels[train_rows]
            mean = np.nanmean(labels, 0)
            std = positive_or_one(np.nanstd(labels, 0))
        return {
            **self.saved_table(train_rows),
            "max_length": self.max_length,
            "precision": SCORING,
            "mean": mean.tolist(),
            "std": std.tolist(),
        }

    # Predicting

    @classmethod
    def outputs(
        cls, tuned: TunedModel, table: LabelledTable, rows: np.ndarray, progress: str | None = None
    ) -> np.ndarray:
        """A model's outputs for some rows: [all rows, outputs] float64, NaN for all others.
        `progress` names a bar."""
        network, tokenizer, saved = tuned
        outputs = row_outputs(
            model=network,
            function=lambda **batch: network(**batch).logits,
            width=len(cls.head_names(saved)),
            table=table,
            rows=rows,
            tokenizer=tokenizer,
            precision=saved["precision"],
            progress=progress,
        )
        return outputs.astype(np.float64)

    @staticmethod
    def as_predictions(
        outputs: np.ndarray, saved: SavedTask, temperature: float = 1.0
    ) -> np.ndarray:
        """Predictions [rows, `prediction_names`] from a head's outputs: probabilities, of logits
        divided by a `temperature`, or values in the units of the labels. Models whose head returns
        real units have mean 0 and std 1."""
        label_type = LABEL_TYPES[saved["task_type"]]
        if label_type.is_number:
            return outputs * np.asarray(saved["std"]) + np.asarray(saved["mean"])
        if label_type.has_classes:
            return softmax(outputs / temperature, -1)
        return 1 / (1 + np.exp(-np.clip(outputs / temperature, -700, 700)))

    @staticmethod
    def saved_labels(table: LabelledTable, path: str, saved: SavedTask) -> np.ndarray:
        """The labels of a table in the form that the model was trained on: [rows, labels].
        InputError if a value is no label."""
        labelled = make_table(
            frame=table.frame,
            path=path,
            text_column=table.text_column,
            label_columns=saved["label_columns"],
            task_type=saved["task_type"],
            classes=saved["classes"] or saved.get("words"),
            allows_unknown=True,
        )
        return labelled.labels

    @staticmethod
    def table_to_predict(
        frame: pd.DataFrame, path: str, options: PredictOptions, saved: SavedTask
    ) -> LabelledTable:
        """The rows of a frame, without labels."""
        text_column = options.text_column
        if text_column is None and saved["text_column"] in frame:
            text_column = saved["text_column"]
        return make_table(frame, path, text_column, [], pair_column=saved["pair_column"])

    @classmethod
    def predict(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> Predictions:
        """Predictions for a table: means over the models, with standard deviations."""
        rows = read_frame(input, options.header, options.sheet)
        return cls.predictor(cls, models, input, options, rows).predict(rows)

    @classmethod
    def chunk_predictor(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> ChunkPredictor | None:
        """Predicts for some rows of a table, which must not have the label columns."""
        if not cls.predicts_in_chunks or options.explain:
            return None
        rows = next(read_frames(input, options.header, ROWS, sheet=options.sheet))
        if set(options.labels_in(rows, input, models[0].saved["label_columns"])) <= set(rows):
            return None
        return cls.predictor(cls, models, input, options, rows).predict_chunk
