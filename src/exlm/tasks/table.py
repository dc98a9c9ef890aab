"""Labelled tables: find the text and label columns of a data frame, and say which rows cannot be used.

Row numbers, in messages and in results, are 0-based data rows (the header is not counted).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.tasks.frames import existing, listed

TaskType = Literal["binary", "multiclass", "multilabel", "regression"]

TEXT_COLUMNS = {"smiles", "mol", "text", "sentence"}
MISSING_LABELS = ("", "NA", "NaN", "nan", "null")
MAX_INFERRED_CLASSES = 50
MAX_INFERRED_INTEGER_CLASSES = 10  # more whole numbers than this are counts to regress on


@dataclass(frozen=True)
class LabelledTable:
    """A table whose texts and labels line up with the rows of the file, unusable rows included."""

    frame: pd.DataFrame  # every original row and column, order preserved
    texts: list[str]  # [rows] the SMILES (or text) of each row, "" where missing
    pairs: list[str] | None  # [rows] the second text of each row, where the task has two
    labels: np.ndarray  # [rows, tasks] float64, NaN = missing; [rows, 0] when read for prediction
    label_columns: list[str]
    task_type: TaskType
    classes: list[str] | None  # multiclass: the sorted label values, whose index the labels hold
    problems: pd.DataFrame  # columns row, value, reason: the rows that cannot be used
    usable: np.ndarray  # [rows] bool
    text_column: str = "text"
    parts: np.ndarray | None = None  # [rows] train, valid, test, ... where each of them came as a file


def join_parts(frames: dict[str, pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """One frame of the train, valid, test, ... files, and which of them each row is from.

    Columns that not all files have are filled with "".
    """
    names = list(dict.fromkeys(name for frame in frames.values() for name in frame.columns))
    joined = pd.concat([frame.reindex(columns=names, fill_value="") for frame in frames.values()], ignore_index=True)
    malformed: dict[int, str] = {}
    start = 0
    for frame in frames.values():
        malformed |= {start + row: reason for row, reason in frame.attrs.get("malformed", {}).items()}
        start += len(frame)
    joined.attrs["malformed"] = malformed
    return joined, np.repeat(list(frames), [len(frame) for frame in frames.values()])


def parts_and_rows(parts: np.ndarray | None, rows: Sequence[int]) -> list[tuple[str, int]]:
    """The file (train, valid, ...; "" if there is one file) that each row came from, and its number there, from 0."""
    if parts is None:
        return [("", row) for row in rows]
    numbers = pd.Series(parts).groupby(parts).cumcount()
    return [(str(parts[row]), int(numbers[row])) for row in rows]


def make_table(
    frame: pd.DataFrame,
    path: str | Path,
    text_column: str | None,
    label_columns: Sequence[str] | None,
    task_type: TaskType | None = None,
    classes: Sequence[str] | None = None,
    pair_column: str | None = None,
    parts: np.ndarray | None = None,
) -> LabelledTable:
    """A labelled table, or with `label_columns=[]` a table to predict for (labels [rows, 0]).

    path: where the frame comes from, for messages.
    text_column: None takes the one column named smiles, mol, text or sentence, in any case.
    label_columns: None takes the only other column, the only numeric one, or all numeric ones if they
        hold nothing but 0 and 1.
    task_type: None infers it: one 0/1 column is binary, several are multilabel, one column of 2 to 50
        distinct words or 2 to 10 distinct whole numbers is multiclass, anything else is regression. (Without label
        columns nothing can be inferred and the table says regression.)
    classes: the classes that the labels index, where the task or a model has fixed them.
    pair_column: the second text, for tasks on pairs.
    parts: [rows] the file that each row is from, as `join_parts` returns it.
    A row without text or without any label is listed in `problems`.

    Raises InputError for unusable columns, values that are not labels of the task, and no usable row.
    """
    text_column = text_column or _find_text_column(frame, path)
    for column in filter(None, (text_column, pair_column, *(label_columns or ()))):
        existing(frame, column, path)
    if both := {text_column, pair_column} & set(label_columns or ()):
        raise InputError(f"{path}: column {both.pop()!r} is both text and label; choose another")
    malformed: dict[int, str] = frame.attrs.get("malformed", {})
    others = [name for name in frame.columns if name not in (text_column, pair_column)]
    columns = others if label_columns is None else list(label_columns)
    cells, numbers = _parse(frame.drop(index=list(malformed)), columns)
    if label_columns is None:
        columns = _find_label_columns(cells, numbers, text_column, path)
        cells, numbers = cells[columns], numbers[columns]
    task_type = task_type or _infer_task_type(cells, numbers)
    known_labels, names = _read_labels(cells, numbers, task_type, path, classes, parts)
    labels = known_labels.reindex(frame.index).to_numpy()
    texts, pairs = _texts(frame[text_column]), _texts(frame[pair_column]) if pair_column else None
    unlabelled = np.isnan(labels).all(axis=1) & bool(columns)
    reasons = [
        malformed.get(row) or ("" if text or second else "empty text") or ("no label" if unlabelled[row] else "")
        for row, (text, second) in enumerate(zip(texts, pairs or texts, strict=True))
    ]
    if columns and all(reasons):
        raise InputError(f"{path}: no row can be used, first row 0, value {texts[0]!r}: {reasons[0]}; correct it")
    bad = [(row, texts[row], reason) for row, reason in enumerate(reasons) if reason]
    problems = pd.DataFrame(bad, columns=["row", "value", "reason"])
    usable = np.array([not reason for reason in reasons], dtype=bool)
    return LabelledTable(frame, texts, pairs, labels, columns, task_type, names, problems, usable, text_column, parts)


def _texts(column: pd.Series) -> list[str]:
    return column.fillna("").astype(str).str.strip().tolist()


def _find_text_column(frame: pd.DataFrame, path: str | Path) -> str:
    found = [name for name in frame.columns if str(name).lower() in TEXT_COLUMNS]
    if len(found) != 1:
        raise InputError(f"{path}: cannot tell the text column; set text_column to one of: {listed(frame)}")
    return found[0]


def _parse(frame: pd.DataFrame, columns: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells of some columns, NaN where they are missing, and the same as numbers, NaN where they are none."""
    cells = frame[columns]
    cells = cells.mask(cells.astype(str).apply(lambda column: column.str.strip()).isin(MISSING_LABELS))
    return cells, cells.apply(pd.to_numeric, errors="coerce").astype(float)


