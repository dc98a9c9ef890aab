"""How predictions for a table with labels are scored."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from exlm.data.columns import listed
from exlm.data.decimals import find_possible_thousands
from exlm.errors import InputError, note
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.cells import check_numbers, read_numbers
from exlm.tasks.labels.column_labels import label_cells, note_unscored, read_labels
from exlm.tasks.labels.entities import has_entities, score_entities
from exlm.tasks.labels.scores import score_predictions
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import read_unit_labels
from exlm.tasks.tables.certainty import calibration_error

NUMBERS = re.compile(r"[\[\]\d,\s-]*")  # whole numbers, also as a list


@dataclass(frozen=True)
class LabelledPredictions:
    """The labels of a table, what a model predicts for its rows, and the scores of any of them:
    after an epoch, after a training, and in `exlm evaluate`."""

    saved_task: SavedTask
    labels: np.ndarray  # [all rows, labels], as for `score_predictions`
    predictions: np.ndarray  # [all rows, outputs]
    margins: np.ndarray | None = None  # [labels] the errors that bounds allow, if there are any

    def score(self, rows: np.ndarray, metrics: Sequence[str] | None = None) -> dict[str, float]:
        """The scores of some rows by `metrics`, or by all metrics of the task."""
        return score_predictions(
            self.saved_task.label_type,
            self.labels[rows],
            self.predictions[rows],
            error_scales=self.saved_task.error_scales,
            metrics=metrics,
            class_names=self.saved_task.class_names,
        )

    def evaluate(self, rows: np.ndarray) -> dict[str, float]:
        """All scores of some rows, the calibration error of probabilities, and with `margins` the
        coverage: the share of errors within the margins."""
        label_type = self.saved_task.label_type
        scores = self.score(rows)
        if not label_type.is_number:
            labels, probabilities = label_type.as_rows(self.labels[rows], self.predictions[rows])
            scores["calibration_error"] = calibration_error(label_type, labels, probabilities)
        if self.margins is not None:
            scores["coverage"] = float(np.nanmean(self._is_covered(rows)))
        return scores

    def details(self, rows: np.ndarray) -> dict[str, Any]:
        """The entries of a report that are about single labels and classes of some rows."""
        return {
            "labels": self.score_labels(rows),
            "classes": self.score_classes(rows),
            "confusion": self.confusion(rows),
        }

    def score_labels(self, rows: np.ndarray) -> dict[str, dict[str, float]]:
        """For every label by itself how many `rows` have it, how many of these are `positives`
        (unless labels are numbers), all scores in the units of the label, and the coverage; {} if
        there is only one label."""
        names = self.saved_task.label_columns
        if len(names) == 1:
            return {}
        label_type = self.saved_task.label_type
        scores = dict[str, dict[str, float]]()
        for column, name in enumerate(names):
            labels = self.labels[rows, column]
            predictions = self.predictions[rows, column]
            scores[name] = {"rows": int((~np.isnan(labels)).sum())}
            if not label_type.is_number:
                scores[name]["positives"] = int((labels == 1).sum())
            scores[name] |= score_predictions(label_type, labels[:, None], predictions[:, None])
        if self.margins is not None:
            coverages = pd.DataFrame(self._is_covered(rows)).mean()
            for name, coverage in zip(names, coverages, strict=True):
                scores[name]["coverage"] = float(coverage)
        return scores

    def score_classes(self, rows: np.ndarray) -> dict[str, dict[str, float]]:
        """How many `rows` (or units) have each class, and its precision, recall and F1, 0 where
        undefined; if the classes of units mark entities, what `score_entities` gives; {} if labels
        are no classes."""
        class_names = self.saved_task.class_names
        if not class_names:
            return {}
        if self.saved_task.label_type.of_units and has_entities(class_names):
            return score_entities(self.labels[rows], self.predictions[rows], class_names)
        truth, most_probable = self._classes(rows)
        precision, recall, f1, counts = precision_recall_fscore_support(
            truth, most_probable, labels=range(len(class_names)), zero_division=0
        )
        columns = {"rows": counts, "precision": precision, "recall": recall, "f1": f1}
        scores: Any = pd.DataFrame(columns, class_names).to_dict("index")
        return scores

    def confusion(self, rows: np.ndarray) -> dict[str, dict[str, int]]:
        """How many rows (or units) of each class are predicted to have each class; {} if labels are
        no classes."""
        class_names = self.saved_task.class_names
        if not class_names:
            return {}
        matrix = confusion_matrix(*self._classes(rows), labels=range(len(class_names)))
        counts: Any = pd.DataFrame(matrix, class_names, class_names).to_dict("index")
        return counts

    def _classes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the true classes, and of the most probable ones: [rows or units] each."""
        label_type = self.saved_task.label_type
        labels, predictions = label_type.as_rows(self.labels[rows], self.predictions[rows])
        return labels[:, 0].astype(int), label_type.to_score(predictions)[:, 0]

    def _is_covered(self, rows: np.ndarray) -> np.ndarray:
        """Whether the errors of some rows are within the margins: 1 or 0 [rows, labels], NaN for
        missing labels."""
        errors = self.saved_task.label_type.errors(self.labels[rows], self.predictions[rows])
        return np.where(np.isnan(errors), np.nan, errors <= self.margins)


