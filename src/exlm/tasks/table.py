"""A labelled table: read a file, find its text and label columns, and say which rows cannot be used.

Row numbers, in messages and in results, are 0-based data rows (the header is not counted).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rdkit import rdBase

from exlm.data.chemistry import rdkit_problem
from exlm.errors import InputError
from exlm.tasks.frames import existing, listed, read_frame

Place = Callable[[int], str]  # a row of a frame in words
TaskType = Literal["binary", "multiclass", "multilabel", "regression"]

TEXT_COLUMNS = {"smiles", "mol", "text", "sentence"}
PARSED_SAMPLE = 100  # texts looked at to tell whether they are molecules
MISSING_LABELS = {"", "NA", "NaN", "nan", "null"}
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
    parts: np.ndarray | None = None  # [rows] train, valid, test, ... where the parts came as files


def load_table(
    path: str | Path,
    text_column: str | None,
    label_columns: Sequence[str] | None,
    task_type: TaskType | None = None,
    classes: Sequence[str] | None = None,
    pair_column: str | None = None,
) -> LabelledTable:
    """Read a labelled table from a file; see `make_table`."""
    return make_table(read_frame(path), path, text_column, label_columns, task_type, classes, pair_column)


def join_parts(frames: dict[str, pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """One frame of all parts and the part of each row. Columns that not all parts have are filled with ""."""
    names = list(dict.fromkeys(name for part in frames.values() for name in part.columns))
    whole = [part.reindex(columns=names, fill_value="") for part in frames.values()]
    frame = pd.concat(whole, ignore_index=True)
    starts = np.cumsum([0, *map(len, whole)]).tolist()
    frame.attrs["malformed"] = {
        start + row: reason
        for start, part in zip(starts, frames.values(), strict=False)
        for row, reason in part.attrs.get("malformed", {}).items()
    }
    return frame, np.repeat(list(frames), [len(part) for part in frames.values()])


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
    parts: [rows] the part of each row.
    A row without text or without any label is listed in `problems`.

    Raises InputError for unusable columns, values that are not labels of the task, and no usable row.
    """
    malformed: dict[int, str] = frame.attrs.get("malformed", {})
    good = frame.drop(index=list(malformed)) if malformed else frame
    text_column = _find_text_column(frame, text_column, path)
    pairs = _texts(frame[existing(frame, pair_column, path)]) if pair_column else None
    columns = _find_label_columns(good, text_column, pair_column, label_columns, path)
    task = task_type or (_infer_task(good, columns) if columns else "regression")
    place = partial(_place, parts)
    known, labels = classes, np.full((len(frame), len(columns)), np.nan)
    labels[good.index], known = _read_labels(good, columns, task, path, classes, place)
    texts = _texts(frame[text_column])
    problems = _find_problems(texts, pairs, labels, malformed)
    if columns and len(problems) == len(frame):
        row, value, reason = problems.iloc[0]
        raise InputError(f"{path}: no row can be used, first row {row}, value {value!r}: {reason}; correct it")
    usable = ~np.isin(np.arange(len(frame)), problems["row"])
    return LabelledTable(frame, texts, pairs, labels, columns, task, known, problems, usable, text_column, parts)


def are_molecules(texts: Sequence[str]) -> bool:
    """Whether most of the first texts are SMILES that RDKit can parse."""
    sample = [text for text in texts if text][:PARSED_SAMPLE]
    return sum(molecule_problem(text) is None for text in sample) > len(sample) / 2


def molecule_problem(smiles: str) -> str | None:
    """Why a SMILES cannot be used, or None if it can. RDKit's own log is silenced."""
    if not smiles.strip():
        return "empty SMILES"
    if len(smiles.split()) > 1:  # RDKit would take the rest as a name, the tokenizer as atoms
        return "SMILES contains a space"
    with rdBase.BlockLogs():
        return "RDKit cannot parse it" if rdkit_problem(smiles) else None


def _find_text_column(frame: pd.DataFrame, named: str | None, path: str | Path) -> str:
    if named is not None:
        return existing(frame, named, path)
    found = [str(name) for name in frame.columns if str(name).lower() in TEXT_COLUMNS]
    if len(found) != 1:
        raise InputError(f"{path}: cannot tell the text column; set text_column to one of: {listed(frame)}")
    return found[0]


def _find_label_columns(
    frame: pd.DataFrame, text_column: str, pair_column: str | None, named: Sequence[str] | None, path: str | Path
) -> list[str]:
    if named is not None:
        if both := {text_column, pair_column} & set(named):
            raise InputError(f"{path}: column {both.pop()!r} is both text and label; choose another")
        return [existing(frame, name, path) for name in named]
    others = [str(name) for name in frame.columns if name not in (text_column, pair_column)]
    numeric = others if len(others) == 1 else [name for name in others if not _not_numbers(frame[name]).any()]
    if len(numeric) == 1 or (numeric and all(_is_binary(frame[name]) for name in numeric)):
        return numeric
    if not others:
        raise InputError(f"{path}: no column besides {text_column!r}; add a column with labels")
    raise InputError(f"{path}: cannot tell the label columns; set label_columns, from: {listed(others)}")


def _infer_task(frame: pd.DataFrame, columns: list[str]) -> TaskType:
    if all(_is_binary(frame[name]) for name in columns):
        return "binary" if len(columns) == 1 else "multilabel"
    return "multiclass" if len(columns) == 1 and _looks_like_classes(frame[columns[0]]) else "regression"


