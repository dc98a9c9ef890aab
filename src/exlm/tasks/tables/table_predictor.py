"""What fine-tuned models predict for the rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rdkit.DataStructs import ExplicitBitVect
from tqdm import tqdm

from exlm.data.columns import check_columns, listed, match_columns
from exlm.data.drawing import drawing_module
from exlm.data.frames import (
    FORMATS_WITHOUT_HEADER,
    FileRows,
    find_columns,
    read_file,
    read_frames,
)
from exlm.data.output_files import PIECE_ROWS, check_output
from exlm.data.spelling import Spelling
from exlm.data.writing import add_columns
from exlm.errors import InputError, note
from exlm.storage.files import RUN_RESULT, read_or_empty
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.rows.reading import TableTokens, Tokens, decide_molecules
from exlm.tasks.rows.table import TextTable, unlabelled_table
from exlm.tasks.tables.certainty import conformal_margins
from exlm.tasks.tables.explain import explain, write_page
from exlm.tasks.tables.labelled_predictions import (
    LabelledPredictions,
    TrueLabels,
    read_label_numbers,
    read_true_labels,
)
from exlm.tasks.tables.prediction_columns import (
    bound_columns,
    note_class_called_class,
    prediction_columns,
    prediction_titles,
)
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    nothing_to_score,
)
from exlm.tasks.tables.seed_models import EncoderModel, SeedModel
from exlm.tasks.tables.training_texts import (
    TrainingTexts,
    distance_to_training,
    training_fingerprints,
)

DISTANCE = "distance to training"  # the title of a column
# predictions for molecules that are farther from the training deserve less trust
FAR = 0.7


def make_table_predictor(
    models: Sequence[SeedModel],
    path: str,
    options: PredictOptions,
    first_rows: FileRows | None = None,
) -> "TablePredictor":
    """What predicts for the table `path` with the models of all seeds. The first rows, which are
    read if they are not given, decide which columns have texts and whether these are molecules.
    InputError for options that these models do not have."""
    check_options(models, path, options)
    file = None
    if first_rows is None:
        file = options.file(path)
        first_rows = next(read_frames(file, PIECE_ROWS))
    columns = list(first_rows.frame.columns)
    if file and file.format in FORMATS_WITHOUT_HEADER:
        columns = find_columns(file, PIECE_ROWS)
    saved_task = models[0].saved_task
    label_columns = find_label_columns(columns, path, options, saved_task.label_columns)
    margins = _margins_by_model(models, options.interval)
    first_table = _find_texts(first_rows, path, options, saved_task)
    note_class_called_class(saved_task.prediction_names, saved_task.label_type)
    return TablePredictor(
        path=path,
        options=options,
        models=models,
        molecules=decide_molecules(first_table.texts, options.molecules, saved_task.molecules),
        text_column=first_table.text_column,
        pair_column=first_table.pair_column,
        label_columns=label_columns,
        has_labels=not set(label_columns).isdisjoint(columns),
        margins=margins,
        fingerprints=training_fingerprints(models) if options.distance else [],
    )


def _find_texts(
    rows: FileRows, path: str, options: PredictOptions, saved_task: SavedTask
) -> TextTable:
    """The first rows of the table with their texts. The columns of these are called as the options
    say, or else as in the training. Notes what seems to be wrong with them. InputError if there is
    no such column."""
    frame = rows.frame
    pair_column = options.pair_column or saved_task.pair_column
    text_column = options.text_column or saved_task.text_column_in(frame, path)
    if pair_column is not None and pair_column not in frame:
        raise InputError(
            f"{path} has no column {pair_column!r}, and the model reads two texts of a "
            "row; name their columns with text_column and pair_column"
        )
    table = unlabelled_table(rows, path, text_column, pair_column)
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
    return table


@dataclass(frozen=True)
class TablePredictor:
    """The models of all seeds, and a table that they predict for."""

    path: str
    options: PredictOptions
    models: Sequence[SeedModel]
    molecules: bool  # whether the texts are SMILES
    text_column: str
    pair_column: str | None
    label_columns: list[str]  # in the order of the training; the table may lack some of them
    has_labels: bool  # whether the table has one of them
    # [labels] the errors that bounds allow, by the name of the model; {} for no bounds
    margins: dict[str, np.ndarray]
    fingerprints: list[ExplicitBitVect]  # of the molecules of the training

    @property
    def saved_task(self) -> SavedTask:
        return self.models[0].saved_task

    @property
    def by_frames(self) -> bool:
        """Whether the frames of the file may be predicted one by one: rows with labels are scored
        together, and explanations are on one page."""
        return self.models[0].reads_tokens and not (self.has_labels or self.options.explain)

    @property
    def may_cut(self) -> bool:
        """Whether too long texts are cut."""
        return self.models[0].reads_tokens and not self.molecules

    def predict(self, must_score: bool = False) -> Predictions:
        """What the models predict for all rows of the table, and how it is scored."""
        rows = read_file(self.path, self.options.header, self.options.sheet)
        return self.predict_rows(rows, must_score)

    def predict_rows(self, rows: FileRows, must_score: bool = False) -> Predictions:
        """What the models predict for some rows of the table, and how it is scored if the table has
        labels. Labels are read first: what is wrong with them is said before the work, and is an
        InputError if they `must` be scored."""
        texts = unlabelled_table(rows, self.path, self.text_column, self.pair_column)
        table, tokens = self.models[0].check_texts(
            texts, self.path, self.molecules, self.options.on_invalid
        )
        labels = None
        problem_of_labels = ""
        if self.has_labels or must_score:
            try:
                labels = read_true_labels(table, self.path, self.label_columns, self.saved_task)
            except InputError as error:
                problem_of_labels = str(error)
        if must_score and labels is None:
            raise nothing_to_score(self.path, problem_of_labels)
        by_model = self._predict_by_model(table, tokens)
        is_seen = self._training_texts.find_in(table)
        columns = self._columns(table, by_model, is_seen)
        if self.options.explain:
            columns["explanation"] = self._explain(table, tokens, Path(self.options.explain))
        frame = add_columns(table.frame, columns, self.path, "exlm predict")
        counts = self._counts(table, columns)
        if labels is None:
            return Predictions(frame, counts, note=problem_of_labels)
        if len(by_model) > 1:
            by_model = {ENSEMBLE: _mean(by_model), **by_model}
        evaluation = self._evaluate(table, labels, by_model, is_seen)
        numbers = read_label_numbers(table, self.label_columns, self.saved_task)
        return Predictions(frame, counts, evaluation, label_numbers=numbers)

    def _predict_by_model(self, table: TextTable, tokens: TableTokens) -> dict[str, np.ndarray]:
        """The predictions of every model [rows, outputs], by its name."""
        is_encoder = self.models[0].reads_tokens  # which shows a bar of rows itself
        shows_progress = not self.by_frames
        return {
            model.name: model.predict(table, tokens, self.options, shows_progress)
            for model in tqdm(self.models, "fitting again", unit="model", disable=is_encoder)
        }

    def _evaluate(
        self,
        table: TextTable,
        true_labels: TrueLabels,
        by_model: dict[str, np.ndarray],
        is_seen: np.ndarray | None,
    ) -> Evaluation:
        """How predictions are scored on the rows that have labels."""
        labels = true_labels.values
        rows = np.flatnonzero(table.usable & ~np.isnan(labels).all(1))
        labelled = {
            name: LabelledPredictions(self.saved_task, labels, predictions, self.margins.get(name))
            for name, predictions in by_model.items()
        }
        is_binary = self.saved_task.label_type.is_binary
        return Evaluation(
            scorers={name: predictions.evaluate for name, predictions in labelled.items()},
            rows=rows,
            seen_rows=None if is_seen is None else int(is_seen[rows].sum()),
            positives=int((labels[rows] == 1).sum()) if is_binary else None,
            unknown_labels=true_labels.unknown_rows,
            details=next(iter(labelled.values())).details(rows),
        )

    @cached_property
    def _training_texts(self) -> TrainingTexts:
        molecules = self.molecules
        tokenizer = None if molecules else self.models[0].tokenizer
        return TrainingTexts(
            [model.directory for model in self.models],
            Spelling(molecules, self.saved_task.standardize, tokenizer).as_compared,
            molecules=molecules and self.saved_task.pair_column is None,
        )

    def _columns(
        self, table: TextTable, by_model: dict[str, np.ndarray], is_seen: np.ndarray | None
    ) -> dict[str, Any]:
        columns = prediction_columns(self.saved_task, list(by_model.values()), table)
        if self.margins:
            margins = self.margins[ENSEMBLE]
            columns |= bound_columns(self.saved_task, _mean(by_model), margins)
        if self.options.distance:
            columns[DISTANCE] = self._distances(table)
        if is_seen is not None:
            columns["in_training"] = is_seen
        if self.may_cut:
            columns["cut"] = table.was_cut
        columns["problem"] = table.problems
        return columns

    def _distances(self, table: TextTable) -> np.ndarray:
        """[rows] how far molecules are from the training, NaN for rows that cannot be used."""
        spelling = Spelling(molecules=True, form=self.saved_task.standardize)
        molecules = list(map(spelling.as_read, table.texts))
        distances = distance_to_training(self.fingerprints, molecules)
        distances[~table.usable] = np.nan
        return distances

    def _counts(self, table: TextTable, columns: dict[str, Any]) -> dict[str, int]:
        """How many rows of a table there are of every kind."""
        form = self.saved_task.standardize if self.molecules else "none"
        counts = table.counts("predicted", form)
        if self.options.distance:
            far = int((columns[DISTANCE] > FAR).sum())
            counts[f"far from the training molecules (distance over {FAR})"] = far
        return counts

    def _explain(self, table: TextTable, tokens: TableTokens, page: Path) -> list[str | None]:
        """Writes the page that explains the mean predictions; returns the numbers of every row as
        JSON."""
        encoders = [model for model in self.models if isinstance(model, EncoderModel)]

        def predict(examples: list[Tokens]) -> np.ndarray:
            tokens = TableTokens(examples)
            rows = np.arange(len(examples))
            predictions = [model.predict_tokens(tokens, rows, self.options) for model in encoders]
            return np.mean(predictions, 0)

        explanations = explain(
            table=table,
            examples=tokens.examples,
            predict=predict,
            tokenizer=encoders[0].tokenizer,
            saved_task=self.saved_task,
            molecules=self.molecules,
        )
        titles = prediction_titles(self.saved_task)
        write_page(
            page, explanations, titles, draws_best_only=self.saved_task.label_type.has_classes
        )
        return [explanation and explanation.as_json(titles) for explanation in explanations]


def _mean(by_model: dict[str, np.ndarray]) -> np.ndarray:
    return np.mean(list(by_model.values()), 0)


def _margins_by_model(models: Sequence[SeedModel], level: float | None) -> dict[str, np.ndarray]:
    """The `conformal_margins` [labels] by the name of the model; of the ensemble, the largest. {}
    without a level, if no bounds are wanted."""
    if level is None:
        return {}
    margins = {}
    for model in models:
        margins[model.name] = conformal_margins(model, level)
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
    if options.calibrated:
        if any(model.saved_task.temperature is None for model in models):
            raise InputError(
                "calibrated probabilities need a classification with a temperature, "
                "fine-tuned by this version of exlm; leave out calibrated"
            )
        if options.interval is not None:
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
    if options.explain:
        directory = models[0].directory
        if saved_task.label_type.of_units or not models[0].reads_tokens:
            raise InputError(
                "explain is for fine-tuned encoders that predict for whole texts, not for "
                f"{directory}; leave it out"
            )
        check_output(Path(options.explain), path, (".html",))
        if saved_task.molecules:
            drawing_module()


def find_label_columns(
    columns: list[Any], path: str, options: PredictOptions, training_labels: list[str]
) -> list[str]:
    """Which `columns` of the table have the labels, in the order of `training_labels`, the columns
    of the training: those of the same names, or as the option `label_columns` says. InputError if
    the option names columns that the table lacks, too few or many, or one label in the place of
    another."""
    if options.label_columns is None:
        return training_labels
    names = match_columns(options.label_columns, columns)
    check_columns(columns, path, *names)
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
