"""What fine-tuned models predict for the rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from rdkit.DataStructs import ExplicitBitVect
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import standardize
from exlm.data.chunks import ROWS, output_path
from exlm.data.columns import check_columns, listed, match_columns
from exlm.data.drawing import drawing_module
from exlm.data.frames import FileRows, read_chunks, read_file
from exlm.errors import InputError, note
from exlm.storage.files import RUN_RESULT, read_or_empty
from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.results import is_baseline
from exlm.tasks.rows.reading import TableTokens, TextReader, Tokens, decide_molecules, spelling_of
from exlm.tasks.rows.table import TextTable, unlabelled_table
from exlm.tasks.tables.certainty import conformal_margins
from exlm.tasks.tables.explain import explain, write_page
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.predictions import Predictions, PredictOptions, Scores, with_predictions
from exlm.tasks.tables.scoring import ENSEMBLE, scores_of
from exlm.tasks.tables.training_texts import (
    TrainingTexts,
    distance_to_training,
    training_fingerprints,
)

# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


@dataclass
class TablePredictor:
    """The models of all seeds, and a table that they predict for (a `Predictor`)."""

    models: Sequence[SeedModel]
    path: str  # what the table is called
    options: PredictOptions
    saved_task: SavedTask  # that of all models, but for what their trainings found out
    text_column: str
    pair_column: str | None
    label_columns: list[str]  # in the order of the training; the table may lack them
    has_labels: bool  # whether the table has one of them
    molecules: bool  # whether the texts are SMILES
    margins: dict[str, np.ndarray]  # [labels] those of intervals, by the name of the model
    training_bits: list[ExplicitBitVect]  # fingerprints of the training, for distances

    @classmethod
    def for_file(
        cls,
        models: Sequence[SeedModel],
        path: str,
        options: PredictOptions,
        first_rows: FileRows | None = None,
    ) -> Self:
        """The models, and the table in a file, whose first rows decide what its columns are and
        whether it has molecules. InputError for options that these models do not have."""
        check_options(models, path, options)
        if first_rows is None:
            first_rows = next(read_chunks(path, options.table_options, ROWS))
        frame = first_rows.frame
        saved_task = models[0].saved_task
        label_columns = columns_of_labels(frame, path, options, saved_task.label_columns)
        margins = _margins_by_model(models, options.interval)
        text_column = options.text_column or saved_task.text_column_in(frame.columns, path)
        pair_column = options.pair_column or saved_task.pair_column
        if pair_column is not None and pair_column not in frame:
            raise InputError(
                f"{path} has no column {pair_column!r}, and the model reads two texts of a "
                "row; name their columns with text_column and pair_column"
            )
        table = unlabelled_table(first_rows, path, text_column, pair_column)
        if options.text_column is None and saved_task.text_column not in frame:
            note(
                f"{path} has no column {saved_task.text_column!r}, which the model was "
                f"trained with; the texts of {table.text_column!r} are read"
            )
        different_texts = set(zip(table.texts, table.pairs or table.texts, strict=True))
        if len(table.texts) > 1 and len(different_texts) == 1:
            note(
                f"the first rows of {path} have the same text in {table.text_column!r}; "
                "if another column holds the texts, name it with text_column"
            )
        return cls(
            models=models,
            path=path,
            options=options,
            saved_task=saved_task,
            text_column=table.text_column,
            pair_column=pair_column,
            label_columns=label_columns,
            has_labels=not set(label_columns).isdisjoint(frame),
            molecules=decide_molecules(table.texts, options.molecules, saved_task.molecules),
            margins=margins,
            training_bits=training_fingerprints(models) if options.distance else [],
        )

    @property
    def meaning(self) -> OutputMeaning:
        return meaning_of(self.saved_task)

    @property
    def in_chunks(self) -> bool:
        """Whether some rows can be predicted at a time: those with labels are scored together."""
        return not (self.has_labels or self.options.explain)

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
        if not self.has_labels:
            return Predictions(frame, counts)
        try:
            return Predictions(frame, counts, self._scores(table, by_model, in_training))
        except InputError as error:
            return Predictions(frame, counts, note=str(error))

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
        return scores_of(
            self.saved_task,
            labels,
            np.flatnonzero(labelled),
            by_model,
            self.margins,
            in_training=None if in_training is None else int(in_training[labelled].sum()),
            unknown_labels=unknown_labels,
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

    def texts_of(self, rows: FileRows) -> TextTable:
        """Some rows of the file as a table without labels."""
        table = unlabelled_table(rows, self.path, self.text_column, self.pair_column)
        return replace(table, unit_pattern=self.saved_task.unit_pattern)

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

    def predictions_by_model(
        self, table: TextTable, tokens: TableTokens, shows_progress: bool
    ) -> dict[str, np.ndarray]:
        """What every model predicts for rows that were read: [rows, outputs] by name."""
        rows = np.flatnonzero(table.usable)
        return {
            model.directory.name: self._predictions_of(model, tokens, rows, shows_progress)
            for model in self.models
        }

    def _predictions_of(
        self, model: SeedModel, tokens: TableTokens, rows: np.ndarray, shows_progress: bool
    ) -> np.ndarray:
        """What a model predicts for some rows: [all rows, outputs], NaN for all others."""
        meaning = meaning_of(model.saved_task)
        progress = model.directory.name if shows_progress else None
        outputs = meaning.outputs(model.loaded, tokens, rows, self.options.precision, progress)
        temperature = model.saved_task.temperature if self.options.calibrated else None
        return meaning.as_predictions(outputs, temperature or 1.0)

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
        counts = table.counts("predicted", self.saved_task.standardize)
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
            by_model = [
                self._predictions_of(model, masked, rows, shows_progress=False)
                for model in self.models
            ]
            return np.mean(by_model, 0)

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
        count = result.get("in_earlier_training", {}).get("valid", 0)
        if count != 0:
            note(
                f"{count or 'some'} of the validation rows of {model.directory}, whose errors make "
                "the interval, may stand in an earlier training, so that the interval is too narrow"
            )
    return {ENSEMBLE: np.max(list(margins.values()), 0), **margins}


def check_options(models: Sequence[SeedModel], path: str, options: PredictOptions) -> None:
    """InputError for options that these models do not have."""
    saved_task = models[0].saved_task
    if options.calibrated and any(model.saved_task.temperature is None for model in models):
        raise InputError(
            "calibrated probabilities need a classification with a temperature, "
            "fine-tuned by this version of exlm; leave out calibrated"
        )
    if options.calibrated and options.interval is not None:
        raise InputError(
            "interval takes the probabilities as they are, which have been compared with the "
            "validation rows; leave out calibrated"
        )
    if options.distance and (saved_task.molecules is False or saved_task.pair_column):
        texts = "pairs" if saved_task.pair_column else "texts that are no molecules"
        raise InputError(
            f"distance compares molecules, but this model was fine-tuned on {texts}; leave it out"
        )
    if options.pair_column and not saved_task.pair_column:
        raise InputError(
            f"pair_column names {options.pair_column!r}, but the model reads single texts; "
            "leave it out"
        )
    directory = models[0].directory
    if options.explain and (saved_task.label_type.of_units or is_baseline(directory)):
        raise InputError(
            "explain is for fine-tuned encoders that predict for whole texts, not for "
            f"{directory}; leave it out"
        )
    if options.explain:
        output_path("", path, options.explain, "", (".html",))
        if saved_task.molecules:
            drawing_module()


def columns_of_labels(
    frame: pd.DataFrame, path: str, options: PredictOptions, training_labels: list[str]
) -> list[str]:
    """The columns of a table that have, or would have, the labels that were in the columns
    `training_labels`, in their order. InputError if the option `label_columns` names others, or not
    as many, or one label in the place of another."""
    if options.label_columns is None:
        return training_labels
    names = match_columns(options.label_columns, frame.columns)
    check_columns(frame, path, *names)
    if sorted(names) == sorted(training_labels):
        return training_labels
    places = zip(names, training_labels, strict=False)
    is_exchanged = any(name != label and name in training_labels for name, label in places)
    if len(names) != len(training_labels) or is_exchanged:
        raise InputError(
            f"label_columns names {listed(names)}; give the columns of "
            f"{listed(training_labels)}, in this order"
        )
    return names
