"""What fine-tuned models predict for the rows of a table."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import standardize
from exlm.data.chunks import ROWS, output_path
from exlm.data.columns import listed
from exlm.data.frames import FileRows, read_chunks, read_file
from exlm.errors import InputError, note
from exlm.storage.files import RUN_RESULT, read_or_empty
from exlm.tasks.encoders.saved_task import SeedModel
from exlm.tasks.rows.predictions import (
    Predictions,
    PredictOptions,
    Scores,
    with_predictions,
)
from exlm.tasks.rows.reading import (
    TableTokens,
    TextReader,
    Tokens,
    decide_molecules,
    spelling_of,
)
from exlm.tasks.rows.table import TextTable, unlabelled_table
from exlm.tasks.tables.certainty import conformal_margins
from exlm.tasks.tables.explain import explain, write_page
from exlm.tasks.tables.output_meaning import meaning_of
from exlm.tasks.tables.scoring import ENSEMBLE, scores_of
from exlm.tasks.tables.training_rows import (
    TrainingTexts,
    distance_to_training,
    training_fingerprints,
)

# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


class TablePredictor:
    """The models of all seeds, and the table that they predict for (`Predictor`). What is decided
    once for all of its rows: its columns of texts and of labels, whether the texts are `molecules`,
    the fingerprints of the training molecules for distances (`training_bits`), and the `margins`
    [labels] of intervals by the name of the model."""

    def __init__(
        self,
        models: Sequence[SeedModel],
        path: str,
        options: PredictOptions,
        first_rows: FileRows,
    ) -> None:
        """`first_rows` are those of the table, by which all is decided; `path` is its name."""
        self.models = models
        self.path = path
        self.options = options
        self.saved_task = models[0].saved_task
        self.meaning = meaning_of(self.saved_task)
        frame = first_rows.frame
        self.label_columns = options.labels_in(frame, path, self.saved_task.label_columns)
        self.has_labels = not set(self.label_columns).isdisjoint(frame)
        self._check_options()
        self.margins = _margins_by_model(models, options.interval)
        self.training_bits = training_fingerprints(models) if options.distance else []
        self.text_column = options.text_column
        if self.text_column is None:
            self.text_column = self.saved_task.text_column_in(frame.columns, path)
        table = self.texts_of(first_rows)
        if options.text_column is None and self.saved_task.text_column not in frame:
            note(
                f"{path} has no column {self.saved_task.text_column!r}, which the model was "
                f"trained with; the texts of {table.text_column!r} are read"
            )
        seconds = table.pairs or table.texts
        different_texts = set(zip(table.texts, seconds, strict=True))
        if len(table.texts) > 1 and len(different_texts) == 1:
            note(
                f"the first rows of {path} have the same text in {table.text_column!r}; "
                "if another column holds the texts, name it with text_column"
            )
        self.molecules = decide_molecules(table.texts, options.molecules, self.saved_task.molecules)

    @classmethod
    def for_file(cls, models: Sequence[SeedModel], path: str, options: PredictOptions) -> Self:
        """The models, and the table in a file."""
        first_rows = next(read_chunks(path, options.table_options, ROWS))
        return cls(models, path, options, first_rows)

    @property
    def in_chunks(self) -> bool:
        """Whether some rows can be predicted at a time: those with labels are scored together."""
        return not (self.has_labels or self.options.explain)

    def _check_options(self) -> None:
        """InputError for options that these models do not have."""
        options = self.options
        if options.calibrated and any(
            model.saved_task.temperature is None for model in self.models
        ):
            raise InputError(
                "calibrated probabilities need a classification with a temperature, "
                "fine-tuned by this version of exlm; leave out calibrated"
            )
        if options.calibrated and options.interval is not None:
            raise InputError(
                "interval takes the probabilities as they are, which have been compared with the "
                "validation rows; leave out calibrated"
            )
        if options.distance and (self.saved_task.molecules is False or self.saved_task.pair_column):
            raise InputError(
                "distance compares molecules, but this model was fine-tuned on pairs or other "
                "texts; leave it out"
            )
        if options.pair_column and not self.saved_task.pair_column:
            raise InputError(
                f"pair_column names {options.pair_column!r}, but the model reads single texts; "
                "leave it out"
            )
        if options.explain and self.meaning.label_type.of_units:
            raise InputError(
                "explain is for fine-tuned encoders that predict for whole texts, not for "
                f"{self.models[0].directory}; leave it out"
            )
        if options.explain:
            output_path("", self.path, options.explain, "", (".html",))

    def predict(self, rows: FileRows | None = None) -> Predictions:
        """Predictions for some rows of the table, or for all: means over the models, with standard
        deviations; and how they are scored if the table has labels."""
        if rows is None:
            rows = read_file(self.path, self.options.table_options)
        table, tokens = self.read(rows)
        by_model = self.predictions_by_model(table, tokens, shows_progress=not self.in_chunks)
        in_training = self._training_texts.rows_in(table)
        frame, counts = self._with_predictions(table, by_model, in_training)
        if self.options.explain:
            explanations = {"explanation": self._explain(table, tokens)}
            frame = with_predictions(frame, explanations, self.path)
        predictions = Predictions(frame, counts)
        if not self.has_labels:
            return predictions
        try:
            scores = self._scores(table, by_model, in_training)
        except InputError as error:
            return replace(predictions, note=str(error))
        return replace(predictions, scores=scores)

    def _scores(
        self, table: TextTable, by_model: dict[str, np.ndarray], in_training: np.ndarray | None
    ) -> Scores:
        """How predictions are scored. InputError if labels cannot be read, or if there are none."""
        mask_column = self.saved_task.mask_column
        if mask_column and mask_column not in table.frame:
            raise InputError(
                f"the table has no column {mask_column}, which the model was trained with; add it"
            )
        labels, unknown_labels = self.meaning.read(table, self.path, self.label_columns)
        labelled = table.usable & ~np.isnan(labels).all(1)
        if not labelled.any():
            raise InputError(
                f"no row has a prediction and a label in {listed(self.label_columns, 5)}; "
                "name the column that has the labels with label_columns"
            )
        missing = [name for name in self.label_columns if name not in table.frame]
        if missing:
            note(f"{self.path} has no column {listed(missing)}; the other labels are scored")
        rows = np.flatnonzero(labelled)
        scores = scores_of(self.saved_task, labels, rows, by_model, self.margins)
        return replace(
            scores,
            unknown_labels=unknown_labels,
            in_training=None if in_training is None else int(in_training[rows].sum()),
        )

    @cached_property
    def _training_texts(self) -> TrainingTexts:
        return TrainingTexts(
            [model.directory for model in self.models],
            spelling_of(self._tokenizer(), self.molecules, self.saved_task.standardize),
            molecules=self.molecules and self.saved_task.pair_column is None,
        )

    def _tokenizer(self) -> PreTrainedTokenizerFast | None:
        """What spells texts before they are compared; None for molecules."""
        return None if self.molecules else self.models[0].loaded.tokenizer

    def read(self, rows: FileRows) -> tuple[TextTable, TableTokens]:
        """Some rows of the file, as the models read them."""
        # The models of a fine-tuning have the same tokenizer.
        reader = TextReader(
            tokenizer=self.models[0].loaded.tokenizer,
            max_length=self.saved_task.max_length,
            molecules=self.molecules,
            standardize=self.saved_task.standardize,
            on_invalid=self.options.on_invalid,
        )
        return reader.read(self.texts_of(rows), self.path)

    def texts_of(self, rows: FileRows) -> TextTable:
        """Some rows of the file as a table without labels. Its columns of texts are those of the
        training, in any case, if they are not named; or one with a usual name. InputError if a
        second text is missing that the model reads."""
        pair_column = self.options.pair_column or self.saved_task.pair_column
        if pair_column is not None and pair_column not in rows.frame:
            raise InputError(
                f"{self.path} has no column {pair_column!r}, and the model reads two texts of a "
                "row; name their columns with text_column and pair_column"
            )
        table = unlabelled_table(rows, self.path, self.text_column, pair_column)
        return replace(table, unit_pattern=self.saved_task.unit_pattern)

    def predictions_by_model(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every model predicts for rows that were read: [rows, outputs] by name."""
        usable_rows = np.flatnonzero(table.usable)
        by_model = dict[str, np.ndarray]()
        for model in self.models:
            name = model.directory.name
            progress = name if shows_progress else None
            by_model[name] = self._predictions_of(model, tokens, usable_rows, progress)
        return by_model

    def _predictions_of(
        self,
        model: SeedModel,
        tokens: TableTokens,
        rows: np.ndarray,
        progress: str | None = None,
    ) -> np.ndarray:
        """What a model predicts for some rows: [all rows, outputs], NaN for all others."""
        meaning = meaning_of(model.saved_task)
        outputs = meaning.outputs(model.loaded, tokens, rows, self.options.precision, progress)
        temperature = 1.0
        if self.options.calibrated and model.saved_task.temperature:
            temperature = model.saved_task.temperature
        return meaning.as_predictions(outputs, temperature)

    def _with_predictions(
        self, table: TextTable, by_model: dict[str, np.ndarray], in_training: np.ndarray | None
    ) -> tuple[pd.DataFrame, dict[str, int]]:
        """The rows of a table with their predictions, intervals or sets, distances, and whether
        they are `in_training` ([rows] bool), if this is known; and how many rows are what."""
        predictions = list(by_model.values())
        columns = self.meaning.columns(predictions, table)
        if self.margins:
            means = np.mean(predictions, 0)
            columns |= self.meaning.interval_columns(means, self.margins[ENSEMBLE])
        counts = table.counts("predicted")
        if self.options.distance:
            molecules = [standardize(text, self.saved_task.standardize) for text in table.texts]
            distances = distance_to_training(self.training_bits, molecules)
            distances[~table.usable] = np.nan
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        if in_training is not None:
            columns["in_training"] = in_training
        columns["problem"] = table.problems
        return with_predictions(table.frame, columns, self.path), counts

    def _explain(self, table: TextTable, tokens: TableTokens) -> list[str | None]:
        """Writes the page of explanations of the mean predictions; returns the numbers of every
        row as JSON."""

        def predict(examples: list[Tokens]) -> np.ndarray:
            masked = TableTokens(examples)
            rows = np.arange(len(examples))
            return np.mean([self._predictions_of(model, masked, rows) for model in self.models], 0)

        explanations = explain(
            table=table,
            examples=tokens.examples,
            predict=predict,
            tokenizer=self.models[0].loaded.tokenizer,
            saved_task=self.saved_task,
            molecules=self.molecules,
        )
        names = self.meaning.titles
        assert self.options.explain
        draws_best_only = bool(self.saved_task.class_names)
        write_page(Path(self.options.explain), explanations, names, draws_best_only)
        return [explanation and explanation.as_json(names) for explanation in explanations]


def _margins_by_model(models: Sequence[SeedModel], interval: float | None) -> dict[str, np.ndarray]:
    """The margins of an interval [labels] of every model, and the largest for the ensemble; {} if
    none is wanted."""
    if interval is None:
        return {}
    margins = {}
    for model in models:
        margins[model.directory.name] = conformal_margins(model, interval)
        result = read_or_empty(model.directory / RUN_RESULT)
        known = result.get("in_earlier_training", {}).get("valid", 0)
        if known != 0:
            count = "some" if known is None else known
            note(
                f"{count} of the validation rows of {model.directory}, whose errors make the "
                "interval, may stand in an earlier training, so that the interval is too narrow"
            )
    return {ENSEMBLE: np.max(list(margins.values()), 0), **margins}
