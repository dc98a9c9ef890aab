"""What fine-tuned models predict for the rows of a table, and how predictions are scored."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from rdkit.DataStructs import ExplicitBitVect

from exlm.data.chemistry import comparable, standardize
from exlm.data.chunks import ROWS, output_path
from exlm.data.columns import listed
from exlm.data.frames import FileRows, number_columns, read_file, read_file_chunks, with_columns
from exlm.errors import InputError
from exlm.tasks.certainty import (
    calibration_error,
    conformal_columns,
    conformal_errors,
    conformal_margins,
)
from exlm.tasks.explain import explain, write_page
from exlm.tasks.metrics import (
    as_rows,
    confusion,
    has_entities,
    score_classes,
    score_entities,
    score_labels,
    score_predictions,
)
from exlm.tasks.output_meaning import meaning_of
from exlm.tasks.predictions import ChunkPredictor, Predictions, PredictOptions
from exlm.tasks.reading import (
    TableTokens,
    TextReader,
    Tokens,
    decide_molecules,
    text_spelling,
)
from exlm.tasks.saved_task import SeedModel
from exlm.tasks.table import TextTable
from exlm.tasks.training_molecules import (
    distance_to_training,
    marks_of,
    training_fingerprints,
    training_marks,
    training_molecules,
)

# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


class TablePredictor:
    """The models of all seeds, and the table that they predict for (`Predictor`). What is decided
    once for all of its rows: whether its texts are `molecules`, the fingerprints of the `training`
    molecules for distances, and the `margins` [labels] of intervals. `rows` are all rows of the
    table, if they are not to be read from `path`."""

    fits_again: ClassVar[bool] = False  # whether a model is fitted in every call

    def __init__(
        self,
        models: Sequence[SeedModel],
        path: str,
        options: PredictOptions,
        rows: FileRows | None = None,
    ) -> None:
        self.models = models
        self.path = path
        self.options = options
        self.saved = models[0].saved
        self.meaning = meaning_of(self.saved)
        self.rows = rows
        if rows is None:
            rows = next(read_file_chunks(path, options.table_options, ROWS))
        self.label_columns = options.labels_in(rows.frame, path, self.saved["label_columns"])
        self.has_labels = not set(self.label_columns).isdisjoint(rows.frame)
        self._check_options()
        self.margins = None
        if options.interval is not None:
            self.margins = conformal_margins(models, options.interval)
        table = self.meaning.table_to_predict(rows, path, options.text_column, options.pair_column)
        if options.text_column is None and table.text_column != self.saved["text_column"]:
            print(
                f"note: {path} has no column {self.saved['text_column']!r}, which the model was "
                f"trained with; the texts of {table.text_column!r} are read",
                file=sys.stderr,
            )
        self.molecules = decide_molecules(
            table.texts, self.saved["molecules"], options.molecules, path
        )
        self.training: list[ExplicitBitVect] = []
        if options.distance:
            self.training = training_fingerprints(models)

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
        if options.interval is not None and self.fits_again:
            raise InputError(
                "interval needs the errors of validation rows, which baselines do not keep; leave "
                "it out"
            )
        if options.distance and self.saved["molecules"] is False:
            raise InputError(
                "distance compares molecules, but this model was fine-tuned on other texts; "
                "leave it out"
            )
        if options.explain and (self.fits_again or not self.meaning.can_explain):
            raise InputError(
                "explain is for fine-tuned encoders that predict for whole texts, not for "
                f"{self.models[0].directory}; leave it out"
            )
        if options.explain:
            output_path("", self.path, options.explain, "", (".html",))

    def predict(self) -> Predictions:
        """Predictions for all rows: means over the models, with standard deviations; and how they
        are scored if the table has labels."""
        rows = self.rows
        if rows is None:
            rows = read_file(self.path, self.options.table_options)
        numbers = number_columns(self.path, rows.frame)
        return replace(self._predict(rows), numbers=numbers)

    def _predict(self, rows: FileRows) -> Predictions:
        table, tokens = self.read(rows)
        runs = self.run(table, tokens, shows_progress=True)
        result, counts = self._with_predictions(table, runs)
        if self.options.explain:
            result = with_columns(result, {"explanation": self._explain(table, tokens)})
        if set(self.label_columns).isdisjoint(table.frame):
            return Predictions(result, counts)
        mask_column = self.saved.get("mask_column")
        if mask_column and mask_column not in table.frame:
            note = (
                f"the table has no column {mask_column}, which the model was trained with; add it"
            )
            return Predictions(result, counts, note=note)
        try:
            labels = self.meaning.read(self._with_all_labels(table), self.path, self.label_columns)
        except InputError as error:
            return Predictions(result, counts, note=str(error))
        means = np.mean(list(runs.values()), 0)
        margins = dict(zip(runs, self._margins_of_models(), strict=True))
        if len(runs) > 1:
            runs = {"ensemble": means, **runs}
            margins["ensemble"] = self.margins
        labelled = np.flatnonzero(table.usable & ~np.isnan(labels).all(1))
        classes = self.saved["classes"]
        class_scores, confused = {}, {}
        if classes and len(labelled):
            class_scores = self._class_scores(labels[labelled], means[labelled], classes)
            confused = confusion(labels[labelled], means[labelled], classes)
        return Predictions(
            frame=result,
            counts=counts,
            scorers={
                name: partial(self._score, labels, run, margins[name]) for name, run in runs.items()
            },
            labelled=labelled,
            label_scores=self._label_scores(labels[labelled], means[labelled]),
            class_scores=class_scores,
            confusion=confused,
            in_training=self._count_in_training(table, labelled),
        )

    def _with_all_labels(self, table: TextTable) -> TextTable:
        """The table with an empty column for every label that it lacks, which a note names."""
        missing = [name for name in self.label_columns if name not in table.frame]
        if not missing:
            return table
        print(
            f"note: {self.path} has no column {listed(missing)}; the other labels are scored",
            file=sys.stderr,
        )
        frame = table.frame.copy(deep=False)
        frame[missing] = ""
        return replace(table, rows=FileRows(frame, table.rows.faults))

    def spelling(self) -> Callable[[str], str]:
        """From a text to the spelling by which one of the training is recognised."""
        if self.molecules:
            return partial(comparable, how=self.saved.get("standardize", "none"))
        return text_spelling(self.models[0].loaded.tokenizer)

    def _count_in_training(self, table: TextTable, rows: np.ndarray) -> int | None:
        """How many of the rows have texts that the models were trained on, in any spelling; None if
        these were not kept."""
        run_dirs = [model.directory for model in self.models]
        spelling = self.spelling()
        if self.molecules and table.pairs is None:
            training = set(map(spelling, training_molecules(run_dirs)))
            keys = [spelling(table.texts[row]) for row in rows]
        else:
            training = training_marks(run_dirs)
            keys = marks_of(table, rows, spelling)
        return sum(key in training for key in keys) if training else None

    def chunk_predictor(self) -> ChunkPredictor | None:
        """None for a table that has label columns: its rows are scored together, or it is said why
        not."""
        if self.fits_again or self.has_labels or self.options.explain:
            return None
        return self._predict_chunk

    def _predict_chunk(self, rows: FileRows) -> tuple[pd.DataFrame, dict[str, int]]:
        """Some rows of the file with their predictions, and how many there are of every kind."""
        table, tokens = self.read(rows)
        return self._with_predictions(table, self.run(table, tokens, shows_progress=False))

    def read(self, rows: FileRows) -> tuple[TextTable, TableTokens]:
        """Some rows of the file, as the models read them."""
        # The models of a fine-tuning have the same tokenizer.
        reader = TextReader(
            tokenizer=self.models[0].loaded.tokenizer,
            max_length=self.saved["max_length"],
            molecules=self.molecules,
            standardize=self.saved.get("standardize", "none"),
            on_invalid=self.options.on_invalid,
        )
        options = self.options
        table = self.meaning.table_to_predict(
            rows, self.path, options.text_column, options.pair_column
        )
        return reader.read_chunk(table, self.path)

    def run(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every model predicts for rows that were read: [rows, outputs] by name."""
        usable_rows = np.flatnonzero(table.usable)
        runs = dict[str, np.ndarray]()
        for model in self.models:
            name = model.directory.name
            progress = name if shows_progress else None
            runs[name] = self._predictions_of(model, tokens, usable_rows, progress)
        return runs

    def _predictions_of(
        self,
        model: SeedModel,
        tokens: TableTokens,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """What a model predicts for some rows: [all rows, outputs], NaN for all others."""
        meaning = meaning_of(model.saved)
        outputs = meaning.outputs(model.loaded, tokens, rows, progress)
        temperature = model.saved["temperature"] if self.options.calibrated else 1.0
        return meaning.as_predictions(outputs, temperature)

    def _with_predictions(
        self, table: TextTable, runs: dict[str, np.ndarray]
    ) -> tuple[pd.DataFrame, dict[str, int]]:
        """The rows of a table with their predictions: means, standard deviations, and for one label
        with classes the predicted class; and how many rows there are of every kind."""
        means = np.mean(list(runs.values()), 0)
        columns = self.meaning.columns(means, table)
        if len(runs) > 1 and means.ndim == 2:
            spread = np.std(list(runs.values()), 0, ddof=1)
            spreads = self.meaning.columns(spread, table)
            values = columns
            columns = {}
            for name in values:
                # A label may itself be called `NAME std`.
                title = f"{name} std over seeds" if f"{name} std" in values else f"{name} std"
                columns[name] = values[name]
                columns[title] = spreads[name]
        if self.meaning.label_type.class_per_row:
            title = "predicted class"
            if title in columns:  # a label or a class may itself be called `class`
                title = "most probable class"
            columns |= self._class_columns(means, title)
        if self.margins is not None:
            columns |= conformal_columns(means, self.margins, self.saved)
        counts = table.counts("predicted")
        if self.options.distance:
            how = self.saved.get("standardize", "none")
            molecules = [standardize(text, how) for text in table.texts]
            distances = distance_to_training(self.training, molecules)
            distances[~table.usable] = np.nan
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        return with_columns(table.frame, {**columns, "problem": table.problems}), counts

    def _class_columns(self, means: np.ndarray, title: str) -> dict[str, Any]:
        """The predicted class of every row, in the column `title`, and how sure the models are of
        it, from mean probabilities [rows, classes] or, of label 1, [rows, 1]."""
        names = self.saved["classes"] or self.saved.get("words")
        if self.saved["classes"]:
            best = means.argmax(1)
            confidence = means.max(1)
        else:
            best = (means[:, 0] >= 0.5).astype(int)
            confidence = np.maximum(means, 1 - means)[:, 0]
        predicted = pd.Series(best, dtype="Int64").mask(np.isnan(means[:, 0]))
        if names:
            predicted = predicted.map(dict(enumerate(names)))
        # without the index: that of a chunk begins at its first row
        return {title: predicted.array, "confidence": confidence}

    def _explain(self, table: TextTable, tokens: TableTokens) -> list[str | None]:
        """Writes the page of explanations of the mean predictions; returns the numbers of every
        row as JSON."""

        def predict(examples: list[Tokens]) -> np.ndarray:
            masked = TableTokens(examples)
            rows = np.arange(len(examples))
            return np.mean([self._predictions_of(model, masked, rows) for model in self.models], 0)

        tokenizer = self.models[0].loaded.tokenizer
        explanations = explain(
            table, tokens.examples, predict, tokenizer, self.saved, self.molecules
        )
        names = self.meaning.titles
        assert self.options.explain
        write_page(Path(self.options.explain), explanations, names, bool(self.saved["classes"]))
        return [explanation and explanation.as_json(names) for explanation in explanations]

    def _margins_of_models(self) -> list[np.ndarray | None]:
        """For every model the margins of its own intervals; those of several are the largest."""
        level = self.options.interval
        if level is None:
            return [None] * len(self.models)
        return [conformal_margins([model], level) for model in self.models]

    def _score(
        self,
        labels: np.ndarray,
        predictions: np.ndarray,
        margins: np.ndarray | None,
        rows: np.ndarray,
    ) -> dict[str, float]:
        """The metrics of predictions [all rows, outputs] on some rows. Coverage is the share of
        errors within the `margins` [labels]."""
        saved = self.saved
        label_type = self.meaning.label_type
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
                *as_rows(labels, predictions), label_type.predicts_every_class
            )
        if margins is not None:
            errors = conformal_errors(labels, predictions, label_type.predicts_every_class)
            scores["coverage"] = float(np.mean((errors <= margins)[~np.isnan(errors)]))
        return scores

    def _class_scores(
        self, labels: np.ndarray, predictions: np.ndarray, classes: list[str]
    ) -> dict[str, dict[str, float]]:
        """`score_classes`, or `score_entities` where classes mark entities."""
        if predictions.ndim == 3 and has_entities(classes):
            return score_entities(labels, predictions, classes)
        return score_classes(labels, predictions, classes)

    def _label_scores(
        self, labels: np.ndarray, predictions: np.ndarray
    ) -> dict[str, dict[str, float]]:
        """The metrics of every label by itself, and the coverage of its intervals; {} if there is
        only one label."""
        saved = self.saved
        scores = score_labels(saved["task_type"], saved["label_columns"], labels, predictions)
        if self.margins is not None and scores:
            errors = conformal_errors(labels, predictions, predicts_every_class=False)
            for name, of_label, margin in zip(scores, errors.T, self.margins, strict=True):
                is_within = of_label[~np.isnan(of_label)] <= margin
                scores[name]["coverage"] = float(is_within.mean()) if len(is_within) else np.nan
        return scores
