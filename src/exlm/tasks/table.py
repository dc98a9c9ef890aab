"""The rows of a table: their texts and labels, and why some of them cannot be used."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from exlm.data.columns import (
    IDENTIFIER,
    check_columns,
    choose_column,
    listed,
    match_columns,
    pair_columns,
)
from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.tasks.cells import (
    are_pairs,
    check_numbers,
    check_single_labels,
    read_numbers,
    read_texts,
    row_name,
    two_words,
    zeros_and_ones,
)

# binary, multiclass, multilabel, regression, or the name of another kind (`task.py`)
TaskType = str
OnInvalid = Literal["error", "skip", "keep"]


class LabelType(NamedTuple):
    """What the labels of a type of task are, for all that reads, splits and scores them."""

    # labels are indices of classes [rows, 1], predictions the probabilities of all [rows, classes]
    has_classes: bool = False
    # labels are numbers: models learn them in standard deviations, and predict no probabilities
    is_number: bool = False
    one_class: bool = False  # every row has one class, in one column


# A type that is not here reads no labels of tables.
LABEL_TYPES: dict[TaskType, LabelType] = {
    "binary": LabelType(one_class=True),
    "multiclass": LabelType(has_classes=True, one_class=True),
    "multilabel": LabelType(),
    "regression": LabelType(is_number=True),
    "token_classification": LabelType(has_classes=True),
}

# ND, not determined, is usual in laboratories; KNIME writes ?.
MISSING_LABELS = ("", "?", "NA", "NaN", "nan", "null", "ND", "N.D.", "n.d.", "nd")
MAX_INFERRED_CLASSES = 50
# if there are more distinct whole numbers, the task is regression
MAX_INFERRED_INTEGER_CLASSES = 10


@dataclass(frozen=True)
class TextTable:
    """The rows of files, with their texts and, if these are read, their labels. Rows that cannot be
    used are included, and say why. Lists are [rows]."""

    rows: FileRows  # every row and column, in order; by (part, row) where it joins files
    texts: list[str]  # the SMILES or text of each row, "" where missing
    pairs: list[str] | None  # the second text of each row, where the task has two
    text_column: str
    pair_column: str | None
    # [rows, labels] float64, NaN where missing; [rows, 0] when read for prediction; [rows, units]
    # for token_classification
    labels: np.ndarray
    label_columns: list[str]
    task_type: TaskType
    classes: list[str] | None  # the label values whose indices are in `labels`, if it has classes
    words: list[str] | None  # what labels 0 and 1 of a binary task are called, if it has words
    problems: list[str]  # why a row cannot be used, "" if it can
    warnings: list[str]  # what else is wrong with a row that can be used, "" if nothing
    is_cut: np.ndarray  # [rows] bool, whether the text was longer than the model reads
    inferred: dict[str, str]  # by the name of the option that the user can set instead
    unit: str | None = None  # token_classification: a regular expression for what has a label

    @property
    def frame(self) -> pd.DataFrame:
        return self.rows.frame

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.task_type]

    @property
    def usable(self) -> np.ndarray:
        """Which rows can be used: [rows] bool."""
        return np.array(self.problems, dtype=object) == ""

    @property
    def parts(self) -> np.ndarray | None:
        """[rows] the file that each row is from (train, valid, test, ...), or None if there is one
        file."""
        index = self.frame.index
        return None if index.nlevels == 1 else np.array(index.get_level_values(0), dtype=str)

    def counts(self, done: str) -> dict[str, int]:
        """How many rows can be used, for which something is `done`, how many cannot, and how many
        are cut."""
        usable = int(self.usable.sum())
        counts = {
            f"rows {done}": usable,
            "marked in the column problem": len(self.problems) - usable,
        }
        if self.is_cut.any():
            counts["cut to the longest text that the model reads"] = int(self.is_cut.sum())
        return counts

    def invalid_rows(self) -> pd.DataFrame:
        """All rows with a problem or a warning: part ("" where there is one file), row (from 1),
        value, reason, action."""
        kept = np.where(self.is_cut, "cut", "kept")
        rows = pd.DataFrame(
            {
                "part": "" if self.parts is None else self.parts,
                "row": self.frame.index.get_level_values(-1) + 1,
                "value": self.texts,
                "reason": np.where(self.usable, self.warnings, self.problems),
                "action": np.where(self.usable, kept, "left out"),
            }
        )
        return rows[rows["reason"] != ""]

    @property
    def begins_file(self) -> bool:
        """Whether the rows are not a later part of a file."""
        return self.frame.index.get_level_values(-1)[0] == 0

    def check(self, path: str, on_invalid: OnInvalid) -> None:
        """InputError if no row can be used and these rows begin the file `path`, or with `error` if
        a row is wrong."""
        invalid_rows = self.invalid_rows()
        none_usable = not self.usable.any()
        if (none_usable and self.begins_file) or (on_invalid == "error" and len(invalid_rows)):
            subject = "no row can be used, the first: " if none_usable else ""
            raise InputError(f"{path}: {subject}{first_invalid_row(invalid_rows)}; correct it")


def first_invalid_row(invalid_rows: pd.DataFrame) -> str:
    """The first of `TextTable.invalid_rows` in words: part, row, value and reason."""
    first = invalid_rows.iloc[0]
    words = f"{first.part} row {first.row}, value {str(first.value)[:80]!r}: {first.reason}"
    return words.strip()


def make_table(
    rows: FileRows | dict[str, FileRows],
    path: str | Path,
    text_column: str | None,
    label_columns: Sequence[str] | None,
    task_type: TaskType | None = None,
    classes: Sequence[str] | None = None,
    pair_column: str | None = None,
    positive: str | None = None,
    skip_unknown_classes: bool = False,
) -> TextTable:
    """A labelled table, or with `label_columns=[]` a table to predict for (labels [rows, 0]).

    `rows` are one file, or several by part (train, valid, ...), which are joined; columns that not
    all of them have are filled with "". `path` is for messages, `pair_column` has the second text
    of a pair, `classes` are in the order of their indices, `positive` is the one of two classes
    that is label 1 (`two_words`). With `skip_unknown_classes`, rows of other classes have no label.
    Columns and the task type are inferred where they are None (`_choose_texts`,
    `_infer_label_columns`, `_infer_task_type`). InputError if columns cannot be used, a value is no
    label of the task, or no row can be used."""
    if isinstance(rows, dict):
        rows = _join_files(rows, path, text_column, pair_column)
    frame = rows.frame
    faults = [rows.faults.get(row, "") for row in frame.index]
    if label_columns:
        label_columns = match_columns(label_columns, frame.columns)
    text_columns = _choose_texts(frame, path, text_column, pair_column, label_columns)
    texts, text_problems = read_texts(frame, text_columns, path, faults)
    columns = list(dict.fromkeys(label_columns or ()))
    if label_columns is None:
        columns = _infer_label_columns(frame.drop(columns=text_columns), text_problems, path)
    cells, numbers = _label_cells(frame, columns, text_problems)
    read = _read_labels(cells, numbers, path, task_type, classes, positive, skip_unknown_classes)
    problems = _problems(text_problems, texts, read, columns, path)
    pair = text_columns[1] if len(text_columns) > 1 else None
    choices = {
        "text_column": (text_column, text_columns[0]),
        "pair_column": (pair_column, pair),
        "label_columns": (label_columns, listed(columns, 5)),
        "task_type": (task_type, read.task_type),
        "positive": (positive, read.words and read.words[1]),
    }
    return TextTable(
        rows=rows,
        texts=texts[0],
        pairs=texts[1] if pair else None,
        text_column=text_columns[0],
        pair_column=pair,
        labels=read.labels,
        label_columns=columns,
        task_type=read.task_type,
        classes=read.classes,
        words=read.words,
        problems=problems,
        warnings=[""] * len(problems),
        is_cut=np.zeros(len(problems), dtype=bool),
        inferred={name: used for name, (given, used) in choices.items() if used and given is None},
    )


def _choose_texts(
    frame: pd.DataFrame,
    path: str | Path,
    text_column: str | None,
    pair_column: str | None,
    label_columns: Sequence[str] | None,
) -> list[str]:
    """The columns of the texts, as named or by their usual names; pairs are looked for only where
    the table has labels. InputError if a column is missing, or both text and label."""
    check_columns(frame, path, text_column, pair_column, *(label_columns or ()))
    is_labelled = label_columns != []
    if text_column is None and pair_column is None and is_labelled:
        text_column, pair_column = pair_columns(frame.columns)
    if text_column is None:
        text_column = choose_column(frame.columns, None, str(path), may_be_pair=is_labelled)
    if pair_column is None and is_labelled and are_pairs(frame[text_column]):
        pair_column = text_column
    for name in (text_column, pair_column):
        if name in (label_columns or ()):
            raise InputError(f"{path}: column {name!r} is both text and label; choose another")
    return [text_column] if pair_column is None else [text_column, pair_column]


def _join_files(
    files: dict[str, FileRows], path: str | Path, *text_columns: str | None
) -> FileRows:
    """The rows of all files, by (part, row), with the columns of all of them."""
    for part, file in files.items():
        # in a file without these columns, all texts would be empty
        check_columns(file.frame, f"{path}, {part} part", *text_columns)
    columns = list(dict.fromkeys(chain.from_iterable(file.frame for file in files.values())))
    frames = {
        part: file.frame.reindex(columns=columns, fill_value="") for part, file in files.items()
    }
    faults = {
        (part, row): fault for part, file in files.items() for row, fault in file.faults.items()
    }
    return FileRows(pd.concat(frames), faults)


def _problems(
    text_problems: list[str],
    texts: list[list[str]],
    read: "Labels",
    label_columns: list[str],
    path: str | Path,
) -> list[str]:
    """[rows] why a row cannot be used, "" if it can. InputError if none can be used of a table with
    labels."""
    unlabelled = np.isnan(read.labels).all(axis=1) & (read.labels.shape[1] > 0)
    problems = []
    for row, problem in enumerate(text_problems):
        if not problem and not any(column[row] for column in texts):
            problem = "empty text"
        if not problem and unlabelled[row]:
            problem = read.unknown_classes.get(row, "no label")
        problems.append(problem)
    if label_columns and all(problems):
        raise InputError(
            f"{path}: no row can be used with the labels in {listed(label_columns)}, first row 1, "
            f"value {texts[0][0]!r}: {problems[0]}; correct it, or choose other columns"
        )
    return problems


def _label_cells(
    frame: pd.DataFrame, columns: list[str], text_problems: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells of these columns, NaN where missing, and what they are as numbers, NaN for
    words."""
    cells = frame[columns]
    missing = cells.astype(str).apply(lambda column: column.str.strip()).isin(MISSING_LABELS)
    is_unusable = np.array(text_problems, dtype=object) != ""
    cells = cells.mask(missing | is_unusable[:, None])
    return cells, cells.apply(read_numbers)


