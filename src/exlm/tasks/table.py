"""Labelled tables: finds the text and label columns of a data frame, and says which rows cannot be
used."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from exlm.data.columns import check_columns, choose_column, listed
from exlm.errors import InputError

TaskType = Literal["binary", "multiclass", "multilabel", "regression", "token_classification"]
OnInvalid = Literal["error", "skip", "keep"]
# int32: input_ids [S], and what else the model takes, such as token_type_ids [S]
Example = dict[str, np.ndarray]

MISSING_LABELS = ("", "NA", "NaN", "nan", "null")
# Names of columns that number their rows; pandas calls a column without a name "Unnamed: 0".
IDENTIFIER = re.compile(r"(.*[ _-])?(?i:id|idx|index|row|cid)|.*[a-z]I[Dd]|Unnamed: \d+")
MAX_INFERRED_CLASSES = 50
# if there are more distinct whole numbers, the task is regression
MAX_INFERRED_INTEGER_CLASSES = 10


@dataclass(frozen=True)
class LabelledTable:
    """A table whose texts and labels line up with the rows of its files, unusable rows included."""

    # every original row and column, in order; indexed by (part, row) where it joins several files
    frame: pd.DataFrame
    texts: list[str]  # [rows] the SMILES (or text) of each row, "" where missing
    pairs: list[str] | None  # [rows] the second text of each row, where the task has two
    # [rows, tasks] float64, NaN = missing; [rows, 0] when read for prediction; or [rows, units]
    labels: np.ndarray
    label_columns: list[str]
    task_type: TaskType
    classes: list[str] | None  # multiclass: the label values; `labels` has their indices
    problems: list[str]  # [rows] why a row cannot be used, "" if it can
    text_column: str
    pair_column: str | None
    inferred: dict[str, str]  # what was found without being told, by the option that says otherwise
    # token_classification: a regular expression for what has a label (`token_labels.py`)
    unit: str | None = None
    # [rows] their tokens, if a model reads them
    examples: list[Example] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)  # [rows] what else is wrong, "" if nothing
    # [rows] bool: those with text and label, which a split divides before any is left out for its
    # tokens; None: `usable`.
    divided: np.ndarray | None = None

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
        """How many rows can be used, for which something is `done`, and how many cannot."""
        usable = int(self.usable.sum())
        return {f"rows {done}": usable, "marked in the column problem": len(self.problems) - usable}

    def report(self) -> pd.DataFrame:
        """All rows with something wrong: file (`part`, "" where there is one), row (from 1), value,
        reason, action."""
        usable = self.usable
        found = pd.DataFrame(
            {"part": "" if self.parts is None else self.parts, "value": self.texts}
        )
        found.insert(1, "row", self.frame.index.get_level_values(-1) + 1)
        found["reason"] = np.where(usable, self.caveats, self.problems)
        found["action"] = np.where(usable, "kept", "left out")
        return found[found["reason"] != ""]

    def check(self, path: str, on_invalid: OnInvalid, begin: bool = True) -> None:
        """InputError if none of the rows that `begin` the file `path` can be used, or with `error`
        if one is wrong."""
        found = self.report()
        if (self.usable.any() or not begin) and (found.empty or on_invalid != "error"):
            return
        what = "row" if self.usable.any() else "no row can be used, the first: row"
        first = found.iloc[0]
        raise InputError(
            f"{path}: {what} {first.row}, value {str(first.value)[:80]!r}: {first.reason}; correct it"
        )


def make_table(
    frame: pd.DataFrame | dict[str, pd.DataFrame],
    path: str | Path,
    text_column: str | None,
    label_columns: Sequence[str] | None,
    task_type: TaskType | None = None,
    classes: Sequence[str] | None = None,
    pair_column: str | None = None,
) -> LabelledTable:
    """A labelled table, or with `label_columns=[]` a table to predict for (labels [rows, 0]).

    `frame` is one file, or several by part (train, valid, ...), which are joined; columns that not
    all of them have are filled with "". `path` is for messages, `pair_column` has the second text
    of a pair, `classes` are in the order of their indices. Columns and the task type are inferred
    where they are None (`choose_column`, `_infer`). InputError if columns cannot be used, a value
    is no label of the task, or no row can be used."""
    files = list(frame.values()) if isinstance(frame, dict) else [frame]
    malformed = [
        file.attrs.get("malformed", {}).get(row, "") for file in files for row in file.index
    ]
    problems = pd.Series(malformed, dtype=object)
    if isinstance(frame, dict):
        # in a file without these columns, all texts would be empty
        for part, file in frame.items():
            check_columns(file, f"{path}, {part} part", text_column, pair_column)
        every = list(dict.fromkeys(name for file in files for name in file.columns))
        frame = pd.concat(
            {part: file.reindex(columns=every, fill_value="") for part, file in frame.items()}
        )
    wanted, text_column = text_column, choose_column(frame.columns, text_column, str(path))
    check_columns(frame, path, pair_column, *(label_columns or ()))
    if shared := {text_column, pair_column} & set(label_columns or ()):
        raise InputError(f"{path}: column {shared.pop()!r} is both text and label; choose another")

    others = [name for name in frame.columns if name not in (text_column, pair_column)]
    cells = frame[others if label_columns is None else list(dict.fromkeys(label_columns))]
    missing = cells.astype(str).apply(lambda column: column.str.strip()).isin(MISSING_LABELS)
    cells = cells.mask(missing | (problems.to_numpy() != "")[:, None])
    numbers = cells.apply(pd.to_numeric, errors="coerce").astype(float)
    columns, fitting = _infer(cells, numbers, label_columns is not None, path)
    given = {"text_column": wanted, "label_columns": label_columns, "task_type": task_type}
    found = {"text_column": text_column, "label_columns": listed(columns, 5), "task_type": fitting}
    inferred = {option: value for option, value in found.items() if given[option] is None}
    task_type = task_type or fitting
    labels, names = _read_labels(cells[columns], numbers[columns], task_type, path, classes)

    chosen = frame[list(dict.fromkeys((text_column, pair_column or text_column)))]
    chosen = chosen.fillna("").astype(str).apply(lambda column: column.str.strip())
    texts, pairs = (
        chosen[text_column].tolist(),
        chosen[pair_column].tolist() if pair_column else None,
    )
    problems[(problems == "") & (chosen == "").all(axis=1).to_numpy()] = "empty text"
    if columns:
        problems[(problems == "") & np.isnan(labels).all(axis=1)] = "no label"
        if (problems != "").all():
            reason = f"first row 1, value {texts[0]!r}: {problems[0]}; correct it, or choose other columns"
            raise InputError(
                f"{path}: no row can be used with the labels in {listed(columns)}, {reason}"
            )
    return LabelledTable(
        frame,
        texts,
        pairs,
        labels,
        columns,
        task_type,
        names,
        problems.tolist(),
        text_column,
        pair_column,
        inferred,
    )


def _infer(
    cells: pd.DataFrame, numbers: pd.DataFrame, chosen: bool, path: str | Path
) -> tuple[list[str], TaskType]:
    """Which columns hold labels (all of them, if the user has chosen them), and the task type that
    fits. The labels are the only column besides the texts, the only numeric one, or all numeric
    ones if they hold nothing but 0 and 1; never one that numbers or names the rows. One column of 0
    and 1 is binary, several are multilabel. One of 2 to 50 distinct words or 2 to 10 distinct whole
    numbers is multiclass. All else is regression, also without labels."""
    missing, columns = cells.isna(), list(cells.columns)
    binary = (missing | numbers.isin((0, 1))).all()
    if not chosen:
        columns = [name for name in columns if not _is_identifier(cells[name], numbers[name])]
    if not chosen and len(columns) != 1:
        columns = [name for name in columns if (missing | np.isfinite(numbers))[name].all()]
        if not columns or (len(columns) > 1 and not binary[columns].all()):
            hint = f"set label_columns, from: {listed(cells)} (a column of identifiers is never taken by itself)"
            hint = hint if len(cells.columns) else "there are no other columns"
            raise InputError(f"{path}: cannot tell the label columns; {hint}")
    if columns and binary[columns].all():
        return columns, "binary" if len(columns) == 1 else "multilabel"
    if len(columns) == 1:
        # All must be words, or all whole numbers: a misspelt number must not turn a regression
        # column into classes.
        words, whole = (
            test[columns[0]].all() for test in (numbers.isna(), missing | (numbers % 1 == 0))
        )
        limit = MAX_INFERRED_CLASSES if words else MAX_INFERRED_INTEGER_CLASSES if whole else 0
        if 2 <= cells[columns[0]].dropna().astype(str).nunique() <= limit:
            return columns, "multiclass"
    return columns, "regression"


def _is_identifier(cells: pd.Series, numbers: pd.Series) -> bool:
    """Whether a column numbers or names its rows: it is called so, or all its words or whole
    numbers differ."""
    values = cells.dropna().astype(str)
    distinct = len(values) > 1 and values.is_unique and not (numbers % 1 > 0).any()
    binary = (cells.isna() | numbers.isin((0, 1))).all()
    return IDENTIFIER.fullmatch(str(cells.name)) is not None or bool(distinct and not binary)


def _read_labels(
    cells: pd.DataFrame,
    numbers: pd.DataFrame,
    task_type: TaskType,
    path: str | Path,
    classes: Sequence[str] | None,
) -> tuple[np.ndarray, list[str] | None]:
    """Labels [rows, tasks], NaN = missing, and the classes that they index (multiclass only)."""
    names = list(classes) if classes else None
    if len(cells.columns) > 1 and task_type in ("binary", "multiclass"):
        raise InputError(
            f"{path}: a {task_type} task has one label column, not {len(cells.columns)}"
        )
    if task_type == "regression":
        labels, wanted = numbers.where(np.isfinite(numbers)), "a number"
    elif task_type == "multiclass" and len(cells.columns):
        # A missing value turns a column of 1, 2, 3 into floats; its classes are still "1", "2",
        # "3".
        whole = bool((cells.isna() | (numbers % 1 == 0)).all(axis=None))
        values = (
            (numbers.dropna().astype(int) if whole else cells.dropna())
            .iloc[:, 0]
            .astype(str)
            .str.strip()
        )
        names = names or sorted(set(values), key=int if whole else str)
        indices = values.map({name: index for index, name in enumerate(names)})
        labels, wanted = indices.reindex(cells.index).to_frame(), listed(names)
    else:
        labels, wanted = numbers.where(numbers.isin((0, 1))), "0 or 1"
    for column, row in np.argwhere((cells.notna() & labels.isna()).to_numpy().T):
        part, number = cells.index[row] if cells.index.nlevels > 1 else ("", row)
        where = f"{path}: column {cells.columns[column]!r}, {f'{part} row {number + 1}'.strip()}"
        value = f"{cells.iat[row, column]!r} is no {task_type} label ({wanted})"
        raise InputError(
            f"{where}: {value}; correct it, leave it empty, or choose another column or task type"
        )
    return labels.to_numpy(dtype=float), names
