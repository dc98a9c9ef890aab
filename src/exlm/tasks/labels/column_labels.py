"""From the cells of columns to labels: which columns have them, their type, and their values."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from exlm.data.cell_texts import MISSING_TEXTS, class_name
from exlm.data.columns import IDENTIFIER, listed
from exlm.errors import InputError, note
from exlm.tasks.labels.cells import (
    NEGATIVE,
    NUMBER,
    POSITIVE,
    are_numbers_with_some_percent_signs,
    check_numbers,
    check_single_labels,
    find_binary_names,
    is_whole,
    note_binary_names,
    read_numbers,
    row_name,
    unread_number,
    words_as_numbers,
)
from exlm.tasks.labels.label_types import LABEL_TYPES, CellReadings, LabelType

# No label, in any case
MISSING = ("", *(text.lower() for text in MISSING_TEXTS), "n.d.")
# What is no label beside numbers, or beside NEGATIVE and POSITIVE alone; else it may be a class
NOT_DETERMINED = ("nd", "nt", "n.t.", "?")
# Columns with more different names, or whole numbers, are not taken for classes
MOST_CLASSES = 50
MOST_INTEGER_CLASSES = 10
FEW_ROWS = 20  # fewer may have a class each
COMMON_SHARE = 0.05  # of the rows: a number that has it is no misspelt one


def infer_label_columns(
    others: pd.DataFrame, text_problems: list[str], path: str | Path
) -> list[str]:
    """The columns that are taken for labels, out of the columns `others` without texts: the only
    one, the only numeric one, or all numeric ones if they hold nothing but 0 and 1; if none is
    numeric, all if they say yes or no. Columns that are empty, and those that number or name the
    rows, are left out first."""
    cells = label_cells(others, list(others.columns), text_problems)
    is_filled = cells.notna().any()
    cells = cells.loc[:, is_filled] if is_filled.any() else cells
    numbers = cells.apply(read_numbers)
    values = words_as_numbers(cells, numbers, None)
    columns = [name for name in cells.columns if not _is_identifier(cells[name], values[name])]
    is_numeric = (cells.isna() | np.isfinite(numbers)).all()
    is_numeric |= cells.apply(are_numbers_with_some_percent_signs)
    columns = [name for name in columns if is_numeric[name]] or columns
    if len(columns) == 1 or (columns and _is_binary(cells[columns], values[columns])):
        return columns
    raise InputError(
        f"{path}: cannot tell the label columns; set label_columns, from: "
        f"{listed(cells)} (a column of identifiers is never taken by itself)"
    )


def _is_identifier(cells: pd.Series, numbers: pd.Series) -> bool:
    """Whether a column numbers or names the rows: by its own name, or because all its names or
    whole numbers differ."""
    if IDENTIFIER.fullmatch(str(cells.name)):
        return True
    values = cells.dropna().map(class_name)
    if len(values) < 2 or not values.is_unique or (numbers % 1 > 0).any():
        return False
    return not _is_binary(cells, numbers)


def label_cells(
    frame: pd.DataFrame,
    columns: list[str],
    text_problems: list[str],
    class_names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """The cells of these columns, NaN where missing or in rows whose text has a problem. What a
    model has as a class, one of the `class_names`, is never taken for NOT_DETERMINED."""
    is_unusable = np.array(text_problems, dtype=object) != ""
    cells = frame[columns]
    keys = cells.astype(str).apply(lambda column: column.str.strip().str.lower())
    cells = cells.mask(keys.isin(MISSING) | is_unusable[:, None])
    is_word = keys.isin((*NEGATIVE, *POSITIVE)) & cells.notna()
    is_open = keys.isin(set(NOT_DETERMINED).difference(map(str.lower, class_names or ())))
    has_two_classes = is_word.any() & (cells.isna() | is_word | is_open).all()
    has_numbers = cells.apply(read_numbers).notna().any()
    return cells.mask(is_open & (has_numbers | has_two_classes))


class Labels(NamedTuple):
    """The labels of a table, their task type, and what they are called."""

    columns: list[str]
    values: np.ndarray  # [rows, labels] float64, or of units [rows, units]; NaN where missing
    task_type: str
    class_names: list[str] | None = None  # by index, if the values are indices of classes
    binary_names: list[str] | None = None  # what 0 and 1 are called, if they have names
    unknown_rows: int = 0  # how many have a cell that is no label of the task
    unit_pattern: str = ""  # a regular expression for what has a label (token_classification)

    @property
    def type(self) -> LabelType:
        return LABEL_TYPES[self.task_type]

    @property
    def names(self) -> list[str] | None:
        """What labels are called; None if they are numbers, 0 and 1 included."""
        return self.class_names or (None if self.type.is_number else self.binary_names)


def read_labels(
    cells: pd.DataFrame,
    path: str | Path,
    task_type: str | None,
    names: Sequence[str] | None,
    positive: str | None = None,
    skip_unknown: bool = False,
    may_be_thousands: pd.DataFrame | None = None,
) -> Labels:
    """The labels of a task, whose type is inferred where absent.

    Args:
        cells: [rows, labels] NaN where missing.
        names: the names of all classes, or of labels 0 and 1, if a model has them already.
        positive: the name of label 1, if it is not one of POSITIVE.
        skip_unknown: a cell that is no label of the task counts as missing, and a note says so;
            else it is an InputError.
        may_be_thousands: [rows, labels] which cells have a point that may stand between thousands:
            they are no numbers, though they look so."""
    check_single_labels(cells, path)
    numbers = cells.apply(read_numbers)
    if may_be_thousands is not None:
        numbers = numbers.mask(may_be_thousands)
    binary_names = None
    if task_type is None or not LABEL_TYPES[task_type].has_classes:
        if not skip_unknown:
            check_numbers(cells, numbers, path)
        binary_names = list(names or ()) or find_binary_names(cells, positive, path)
    readings = CellReadings(cells, numbers, words_as_numbers(cells, numbers, binary_names))
    task_type = task_type or _infer_task_type(readings)
    if LABEL_TYPES[task_type].class_per_row and len(cells.columns) > 1:
        raise InputError(
            f"{path}: a {task_type} task has one label column, not {len(cells.columns)}"
        )
    labels = _interpret(readings, task_type, names, binary_names)
    if labels.names is None and not labels.type.is_number:
        note_binary_names(cells, pd.DataFrame(labels.values, cells.index, cells.columns))
    unknown = _find_unknown(cells, labels)
    if unknown and not skip_unknown:
        _refuse_unknown(unknown, cells, labels.type, path)
    if not labels.type.is_number and len(labels.names or (0, 1)) == 2:
        _check_coding(cells, labels, path)
    problems = {row: problem for row, (_, problem) in unknown.items()}
    if unknown and labels.type.is_number:
        row, (column, _) = next(iter(unknown.items()))
        if re.fullmatch(NUMBER, str(cells[column].iloc[row]).strip()):
            problems[row] = unread_number(cells[column], cells.index[row])
    note_unscored(problems, cells.index, path)
    return labels._replace(unknown_rows=len(unknown))


def _interpret(
    readings: CellReadings,
    task_type: str,
    names: Sequence[str] | None,
    binary_names: list[str] | None,
) -> Labels:
    """What the cells say if their labels are of this task type."""
    label_type = LABEL_TYPES[task_type]
    class_names = None
    if label_type.has_classes:
        class_names = list(names or label_type.class_names(readings))
    values = label_type.read(readings, class_names).to_numpy(dtype=float)
    return Labels(list(readings.cells.columns), values, task_type, class_names, binary_names)


def _find_unknown(cells: pd.DataFrame, labels: Labels) -> dict[int, tuple[str, str]]:
    """Of every row with a cell that is no label of the task, by the number of the row: the column
    of the first such cell, and why it is none."""
    allowed = listed(labels.names) if labels.names else labels.type.allowed
    unknown = dict[int, tuple[str, str]]()
    is_unknown = cells.notna().to_numpy() & np.isnan(labels.values)
    for row, column in np.argwhere(is_unknown).tolist():
        value = str(cells.iat[row, column]).strip()
        problem = f"{value!r} is no {labels.task_type} label ({allowed})"
        unknown.setdefault(row, (cells.columns[column], problem))
    return unknown


def _refuse_unknown(
    unknown: dict[int, tuple[str, str]],
    cells: pd.DataFrame,
    label_type: LabelType,
    path: str | Path,
) -> None:
    """Raises the InputError for what `_find_unknown` found, which names the first row."""
    row, (column, problem) = next(iter(unknown.items()))
    way_out = ""
    if label_type.is_number and len(unknown) > cells.count().sum() / 2 and len(cells.columns) == 1:
        way_out = "set task_type multiclass if these are classes, or "
    raise InputError(
        f"{path}: column {column!r}, {row_name(cells.index[row])}: {problem}, and so in "
        f"{len(unknown)} rows; {way_out}correct it, leave it empty, or choose another column or "
        "task type (of two words, name the one that is label 1 with task.positive; several labels "
        "need a column for each)"
    )


def _check_coding(cells: pd.DataFrame, labels: Labels, path: str | Path) -> None:
    """InputError if a column seems to call the two classes of a model otherwise, such as 1 and 2
    for 0 and 1: a value that the model does not know stands in several rows, and the column has
    only one of the model's classes, or that value is a number, which no word tells from a class,
    in COMMON_SHARE of the rows. One misspelt cell, and a third word, are only no labels."""
    names = " or ".join(labels.names) if labels.names else labels.type.allowed
    for column, values in zip(cells, labels.values.T, strict=True):
        written = cells[column].map(class_name, na_action="ignore")
        known = written[~np.isnan(values)]
        lacks_class = len(np.unique(values[~np.isnan(values)])) == 1
        for value, count in written[np.isnan(values)].value_counts().items():
            is_code = re.fullmatch(NUMBER, str(value)) and count >= COMMON_SHARE * len(known)
            if count > 1 and (lacks_class or (is_code and len(known))):
                raise InputError(
                    f"{path}: column {column!r} has {value!r} in {count} rows, which is no label "
                    f"of the model, and {known.iloc[0]!r}, which is one, so it may call the two "
                    f"classes otherwise; write them as in the training, {names}, and leave other "
                    "cells empty"
                )


def _infer_task_type(readings: CellReadings) -> str:
    """One column of 0 and 1 is binary, several are multilabel; 2 to 50 distinct names or 2 to 10
    distinct whole numbers in one column are multiclass; all else is regression. InputError for
    names that most rows have alone. Several columns that are mostly words are multilabel, so that
    the cell is named that keeps them from being two classes."""
    cells = readings.cells
    if _is_binary(cells, readings.with_binary_words):
        return "binary" if len(cells.columns) == 1 else "multilabel"
    if len(cells.columns) > 1:
        are_words = readings.numbers.count().sum() < cells.count().sum() / 2
        return "multilabel" if are_words else "regression"
    classes = cells.iloc[:, 0].dropna().map(class_name)
    distinct_count = classes.nunique()
    # One misspelt number must not turn a regression column into classes.
    are_names = readings.numbers.isna().all(axis=None)
    most_classes = 0
    if are_names:
        most_classes = MOST_CLASSES
    elif is_whole(cells, readings.numbers):
        most_classes = MOST_INTEGER_CLASSES
    if are_names and FEW_ROWS <= len(classes) < 2 * distinct_count:
        raise InputError(
            f"column {cells.columns[0]!r} has {distinct_count} different words in "
            f"{len(classes)} rows, such as {classes.iloc[0]!r}: they are no numbers and hardly "
            "classes; write numbers, choose another column, or set task_type multiclass"
        )
    return "multiclass" if 2 <= distinct_count <= most_classes else "regression"


def _is_binary(cells: pd.DataFrame | pd.Series, numbers: pd.DataFrame | pd.Series) -> bool:
    """Whether all cells that are not missing say 0 or 1; `numbers` has what they say."""
    return bool((cells.isna() | numbers.isin((0, 1))).to_numpy().all())


def note_unscored(problems: dict[int, str], index: pd.Index, path: str | Path) -> None:
    """Says how many rows have a label that cannot be scored: `problems` by number of the row."""
    if problems:
        row, problem = next(iter(problems.items()))
        note(
            f"{path}: {len(problems)} rows have a label that cannot be scored, "
            f"the first {row_name(index[row])}: {problem}"
        )