def _infer_label_columns(
    others: pd.DataFrame, text_problems: list[str], path: str | Path
) -> list[str]:
    """Of the columns that are no texts, the only one, the only numeric one, or all numeric ones if
    they hold nothing but 0 and 1; never one that numbers or names the rows."""
    cells, numbers = _label_cells(others, list(others.columns), text_problems)
    columns = [name for name in cells.columns if not _is_identifier(cells[name], numbers[name])]
    if len(columns) == 1:
        return columns
    numeric = (cells.isna() | np.isfinite(numbers)).all()
    columns = [name for name in columns if numeric[name]]
    if len(columns) == 1 or (columns and _is_binary(cells[columns], numbers[columns])):
        return columns
    check_single_labels(cells, path)
    names = listed(cells)
    reason = "there are no other columns"
    if names:
        reason = (
            f"set label_columns, from: {names} (a column of identifiers is never taken by itself)"
        )
    raise InputError(f"{path}: cannot tell the label columns; {reason}")


def _infer_task_type(cells: pd.DataFrame, numbers: pd.DataFrame, bits: pd.DataFrame) -> TaskType:
    """One column of 0 and 1 (`bits`) is binary, several are multilabel. One of 2 to 50 distinct
    words or 2 to 10 distinct whole numbers is multiclass. All else is regression, also without
    labels."""
    if not len(cells.columns):
        return "regression"
    if _is_binary(cells, bits):
        return "binary" if len(cells.columns) == 1 else "multilabel"
    if len(cells.columns) > 1:
        return "regression"
    # All must be words, or all whole numbers: a misspelt number must not turn a regression column
    # into classes.
    most_classes = 0
    if numbers.isna().all(axis=None):
        most_classes = MAX_INFERRED_CLASSES
    elif _is_whole(cells, numbers):
        most_classes = MAX_INFERRED_INTEGER_CLASSES
    distinct = cells.iloc[:, 0].dropna().astype(str).nunique()
    return "multiclass" if 2 <= distinct <= most_classes else "regression"