class TrueLabels(NamedTuple):
    """The labels of a table as a model learned them."""

    values: np.ndarray  # [rows, labels], or of units [rows, units], NaN where there is none
    unknown_rows: int  # how many rows have a label that the model does not know


def read_true_labels(
    table: TextTable, path: str, label_columns: list[str], saved_task: SavedTask
) -> TrueLabels:
    """The labels of the file `path`. The table may lack some of the `label_columns`. InputError if
    it lacks all, if labels cannot be read, or if no row has a label and can be predicted."""
    missing = [name for name in label_columns if name not in table.frame]
    if len(missing) == len(label_columns):
        raise InputError(
            f"no column has {listed(missing, 5)}; name the column that has them with label_columns"
        )
    mask_column = saved_task.mask_column
    if mask_column and mask_column not in table.frame:
        raise InputError(
            f"the table has no column {mask_column}, which the model was trained with; add it"
        )
    read = _read_unit_labels if saved_task.label_type.of_units else _read_row_labels
    labels, unknown_labels = read(table, path, label_columns, saved_task)
    if not (table.usable & ~np.isnan(labels).all(1)).any():
        way_out = "name the column that has the labels with label_columns"
        if unknown_labels and saved_task.label_names:
            way_out = f"write labels as those of the training, {listed(saved_task.label_names, 5)}"
            if _are_numbers_of_classes(table, label_columns, saved_task.label_names):
                way_out += ", in place of the numbers of classes (dataset.features[NAME].int2str)"
        raise InputError(
            f"no row has a prediction and a label that the model knows in "
            f"{listed(label_columns, 5)}; {way_out}"
        )
    if missing:
        note(
            f"{path} has no column {listed(missing)}; the other labels are scored (where columns "
            "have other names, give all of them in the order of the training with label_columns)"
        )
    return TrueLabels(labels, unknown_labels)


def _are_numbers_of_classes(
    table: TextTable, label_columns: list[str], label_names: Sequence[str]
) -> bool:
    """Whether all labels of the table are whole numbers, or lists of these, and no name is one."""
    cells = table.frame[[name for name in label_columns if name in table.frame]]
    texts = cells.astype(str).to_numpy().ravel()
    is_number = [NUMBERS.fullmatch(text) is not None for text in [*texts, *label_names]]
    return all(is_number[: len(texts)]) and not any(is_number[len(texts) :])


def _read_row_labels(
    table: TextTable, path: str, label_columns: list[str], saved_task: SavedTask
) -> tuple[np.ndarray, int]:
    with_all_labels = table.frame.reindex(columns=label_columns, fill_value="")
    cells = label_cells(with_all_labels, label_columns, table.problems, saved_task.class_names)
    may_be_thousands = find_possible_thousands(cells, table.frame, table.separators)
    numbers = cells.apply(read_numbers).mask(may_be_thousands)
    if saved_task.label_type.is_number and numbers.isna().all(axis=None):
        check_numbers(cells, numbers, path)
    labels = read_labels(
        cells,
        path,
        saved_task.task_type,
        saved_task.label_names,
        skip_unknown=True,
        may_be_thousands=may_be_thousands,
    )
    return labels.values, labels.unknown_rows


def read_label_numbers(
    table: TextTable, label_columns: list[str], saved_task: SavedTask
) -> dict[str, pd.Series]:
    """The columns of a regression's labels whose cells are texts and all say numbers, as these;
    NaN for missing cells."""
    if not saved_task.label_type.is_number:
        return {}
    names = [name for name in label_columns if name in table.frame]
    cells = label_cells(table.frame, names, [""] * len(table.frame))
    may_be_thousands = find_possible_thousands(cells, table.frame, table.separators)
    numbers = cells.apply(read_numbers).mask(may_be_thousands)
    are_numbers = (cells.isna() | np.isfinite(numbers)).all()
    are_texts = cells.map(lambda cell: isinstance(cell, str)).any()
    return {name: numbers[name] for name in names if are_numbers[name] and are_texts[name]}


def _read_unit_labels(
    table: TextTable, path: str, label_columns: list[str], saved_task: SavedTask
) -> tuple[np.ndarray, int]:
    [label_column] = label_columns
    labels, problems = read_unit_labels(
        table,
        label_column,
        mask_column=saved_task.mask_column,
        unit_pattern=saved_task.unit_pattern,
        class_names=saved_task.prediction_names,
        most_units=saved_task.max_length,
    )
    cells = table.frame[label_column].fillna("")
    unscored = {
        int(row): problems[row]
        for row in np.flatnonzero(table.usable)
        if cells.iloc[row] and problems[row]
    }
    note_unscored(unscored, table.frame.index, path)
    return labels, len(unscored)