def _find_label_columns(cells: pd.DataFrame, numbers: pd.DataFrame, text_column: str, path: str | Path) -> list[str]:
    if cells.columns.empty:
        raise InputError(f"{path}: no column besides {text_column!r}; add a column with labels")
    if len(cells.columns) == 1:
        return list(cells.columns)
    numeric = cells.columns[(cells.isna() | np.isfinite(numbers)).all()]
    if len(numeric) == 1 or (len(numeric) and _are_binary(cells[numeric], numbers[numeric])):
        return list(numeric)
    raise InputError(f"{path}: cannot tell the label columns; set label_columns, from: {listed(cells)}")


def _infer_task_type(cells: pd.DataFrame, numbers: pd.DataFrame) -> TaskType:
    if len(cells.columns) and _are_binary(cells, numbers):
        return "binary" if len(cells.columns) == 1 else "multilabel"
    if len(cells.columns) != 1:
        return "regression"
    # All words or all whole numbers: a misspelt number must not turn a regression column into classes.
    words = numbers.isna().all(axis=None)
    limit = MAX_INFERRED_CLASSES if words else MAX_INFERRED_INTEGER_CLASSES
    few = 2 <= cells.iloc[:, 0].dropna().astype(str).nunique() <= limit
    return "multiclass" if few and (words or _are_whole(cells, numbers)) else "regression"


def _read_labels(
    cells: pd.DataFrame,
    numbers: pd.DataFrame,
    task_type: TaskType,
    path: str | Path,
    classes: Sequence[str] | None,
    parts: np.ndarray | None,
) -> tuple[pd.DataFrame, list[str] | None]:
    """Labels [rows, tasks], NaN = missing, and the classes that they index (multiclass only)."""
    columns = list(cells.columns)
    if len(columns) > 1 and task_type in ("binary", "multiclass"):
        hint = "multilabel" if task_type == "binary" else "one column"
        raise InputError(f"{path}: a {task_type} task has one label column, not {len(columns)}; use {hint}")
    labels, names = numbers, None if classes is None else list(classes)
    wanted = "a number" if task_type == "regression" else "0 or 1"
    complaint = f"is no {task_type} label ({wanted}); correct it, leave it empty, or choose another column or task type"
    if task_type == "multiclass" and columns:
        # A missing value turns a column of 1, 2, 3 into floats; its classes are still "1", "2", "3".
        whole = _are_whole(cells, numbers)
        values = (numbers.dropna().astype(int) if whole else cells.dropna()).iloc[:, 0].astype(str).str.strip()
        names = names or sorted(set(values), key=int if whole else str)
        indices = values.map({name: index for index, name in enumerate(names)})
        labels = indices.astype(float).reindex(cells.index).to_frame(columns[0])
        complaint = f"is not one of the labels {listed(names)}; correct it, or leave it empty"
    elif task_type != "regression":
        labels = numbers.where(numbers.isin((0, 1)))
    wrong = np.argwhere((cells.notna() & ~np.isfinite(labels)).to_numpy().T)
    if len(wrong):
        column, row = wrong[0]
        [(part, number)] = parts_and_rows(parts, [cells.index[row]])
        where = f"column {columns[column]!r}, " + f"{part} row {number}".strip()
        raise InputError(f"{path}: {where}: {cells.iat[row, column]!r} {complaint}")
    if columns and labels.isna().all(axis=None):
        raise InputError(f"{path}: no label in {listed(columns)}; choose other label columns")
    return labels, names


def _are_binary(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    return bool((cells.isna() | numbers.isin((0, 1))).all(axis=None))


def _are_whole(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    return bool((cells.isna() | (np.isfinite(numbers) & (numbers == np.rint(numbers)))).all(axis=None))