def _is_binary(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    return bool((cells.isna() | numbers.isin((0, 1))).all(axis=None))


def _is_whole(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    return bool((cells.isna() | (numbers % 1 == 0)).all(axis=None))


def _is_identifier(cells: pd.Series, numbers: pd.Series) -> bool:
    """Whether a column numbers or names its rows: it is called so, or all its words or whole
    numbers differ."""
    if IDENTIFIER.fullmatch(str(cells.name)):
        return True
    values = cells.dropna().astype(str)
    if len(values) < 2 or not values.is_unique or (numbers % 1 > 0).any():
        return False
    return not _is_binary(cells.to_frame(), numbers.to_frame())


class Labels(NamedTuple):
    """The labels of a table; its task; its classes, or the words for 0 and 1, if it has such."""

    labels: np.ndarray  # [rows, labels], NaN where missing
    task_type: TaskType
    classes: list[str] | None
    words: list[str] | None
    unknown_classes: dict[int, str]  # by row: the label is none that the model can predict


def _read_labels(
    cells: pd.DataFrame,
    numbers: pd.DataFrame,
    path: str | Path,
    task_type: TaskType | None,
    classes: Sequence[str] | None,
    positive: str | None,
    skip_unknown_classes: bool,
) -> Labels:
    """The labels of a task, which is inferred where absent. `classes` are all that there may be, of
    a binary task the words for 0 and 1; rows with others have no label if `skip_unknown_classes`.
    InputError for a cell that is no label of the task."""
    check_single_labels(cells, path)
    if task_type is None or not LABEL_TYPES[task_type].has_classes:
        check_numbers(cells, numbers, path)
    words = None
    if task_type in (None, "binary"):
        words = list(classes or ()) or two_words(cells, positive, path)
    bits = zeros_and_ones(cells, numbers, words)
    task_type = task_type or _infer_task_type(cells, numbers, bits)
    label_type = LABEL_TYPES[task_type]
    if len(cells.columns) > 1 and label_type.one_class:
        raise InputError(
            f"{path}: a {task_type} task has one label column, not {len(cells.columns)}"
        )
    names = None
    if label_type.is_number:
        labels = numbers.where(np.isfinite(numbers))
        allowed = "a number"
    elif label_type.has_classes and len(cells.columns):
        labels, names = _class_indices(cells, numbers, classes)
        allowed = listed(names)
    else:
        labels = bits.where(bits.isin((0, 1)))
        allowed = " or ".join(words or ("0", "1"))
    wrong_cells = np.argwhere((cells.notna() & labels.isna()).to_numpy().T)
    if len(wrong_cells) and not (label_type.one_class and skip_unknown_classes):
        raise InputError(f"{path}: {_wrong_label(cells, wrong_cells, task_type, allowed)}")
    unknown_classes = _unknown_classes(cells, wrong_cells, path, allowed)
    return Labels(labels.to_numpy(dtype=float), task_type, names, words, unknown_classes)


def _unknown_classes(
    cells: pd.DataFrame, wrong_cells: np.ndarray, path: str | Path, allowed: str
) -> dict[int, str]:
    """What is wrong with the rows of cells (column, row) that are no class of a model, by row."""
    problems = {}
    for column, row in wrong_cells:
        name = str(cells.iat[row, column]).strip()
        problems[int(row)] = f"{name!r} is no class of the model ({allowed})"
    note_unscored(problems, cells.index, path)
    return problems


def note_unscored(problems: dict[int, str], index: pd.Index, path: str | Path) -> None:
    """Says how many rows have a label that cannot be scored: `problems` by number of the row."""
    if problems:
        row, problem = next(iter(problems.items()))
        print(
            f"note: {path}: {len(problems)} rows have a label that cannot be scored, "
            f"the first {row_name(index[row])}: {problem}",
            file=sys.stderr,
        )


def _wrong_label(
    cells: pd.DataFrame, wrong_cells: np.ndarray, task_type: TaskType, allowed: str
) -> str:
    """What to say of cells that are no labels of the task: `wrong_cells` are (column, row)."""
    column, row = wrong_cells[0]
    value = str(cells.iat[row, column])
    advice = "correct it, leave it empty, or choose another column or task type"
    is_bound = value.strip().startswith(("<", ">", "~", "≤", "≥"))
    if is_bound and LABEL_TYPES[task_type].is_number:
        advice = (
            "write the number alone to use it as it is, leave the cells empty to leave them out, "
            "or make classes of all values"
        )
    count = f"; {len(wrong_cells)} such cells in all" if len(wrong_cells) > 1 else ""
    return (
        f"column {cells.columns[column]!r}, {row_name(cells.index[row])}: "
        f"{value!r} is no {task_type} label ({allowed}{count}); {advice}"
    )


def _class_indices(
    cells: pd.DataFrame, numbers: pd.DataFrame, classes: Sequence[str] | None
) -> tuple[pd.DataFrame, list[str]]:
    """Indices of classes, NaN where missing or no class, and the classes: those given, or all
    values in order."""
    # A missing value turns a column of 1, 2, 3 into floats; its classes are still "1", "2", "3".
    whole = _is_whole(cells, numbers)
    values = numbers.dropna().astype(int) if whole else cells.dropna()
    words = values.iloc[:, 0].astype(str).str.strip()
    names = list(classes or sorted(set(words), key=int if whole else str))
    indices = words.map({name: index for index, name in enumerate(names)})
    return indices.reindex(cells.index).to_frame(), names