def _read_labels(
    frame: pd.DataFrame,
    columns: list[str],
    task: TaskType,
    path: str | Path,
    classes: Sequence[str] | None,
    place: Place,
) -> tuple[np.ndarray, list[str] | None]:
    if len(columns) > 1 and task in ("binary", "multiclass"):
        hint = "multilabel" if task == "binary" else "one column"
        raise InputError(f"{path}: a {task} task has one label column, not {len(columns)}; use {hint}")
    labels = np.empty((len(frame), len(columns)))
    found = None if classes is None else list(classes)
    for task_index, name in enumerate(columns):
        if task == "multiclass":
            labels[:, task_index], found = _class_labels(frame[name], found, path, place)
        else:
            labels[:, task_index] = _numeric_labels(frame[name], task, path, place)
    if columns and np.isnan(labels).all():
        raise InputError(f"{path}: no label in {listed(columns)}; choose other label columns")
    return labels, found


def _numeric_labels(column: pd.Series, task: TaskType, path: str | Path, place: Place) -> np.ndarray:
    wrong, wanted = _not_numbers(column), "a number"
    numbers = _numbers(column)
    if task != "regression":
        wrong, wanted = wrong | ~(np.isnan(numbers) | np.isin(numbers, (0, 1))), "0 or 1"
    if wrong.any():
        row = int(wrong.argmax())
        value = column.iloc[row]
        raise InputError(
            f"{path}: column {column.name!r}, {place(column.index[row])}: {value!r} is no {task} label ({wanted});"
            " correct it, leave it empty, or choose another column or task type"
        )
    return numbers


def _class_labels(
    column: pd.Series, classes: list[str] | None, path: str | Path, place: Place
) -> tuple[np.ndarray, list[str]]:
    """The class index of each row ([rows], NaN = missing) and the class names; whole numbers sort as such."""
    present = ~_missing(column)
    numbers = _numbers(column)
    whole = _whole(numbers[present])
    # A missing value turns a column of 1, 2, 3 into floats; its classes are still "1", "2", "3".
    names = pd.Series(numbers[present]).astype(int) if whole else column[present]
    names = names.astype(str).str.strip()
    classes = classes or sorted(set(names), key=int if whole else str)
    labels = np.full(len(column), np.nan)
    codes = pd.Categorical(names, categories=classes).codes.astype(float)
    if (codes < 0).any():
        row = int(np.flatnonzero(present)[np.argmax(codes < 0)])
        raise InputError(
            f"{path}: column {column.name!r}, {place(column.index[row])}: {column.iloc[row]!r} is not one of the "
            f"labels {listed(classes)}; correct it, or leave it empty"
        )
    labels[present] = codes
    return labels, classes


def _find_problems(
    texts: list[str], pairs: list[str] | None, labels: np.ndarray, malformed: dict[int, str]
) -> pd.DataFrame:
    unlabelled = np.isnan(labels).all(axis=1) if labels.shape[1] else np.zeros(len(texts), dtype=bool)
    something = [text or second for text, second in zip(texts, pairs or texts, strict=True)]
    reasons = [
        malformed.get(row) or ("empty text" if not something[row] else "no label" if unlabelled[row] else "")
        for row in range(len(texts))
    ]
    bad = [(row, texts[row], reason) for row, reason in enumerate(reasons) if reason]
    return pd.DataFrame(bad, columns=["row", "value", "reason"])


def parts_and_rows(parts: np.ndarray | None, rows: Sequence[int]) -> list[tuple[str, int]]:
    """The part that each row came from as a file ("" if there is one file), and its number there, from 0."""
    if parts is None:
        return [("", row) for row in rows]
    first = dict(zip(*(found.tolist() for found in np.unique(parts, return_index=True)), strict=True))
    return [(str(parts[row]), row - first[parts[row]]) for row in rows]


def _place(parts: np.ndarray | None, row: int) -> str:
    [(part, number)] = parts_and_rows(parts, [row])
    return f"{part} row {number}".strip()


def _texts(column: pd.Series) -> list[str]:
    return column.fillna("").astype(str).str.strip().tolist()


def _missing(column: pd.Series) -> np.ndarray:
    return np.asarray(column.isna() | column.astype(str).str.strip().isin(MISSING_LABELS), dtype=bool)


def _numbers(column: pd.Series) -> np.ndarray:
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


def _whole(numbers: np.ndarray) -> bool:
    return bool((np.isfinite(numbers) & (numbers == np.rint(numbers))).all())


def _not_numbers(column: pd.Series) -> np.ndarray:
    return ~np.isfinite(_numbers(column)) & ~_missing(column)


def _is_binary(column: pd.Series) -> bool:
    numbers = _numbers(column)
    return bool((np.isin(numbers, (0, 1)) | _missing(column)).all())


def _looks_like_classes(column: pd.Series) -> bool:
    # All words or all whole numbers: a misspelt number must not turn a regression column into classes.
    present = column[~_missing(column)]
    numbers = _numbers(present)
    words = bool(np.isnan(numbers).all())
    limit = MAX_INFERRED_CLASSES if words else MAX_INFERRED_INTEGER_CLASSES
    return (words or _whole(numbers)) and 2 <= present.astype(str).nunique() <= limit
