"""The rows of a table: their texts and labels, and why some of them cannot be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from exlm.data.columns import (
    check_columns,
    choose_column,
    listed,
    match_columns,
    pair_columns,
)
from exlm.data.frames import FileRows
from exlm.data.rows import OnInvalid
from exlm.errors import InputError
from exlm.tasks.labels.column_labels import infer_label_columns, label_cells, read_labels
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.tasks.rows.texts import are_pairs, first_of_each, read_texts

UNUSABLE = "marked in the column problem"  # among counts of rows


@dataclass(frozen=True)
class TextTable:
    """The rows of files, with their texts and, if these are read, their labels. Rows that cannot be
    used are included, and say why. `texts`, `pairs`, `problems` and `warnings` are [rows]."""

    frame: pd.DataFrame  # every row and column, in order; by (part, row) where it joins files
    texts: list[str]  # the SMILES or text of each row, "" where missing
    pairs: list[str] | None  # the second text of each row, where the task has two
    text_column: str
    pair_column: str | None
    # [rows, labels] float64, NaN where missing; [rows, 0] when read for prediction; [rows, units]
    # for token_classification
    labels: np.ndarray
    label_columns: list[str]
    task_type: str  # "" when read for prediction, unless it was given
    class_names: list[str] | None  # of the indices in `labels`, if these are classes
    binary_names: list[str] | None  # what labels 0 and 1 are called, if they have names
    problems: list[str]  # why a row cannot be used, "" if it can
    warnings: list[str]  # what is odd about a row that can be used, "" if nothing
    is_cut: np.ndarray  # [rows] bool, whether the text was longer than the model reads
    inferred: dict[str, str]  # what was inferred, by the setting that can say otherwise
    # token_classification: a regular expression for what has a label
    unit_pattern: str | None = None

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.task_type]

    @property
    def usable(self) -> np.ndarray:
        """Which rows can be used: [rows] bool."""
        return np.array(self.problems, dtype=object) == ""

    @property
    def is_half_empty(self) -> np.ndarray:
        """Which rows have only one text of a pair: [rows] bool."""
        pairs = self.texts if self.pairs is None else self.pairs
        return np.array(self.texts, dtype=bool) != np.array(pairs, dtype=bool)

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
            UNUSABLE: len(self.problems) - usable,
        }
        half_empty = int((self.is_half_empty & self.usable).sum())
        if half_empty:
            counts["with one empty text of a pair"] = half_empty
        cut = int((self.is_cut & self.usable).sum())
        if cut:
            counts["cut to max_length"] = cut
        return counts

    def reported_rows(self) -> pd.DataFrame:
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
        """Whether the first row is also the first one of its file."""
        return self.frame.index.get_level_values(-1)[0] == 0

    def check(self, path: str, on_invalid: OnInvalid) -> None:
        """InputError if no row can be used and these rows begin the file `path`, or if a row has a
        problem or a warning and `on_invalid` is `error`."""
        reported_rows = self.reported_rows()
        none_usable = not self.usable.any()
        if (none_usable and self.begins_file) or (on_invalid == "error" and len(reported_rows)):
            subject = "no row can be used, the first: " if none_usable else ""
            raise InputError(f"{path}: {subject}{first_reported_row(reported_rows)}; correct it")


def first_reported_row(reported_rows: pd.DataFrame) -> str:
    """The first of `TextTable.reported_rows` in words: part, row, value and reason."""
    first = reported_rows.iloc[0]
    words = f"{first.part} row {first.row}, value {str(first.value)[:80]!r}: {first.reason}"
    return words.strip()


def make_table(
    rows: FileRows | dict[str, FileRows],
    path: str | Path,
    text_column: str | None,
    label_columns: Sequence[str] | None,
    *,
    task_type: str | None = None,
    class_names: Sequence[str] | None = None,
    pair_column: str | None = None,
    positive: str | None = None,
    not_labels: Sequence[str] = (),
) -> TextTable:
    """A labelled table, or with `label_columns=[]` a table to predict for (labels [rows, 0]).

    `rows` are one file, or several by part (train, valid, ...), which are joined; columns that not
    all of them have are filled with "". `path` is for messages, `pair_column` has the second text
    of a pair, `class_names` are in the order of their indices, `positive` is the one of two classes
    that is label 1 (`find_binary_names`). Columns and the task type are inferred where they are
    None (`_choose_texts` and `column_labels.py`); `not_labels` are columns that are no labels then,
    such as that of a split. InputError if columns cannot be used, a value is no label of the task,
    or no row can be used."""
    if isinstance(rows, dict):
        rows = _join_files(rows, path, text_column, pair_column)
    frame = rows.frame
    if label_columns:
        label_columns = match_columns(label_columns, frame.columns)
    text_columns = _choose_texts(frame, path, text_column, pair_column, label_columns)
    pair = text_columns[1] if len(text_columns) > 1 else None
    texts, problems = read_texts(rows, text_columns, path)
    columns = list(dict.fromkeys(label_columns or ()))
    if label_columns is None:
        others = frame.drop(columns=[*text_columns, *not_labels], errors="ignore")
        columns = infer_label_columns(others, problems, path)
    cells = label_cells(frame, columns, problems)
    labels = read_labels(cells, path, task_type, class_names, positive)
    problems = _problems(problems, texts, labels.values, columns, path)
    choices = {
        "text_column": (text_column, text_columns[0]),
        "pair_column": (pair_column, pair),
        "label_columns": (label_columns, listed(columns, 5)),
        "task_type": (task_type, labels.task_type),
        "positive": (positive, labels.binary_names and labels.binary_names[1]),
    }
    return TextTable(
        frame=frame,
        texts=texts[0],
        pairs=texts[1] if pair else None,
        text_column=text_columns[0],
        pair_column=pair,
        labels=labels.values,
        label_columns=columns,
        task_type=labels.task_type,
        class_names=labels.class_names,
        binary_names=labels.binary_names,
        problems=problems,
        warnings=[""] * len(problems),
        is_cut=np.zeros(len(problems), dtype=bool),
        inferred={name: used for name, (given, used) in choices.items() if used and given is None},
    )


def _problems(
    text_problems: list[str],
    texts: list[list[str]],
    labels: np.ndarray,
    label_columns: list[str],
    path: str | Path,
) -> list[str]:
    """[rows] why a row cannot be used, "" if it can. InputError if none can be used of a table with
    labels."""
    is_empty = ["" if any(of_row) else "empty text" for of_row in zip(*texts, strict=True)]
    problems = first_of_each(text_problems, is_empty)
    if not label_columns:
        return problems
    unlabelled = np.isnan(labels).all(axis=1)
    problems = first_of_each(problems, np.where(unlabelled, "no label", "").tolist())
    if all(problems):
        raise InputError(
            f"{path}: no row can be used with the labels in {listed(label_columns)}, first row 1, "
            f"value {texts[0][0][:80]!r}: {problems[0]}; correct it, or choose other columns"
        )
    return problems


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
    problems = dict[tuple[str, int], str]()
    for part, file in files.items():
        problems |= {(part, row): problem for row, problem in file.problems.items()}
    return FileRows(pd.concat(frames), problems)


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
