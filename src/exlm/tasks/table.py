"""Labelled tables: find the text and label columns of a data frame, and say which rows cannot be used.

Row numbers, in messages and in results, are 0-based data rows (the header is not counted).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rdkit import rdBase

from exlm.data.encoding import rdkit_problem
from exlm.errors import InputError
from exlm.tasks.frames import existing, listed

TaskType = Literal["binary", "multiclass", "multilabel", "regression"]

TEXT_COLUMNS = {"smiles", "mol", "text", "sentence"}
MISSING_LABELS = ("", "NA", "NaN", "nan", "null")
MAX_INFERRED_CLASSES = 50
MAX_INFERRED_INTEGER_CLASSES = 10  # more whole numbers than this are counts to regress on
MOLECULES_SAMPLED = 100  # texts looked at to tell whether they are molecules


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
    good = frame.drop(index=list(malformed))
    if label_columns is None:
        label_columns = _find_label_columns(good, [text_column, pair_column], path)
    cells = good[list(label_columns)]
    task_type = task_type or _infer_task_type(cells)
    known_labels, names = _read_labels(cells, task_type, path, classes, parts)
    labels = known_labels.reindex(frame.index).to_numpy()
    texts, pairs = _texts(frame[text_column]), _texts(frame[pair_column]) if pair_column else None
    unlabelled = np.isnan(labels).all(axis=1) & bool(label_columns)
    reasons = [
        malformed.get(row) or ("" if text or second else "empty text") or ("no label" if unlabelled[row] else "")
        for row, (text, second) in enumerate(zip(texts, pairs or texts, strict=True))
    ]
    if label_columns and all(reasons):
        raise InputError(f"{path}: no row can be used, first row 0, value {texts[0]!r}: {reasons[0]}; correct it")
    bad = [(row, texts[row], reason) for row, reason in enumerate(reasons) if reason]
    problems = pd.DataFrame(bad, columns=["row", "value", "reason"])
    usable = np.array([not reason for reason in reasons], dtype=bool)
    columns = list(label_columns)
    return LabelledTable(frame, texts, pairs, labels, columns, task_type, names, problems, usable, text_column, parts)


def _texts(column: pd.Series) -> list[str]:
    return column.fillna("").astype(str).str.strip().tolist()


def _find_text_column(frame: pd.DataFrame, path: str | Path) -> str:
    found = [name for name in frame.columns if str(name).lower() in TEXT_COLUMNS]
    if len(found) != 1:
        raise InputError(f"{path}: cannot tell the text column; set text_column to one of: {listed(frame)}")
    return found[0]


def _find_label_columns(frame: pd.DataFrame, texts: list[str | None], path: str | Path) -> list[str]:
    others = [name for name in frame.columns if name not in texts]
    if not others:
        raise InputError(f"{path}: no column besides {texts[0]!r}; add a column with labels")
    numbers, missing = _parse(frame[others])
    numeric = [name for name in others if (np.isfinite(numbers[name]) | missing[name]).all()]
    if len(others) == 1 or len(numeric) == 1:
        return numeric or others
    if numeric and _are_binary(numbers[numeric], missing[numeric]):
        return numeric
    raise InputError(f"{path}: cannot tell the label columns; set label_columns, from: {listed(others)}")


def _infer_task_type(cells: pd.DataFrame) -> TaskType:
    if cells.columns.empty:
        return "regression"
    numbers, missing = _parse(cells)
    if _are_binary(numbers, missing):
        return "binary" if len(cells.columns) == 1 else "multilabel"
    if len(cells.columns) > 1:
        return "regression"
    # All words or all whole numbers: a misspelt number must not turn a regression column into classes.
    present = ~missing.iloc[:, 0]
    words, whole = numbers.isna().all(axis=None), _are_whole(numbers[present])
    limit = MAX_INFERRED_CLASSES if words else MAX_INFERRED_INTEGER_CLASSES
    few = 2 <= cells[present].iloc[:, 0].astype(str).nunique() <= limit
    return "multiclass" if few and (words or whole) else "regression"


def _read_labels(
    cells: pd.DataFrame, task_type: TaskType, path: str | Path, classes: Sequence[str] | None, parts: np.ndarray | None
) -> tuple[pd.DataFrame, list[str] | None]:
    """Labels [rows, tasks], NaN = missing, and the classes that they index (multiclass only)."""
    columns = list(cells.columns)
    if len(columns) > 1 and task_type in ("binary", "multiclass"):
        hint = "multilabel" if task_type == "binary" else "one column"
        raise InputError(f"{path}: a {task_type} task has one label column, not {len(columns)}; use {hint}")
    labels, missing = _parse(cells)
    names = None if classes is None else list(classes)
    wanted = "a number" if task_type == "regression" else "0 or 1"
    complaint = f"is no {task_type} label ({wanted}); correct it, leave it empty, or choose another column or task type"
    if task_type == "multiclass" and columns:
        labels, names = _class_indices(cells, labels, ~missing.iloc[:, 0], names)
        allowed = ~(labels < 0)
        complaint = f"is not one of the labels {listed(names)}; correct it, or leave it empty"
    else:
        allowed = labels.abs() < np.inf if task_type == "regression" else labels.isin((0, 1))
    wrong = np.argwhere((~allowed & ~missing).to_numpy().T)
    if len(wrong):
        column, row = wrong[0]
        [(part, number)] = parts_and_rows(parts, [cells.index[row]])
        where = f"column {columns[column]!r}, " + f"{part} row {number}".strip()
        raise InputError(f"{path}: {where}: {cells.iat[row, column]!r} {complaint}")
    if columns and labels.isna().all(axis=None):
        raise InputError(f"{path}: no label in {listed(columns)}; choose other label columns")
    return labels, names


def _class_indices(
    cells: pd.DataFrame, numbers: pd.DataFrame, present: pd.Series, classes: list[str] | None
) -> tuple[pd.DataFrame, list[str]]:
    """The class index of each row ([rows, 1], NaN = missing, -1 = no class) and the names of the classes."""
    whole = _are_whole(numbers[present])
    # A missing value turns a column of 1, 2, 3 into floats; its classes are still "1", "2", "3".
    names = (numbers[present].astype(int) if whole else cells[present]).iloc[:, 0].astype(str).str.strip()
    classes = classes or sorted(set(names), key=int if whole else str)
    codes = pd.Series(pd.Categorical(names, categories=classes).codes, names.index, dtype=float)
    return codes.reindex(cells.index).to_frame(cells.columns[0]), classes


def _parse(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The cells as numbers (NaN for words and missing values), and which of them are missing."""
    numbers = cells.apply(pd.to_numeric, errors="coerce").astype(float)
    missing = cells.isna() | cells.astype(str).apply(lambda column: column.str.strip()).isin(MISSING_LABELS)
    return numbers, missing


def _are_binary(numbers: pd.DataFrame, missing: pd.DataFrame) -> bool:
    return bool((numbers.isin((0, 1)) | missing).all(axis=None))


def _are_whole(numbers: pd.DataFrame) -> bool:
    return bool((np.isfinite(numbers) & (numbers == np.rint(numbers))).all(axis=None))


def are_molecules(texts: Sequence[str]) -> bool:
    """Whether most of the first texts are SMILES that RDKit can parse."""
    sample = [text for text in texts if text][:MOLECULES_SAMPLED]
    return sum(molecule_problem(text) is None for text in sample) > len(sample) / 2


def molecule_problem(smiles: str) -> str | None:
    """Why a SMILES cannot be used, or None if it can. RDKit's own log is silenced."""
    if not smiles.strip():
        return "empty SMILES"
    if len(smiles.split()) > 1:  # RDKit would take the rest as a name, the tokenizer as atoms
        return "SMILES contains a space"
    with rdBase.BlockLogs():
        return "RDKit cannot parse it" if rdkit_problem(smiles) else None
