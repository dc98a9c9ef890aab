"""What fine-tuned models predict for the rows of a table."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from exlm.data.columns import check_columns, listed, match_columns
from exlm.data.drawing import drawing_module
from exlm.data.frames import FileRows, read_file, read_frames
from exlm.data.outputs import FRAME_ROWS, output_path
from exlm.data.spelling import Spelling, spelling_of
from exlm.errors import InputError, note
from exlm.storage.files import RUN_RESULT, read_or_empty
from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.results import is_baseline
from exlm.tasks.rows.reading import TableTokens, Tokens, decide_molecules
from exlm.tasks.rows.table import TextTable, unlabelled_table
from exlm.tasks.tables.certainty import conformal_margins
from exlm.tasks.tables.explain import explain, write_page
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    with_predictions,
)
from exlm.tasks.tables.row_models import Encoders, RowModels
from exlm.tasks.tables.scoring import LabelledPredictions
from exlm.tasks.tables.training_texts import (
    TrainingTexts,
    distance_to_training,
    training_fingerprints,
)

# predictions for molecules with a larger distance to those of the training deserve less trust
FAR = 0.7


class TablePredictor:
    """The models of all seeds, and a table that they predict for (a `Predictor`).

    The first rows of the file `path` decide what its columns are and whether it has molecules.
    InputError for options that these models do not have."""

    def __init__(
        self,
        models: Sequence[SeedModel],
        path: str,
        options: PredictOptions,
        first_rows: FileRows | None = None,
        row_models: type[RowModels] = Encoders,
    ) -> None:
        check_options(models, path, options)
        if first_rows is None:
            first_rows = next(read_frames(options.file(path), FRAME_ROWS))
        frame = first_rows.frame
        self.path = path
        self.options = options
        self.saved_task = models[0].saved_task
        # in the order of the training; the table may lack them
        self.label_columns = columns_of_labels(frame, path, options, self.saved_task.label_columns)
        self.has_labels = not set(self.label_columns).isdisjoint(frame)
        self.margins = _margins_by_model(models, options.interval)
        self.pair_column = options.pair_column or self.saved_task.pair_column
        self.text_column = options.text_column or self.saved_task.text_column_in(frame, path)
        if self.pair_column is not None and self.pair_column not in frame:
            raise InputError(
                f"{path} has no column {self.pair_column!r}, and the model reads two texts of a "
                "row; name their columns with text_column and pair_column"
            )
        table = self._read_texts(first_rows)
        self.text_column = table.text_column
        if options.text_column is None and self.saved_task.text_column not in frame:
            note(
                f"{path} has no column {self.saved_task.text_column!r}, which the model was "
                f"trained with; the texts of {table.text_column!r} are read"
            )
        different_texts = set(zip(table.texts, table.pairs or table.texts, strict=True))
        if len(table.texts) > 1 and len(different_texts) == 1:
            note(
                f"the first rows of {path} have the same text in {table.text_column!r}; "
                "if another column holds the texts, name it with text_column"
            )
        self.molecules = decide_molecules(table.texts, options.molecules, self.saved_task.molecules)
        self.models = row_models(models, self.molecules, options)
        self.run_dirs = [model.directory for model in models]
        # fingerprints of the training
        self.training_bits = training_fingerprints(models) if options.distance else []

    @property
    def meaning(self) -> OutputMeaning:
        return meaning_of(self.saved_task)

    @property
    def in_chunks(self) -> bool:
        """Whether some rows can be predicted at a time: those with labels are scored together."""
        return self.models.in_chunks and not (self.has_labels or self.options.explain)

    def predict(self) -> Predictions:
        """Predictions for all rows of the table: means over the models, with standard deviations;
        and how they are scored if the table has labels."""
        return self.predict_rows(read_file(self.path, self.options.header, self.options.sheet))

    def predict_rows(self, rows: FileRows) -> Predictions:
        """`predict` for some rows of the table."""
        table, tokens = self.models.read(self._read_texts(rows), self.path)
        by_model = self.models.predict(table, tokens, shows_progress=not self.in_chunks)
        in_training = self._training_texts.rows_in(table)
        columns = self.meaning.columns(list(by_model.values()), table)
        means = np.mean(list(by_model.values()), 0)
        form = self.saved_task.standardize if self.molecules else "none"
        counts = table.counts("predicted", form)
        if self.margins:
            columns |= self.meaning.interval_columns(means, self.margins[ENSEMBLE])
        if self.options.distance:
            distances = self._distances(table)
            columns["distance to training"] = distances
            far = int((distances > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        if in_training is not None:
            columns["in_training"] = in_training
        if self.models.may_cut:
            columns["cut"] = table.was_cut
        columns["problem"] = table.problems
        if self.options.explain:
            columns["explanation"] = self._explain(table, tokens, Path(self.options.explain))
        frame = with_predictions(table.frame, columns, self.path)
        if not self.has_labels:
            return Predictions(frame, counts)
        if len(by_model) > 1:
            by_model = {ENSEMBLE: means, **by_model}
        try:
            return Predictions(frame, counts, self._evaluation(table, by_model, in_training))
        except InputError as error:
            return Predictions(frame, counts, note=str(error))

    def _read_texts(self, rows: FileRows) -> TextTable:
        """Some rows of the file as a table without labels."""
        table = unlabelled_table(rows, self.path, self.text_column, self.pair_column)
        return replace(table, unit_pattern=self.saved_task.unit_pattern)

    @cached_property
    def _training_texts(self) -> TrainingTexts:
        tokenizer = None if self.molecules else self.models.tokenizer
        return TrainingTexts(
            self.run_dirs,
            spelling_of(tokenizer, self.molecules, self.saved_task.standardize).as_compared,
            molecules=self.molecules and self.saved_task.pair_column is None,
        )

    def _distances(self, table: TextTable) -> np.ndarray:
        """The distance of every molecule to those of the training: [rows], NaN for rows that cannot
        be used."""
        spelling = Spelling(molecules=True, form=self.saved_task.standardize)
        molecules = list(map(spelling.as_read, table.texts))
        distances = distance_to_training(self.training_bits, molecules)
        distances[~table.usable] = np.nan
        return distances

    def _evaluation(
        self, table: TextTable, by_model: dict[str, np.ndarray], in_training: np.ndarray | None
    ) -> Evaluation:
        """How predictions are scored, those of the ensemble being the first. InputError if labels
        cannot be read, or if there are none."""
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
        scored = {
            name: LabelledPredictions(self.saved_task, labels, predictions, self.margins.get(name))
            for name, predictions in by_model.items()
        }
        first = next(iter(scored.values()))
        return Evaluation(
            scorers={name: predictions.evaluate for name, predictions in scored.items()},
            rows=rows,
            in_training=None if in_training is None else int(in_training[labelled].sum()),
            unknown_labels=unknown_labels,
            labels=first.score_labels(rows),
            classes=first.score_classes(rows),
            confusion=first.confusion(rows),
        )

    def _explain(self, table: TextTable, tokens: TableTokens, page: Path) -> list[str | None]:
        """Writes the page of explanations of the mean predictions; returns the numbers of every
        row as JSON."""
        encoders = self.models
        assert isinstance(encoders, Encoders)  # `check_options` lets no baseline through

        def predict(examples: list[Tokens]) -> np.ndarray:
            by_model = encoders.predict_tokens(TableTokens(examples), np.arange(len(examples)))
            return np.mean(list(by_model.values()), 0)

        explanations = explain(
            table=table,
            examples=tokens.examples,
            predict=predict,
            tokenizer=encoders.tokenizer,
            saved_task=self.saved_task,
            molecules=self.molecules,
        )
        titles = self.meaning.titles
        write_page(
            page, explanations, titles, draws_best_only=self.saved_task.label_type.has_classes
        )
        return [explanation and explanation.as_json(titles) for explanation in explanations]


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
