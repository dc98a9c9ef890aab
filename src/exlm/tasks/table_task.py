"""A table whose rows have labels, classes or numbers: load it once, then train any number of seeds;
and predict with their models."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from rdkit.DataStructs import ExplicitBitVect
from scipy.special import softmax
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, PreTrainedModel

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
from exlm.tasks.metrics import RowScorer, as_rows, score_labels, score_predictions
from exlm.tasks.predictions import (
    ChunkPredictor,
    LabelScorer,
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


class FileToPredict(NamedTuple):
    """A file and the models that predict for it, with what is decided once for all of its rows."""

    models: Sequence[SeedModel]
    path: str
    options: PredictOptions
    molecules: bool  # whether its texts are SMILES
    training: list[ExplicitBitVect]  # fingerprints of the training molecules, for distances
    margins: np.ndarray | None  # [labels] the conformal errors, for intervals


class TableTask(LabelledTask):
    """A labelled table, its tokens, and how to train a model on it (`FinetuningTask`).

    A further kind of task changes what it needs of the hooks. For training: `load_table` (labels),
    `head_names` (how many outputs the head has), `batch_labels` and `loss`. For predictions:
    `outputs`, `as_predictions` and `prediction_columns`. What a hook needs of a saved model is in
    `saved`, which `task_to_save` makes. The flags below and those of its entry in LABEL_TYPES
    decide the rest."""

    model_classes: ClassVar[Models] = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    has_baselines: ClassVar[bool] = True
    # Whether a temperature is fitted that divides the outputs before they become probabilities;
    # never where the labels are numbers. False if the outputs are no logits of the labels.
    fits_temperature: ClassVar[bool] = True
    predicts_in_chunks: ClassVar[bool] = True  # whether some rows can be predicted without the rest
    can_explain: ClassVar[bool] = True  # whether texts can be masked, and have one prediction each
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
        split = self.split_of(seed)
        saved = self.task_to_save(split["train"], hyper)
        names = self.head_names(saved)
        model_settings = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": self.problem_type,
            "task": saved,
        }
        network = self.encoder.load(self.model_classes, hyper, model_settings)
        best_epoch = self._train(network, saved, run_dir, hyper, seed, split)

        predicted_rows = self.table.usable & self.rows_to_predict(split)
        tuned = TunedModel(network, self.tokenizer, saved)
        outputs = self.outputs(tuned, self.table, np.flatnonzero(predicted_rows))
        network.config.task = self._completed(saved, network, outputs, split["valid"])
        save_model(run_dir, network, self.tokenizer)
        predictions = self.as_predictions(outputs, saved)
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}

    def _completed(
        self, saved: SavedTask, network: PreTrainedModel, outputs: np.ndarray, valid: np.ndarray
    ) -> SavedTask:
        """What is saved with a trained network, whose outputs are [rows, outputs]: the temperature
        of logits, or the scale of numbers as part of the network, and the errors on valid."""
        label_type = self.table.label_type
        if label_type.is_number or label_type.one_class:
            predictions = self.as_predictions(outputs[valid], saved)
            errors = conformal_errors(self.table.labels[valid], predictions, label_type.has_classes)
            saved = {**saved, "validation_errors": errors_to_keep(errors)}
        if label_type.is_number:
            return fold_label_scale(network, saved)
        if not self.fits_temperature:
            return saved
        labels, logits = as_rows(self.table.labels[valid], outputs[valid])
        temperature = fit_temperature(logits, labels, label_type.has_classes)
        return {**saved, "temperature": temperature}

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
            outputs = model(**model_inputs(model, batch)).logits.float()
            total, count = self.loss(outputs, batch["labels"].to(outputs.device))
            return total, count, torch.zeros_like(count)

        def validate(network: nn.Module) -> dict[str, float]:
            tuned = TunedModel(network, self.tokenizer, saved)
            outputs = self.outputs(tuned, self.table, split["valid"])
            predictions = self.as_predictions(outputs, saved)
            return self.score(predictions, split["valid"], saved["error_units"])

        lengths = [len(example["input_ids"]) for example in self.table.examples]
        batches = ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate)
        return train_best_epoch(
            network, training_loss, batches, run_dir, hyper, validate, self.metric, self.device
        )

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

    def task_to_save(self, train_rows: np.ndarray, hyper: FinetuneConfig) -> SavedTask:
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
    def prediction_columns(
        runs: Sequence[np.ndarray], table: LabelledTable, saved: SavedTask
    ) -> dict[str, Any]:
        """The columns to add, from the predictions [rows, outputs] of every model: means, standard
        deviations, and for one label with classes the predicted class and its probability."""
        means = np.mean(runs, 0)
        columns: dict[str, Any] = {}
        for i, name in enumerate(prediction_titles(prediction_names(saved))):
            columns[name] = means[:, i]
            if len(runs) > 1:
                columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
        if LABEL_TYPES[saved["task_type"]].one_class:
            columns |= _class_columns(means, saved["classes"], saved.get("words"))
        return columns

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
            skip_unknown_classes=True,
        )
        return labelled.labels

    @classmethod
    def predict(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> Predictions:
        """Predictions for a table: means over the models, with standard deviations."""
        saved = models[0].saved
        frame = read_frame(input, options.header, options.sheet)
        file = cls._open(models, frame, input, options)
        table, runs = cls._run(file, frame, shows_progress=True)
        result, counts = cls._with_predictions(file, table, runs)
        if options.explain:
            result = with_columns(result, {"explanation": cls._explain(file, table)})
        label_columns = options.labels_in(frame, input, saved["label_columns"])
        needed_columns = [*label_columns, saved.get("mask_column")]
        if not all(name in frame for name in needed_columns if name):
            return Predictions(result, counts)
        try:
            labels = cls.saved_labels(table, input, {**saved, "label_columns": label_columns})
        except InputError as error:
            return Predictions(result, counts, note=str(error))
        scorers, label_scorer = _scorers(labels, saved, runs, file.margins)
        return Predictions(
            frame=result,
            counts=counts,
            scorers=scorers,
            labelled=np.flatnonzero(table.usable & ~np.isnan(labels).all(1)),
            label_scorer=label_scorer,
            texts=table.texts,
        )

    @classmethod
    def chunk_predictor(
        cls, models: Sequence[SeedModel], input: str, options: PredictOptions
    ) -> ChunkPredictor | None:
        """Predicts for some rows of a table, which must not have the label columns."""
        if not cls.predicts_in_chunks or options.explain:
            return None
        first_rows = next(read_frames(input, options.header, ROWS, sheet=options.sheet))
        trained_on = models[0].saved["label_columns"]
        if set(options.labels_in(first_rows, input, trained_on)) <= set(first_rows):
            return None
        file = cls._open(models, first_rows, input, options)

        def predict_chunk(rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
            return cls._with_predictions(file, *cls._run(file, rows, shows_progress=False))

        return predict_chunk

    @classmethod
    def _open(
        cls,
        models: Sequence[SeedModel],
        first_rows: pd.DataFrame,
        path: str,
        options: PredictOptions,
    ) -> FileToPredict:
        """The file that begins with these rows."""
        saved = models[0].saved
        if options.calibrated and any("temperature" not in model.saved for model in models):
            raise InputError(
                "calibrated probabilities need a classification "
                "that was fine-tuned by this version of exlm"
            )
        margins = None if options.interval is None else conformal_margins(models, options.interval)
        if margins is not None and options.calibrated:
            raise InputError(
                "interval takes the probabilities as they are, which have been compared with the "
                "validation rows; leave out calibrated"
            )
        if options.explain:
            if not cls.can_explain:
                raise InputError(
                    "explain is for fine-tuned encoders that predict for whole texts, not for "
                    f"{models[0].directory}; leave it out"
                )
            output_path("", path, options.explain, "", (".html",))
        texts = cls.table_to_predict(first_rows, path, options, saved).texts
        molecules = decide_molecules(texts, saved["molecules"], options.molecules, path)
        run_dirs = [model.directory for model in models]
        training = training_fingerprints(run_dirs) if options.distance else []
        return FileToPredict(models, path, options, molecules, training, margins)

    @classmethod
    def _with_predictions(
        cls, file: FileToPredict, table: LabelledTable, runs: dict[str, np.ndarray]
    ) -> tuple[pd.DataFrame, dict[str, int]]:
        """The rows of a table with their predictions, and how many there are of every kind."""
        saved = file.models[0].saved
        columns = cls.prediction_columns(list(runs.values()), table, saved)
        if file.margins is not None:
            columns |= conformal_columns(np.mean(list(runs.values()), 0), file.margins, saved)
        counts = table.counts("predicted")
        if file.options.distance:
            distances = distance_to_training(file.training, table.texts)
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        return with_columns(table.frame, {**columns, "problem": table.problems}), counts

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
    def _run(
        cls, file: FileToPredict, rows: pd.DataFrame, shows_progress: bool
    ) -> tuple[LabelledTable, dict[str, np.ndarray]]:
        """Some rows of a file, and what every model predicts for them: [rows, outputs] by name."""
        saved = file.models[0].saved
        table = cls.table_to_predict(rows, file.path, file.options, saved)
        runs = dict[str, np.ndarray]()
        for model in file.models:
            reader = TextReader(
                tokenizer=model.loaded.tokenizer,
                max_length=saved["max_length"],
                molecules=file.molecules,
                standardize=saved.get("standardize", "none"),
                on_invalid=file.options.on_invalid,
            )
            read_table = reader.read_chunk(table, file.path)
            usable_rows = np.flatnonzero(read_table.usable)
            progress = model.directory.name if shows_progress else None
            runs[model.directory.name] = cls._predictions_of(
                model, file, read_table, usable_rows, progress
            )
        return read_table, runs

    @classmethod
    def _predictions_of(
        cls,
        model: SeedModel,
        file: FileToPredict,
        table: LabelledTable,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """What a model predicts for some rows: [all rows, outputs], NaN for all others."""
        outputs = cls.outputs(model.loaded, table, rows, progress)
        temperature = model.saved["temperature"] if file.options.calibrated else 1.0
        return cls.as_predictions(outputs, model.saved, temperature)

    @classmethod
    def _explain(cls, file: FileToPredict, table: LabelledTable) -> list[str | None]:
        """Writes the page of explanations of the mean predictions; returns the numbers of every
        row as JSON."""

        def predict(examples: list[Tokens]) -> np.ndarray:
            masked = replace(table, examples=examples)
            rows = np.arange(len(examples))
            runs = [cls._predictions_of(model, file, masked, rows) for model in file.models]
            return np.mean(runs, 0)

        model = file.models[0]
        explanations = explain(table, predict, model.loaded.tokenizer, model.saved, file.molecules)
        names = prediction_titles(prediction_names(model.saved))
        assert file.options.explain
        write_page(Path(file.options.explain), explanations, names, bool(model.saved["classes"]))
        return [explanation and explanation.as_json(names) for explanation in explanations]


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


def _scorers(
    labels: np.ndarray,
    saved: SavedTask,
    runs: dict[str, np.ndarray],
    margins: np.ndarray | None,
) -> tuple[dict[str, RowScorer], LabelScorer]:
    """How every model, and the mean of several, is scored on some rows; and how every label is, by
    the first of these. Coverage is the share of errors within the `margins`."""
    task_type = saved["task_type"]
    label_type = LABEL_TYPES[task_type]
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
        if not label_type.is_number:  # the predictions are probabilities
            row_labels, probabilities = as_rows(labels[rows], predictions[rows])
            error = calibration_error(row_labels, probabilities, label_type.has_classes)
            scores["calibration_error"] = error
        if margins is not None:
            errors = conformal_errors(labels[rows], predictions[rows], label_type.has_classes)
            scores["coverage"] = float(np.mean((errors <= margins)[~np.isnan(errors)]))
        return scores

    def score_every_label(rows: np.ndarray) -> dict[str, dict[str, float]]:
        predictions = next(iter(runs.values()))
        return score_labels(task_type, saved["label_columns"], labels[rows], predictions[rows])

    return {name: partial(score, run) for name, run in runs.items()}, score_every_label
