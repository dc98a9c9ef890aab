"""Rows of a table with the same molecule or the same text: counted, kept together by splits, and
merged or left out if the user wants it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.tasks.config import Duplicates
from exlm.tasks.labels.cells import row_name
from exlm.tasks.rows.splits import RowSplit, part_of_rows
from exlm.tasks.rows.table import TextTable


def find_groups(table: TextTable, spelling: Callable[[str], str]) -> np.ndarray:
    """The groups of equal rows: [rows] the number of the first row with the same text or pair of
    texts, all written in one `spelling`. A row without text is a group of its own."""
    texts = pd.Series(list(map(spelling, table.texts)))
    seconds = pd.Series(list(map(spelling, table.pairs))) if table.pairs else texts
    rows = pd.Series(range(len(texts)))
    first_rows = rows.groupby([texts, seconds], sort=False).transform("min")
    return first_rows.where(texts.ne("") | seconds.ne(""), rows).to_numpy()


def describe_duplicates(table: TextTable, groups: np.ndarray) -> str:
    """How many usable rows share their text with others, by `find_groups`, and how many of these
    texts have contradictory labels; "" if no text is repeated."""
    repeated = _repeated_rows(table, groups)
    if not repeated:
        return ""
    conflicts = sum(_contradict(table.labels[rows]) for rows in repeated)
    return (
        f"{sum(map(len, repeated))} rows share {len(repeated)} texts or molecules, {conflicts} of "
        "these with different labels (task.duplicates says what to do with them)"
    )


def resolve_duplicates(
    table: TextTable, groups: np.ndarray, duplicates: Duplicates, split: RowSplit | None
) -> TextTable:
    """The table where only the first row of every group (`find_groups`) can be used, unless
    `duplicates` is `keep`. With `mean`, the rows of a group have the mean of their labels; with
    `drop`, the first has the labels that only others have. Parts of a `split` that the user chose
    are not compared: a label of one must not tell of another. InputError for means of classes."""
    if duplicates == "keep":
        return table
    if duplicates == "mean" and not table.label_type.is_number:
        raise InputError(f"task.duplicates mean is for regression, not {table.task_type}; use drop")
    if split is not None:
        parts = part_of_rows(split, len(groups))
        groups = pd.MultiIndex.from_arrays([parts, groups]).factorize()[0]
    labels = table.labels.copy()
    problems = list(table.problems)
    for rows in _repeated_rows(table, groups):
        first = rows[0]
        has_label = ~np.isnan(labels[rows]).all(0)
        if duplicates == "mean":
            labels[np.ix_(rows, has_label)] = np.nanmean(labels[rows][:, has_label], 0)
        elif _contradict(labels[rows]):
            problems[first] = "another row with the same text or molecule has another label"
        else:
            labels[first, has_label] = np.nanmax(labels[rows][:, has_label], 0)
        for row in rows[1:]:
            where = row_name(table.frame.index[first])
            problems[row] = f"the same text or molecule as {where}"
    return replace(table, labels=labels, problems=problems)


def merged_labels(
    table: TextTable, merged: TextTable, duplicates: Duplicates
) -> dict[str, np.ndarray]:
    """The labels [rows] that `resolve_duplicates` changed, which made `merged` of a table, as cells
    say them, by the title of a column for them. With `mean` all labels have one. {} for labels of
    residues or words."""
    if duplicates == "keep" or table.unit_pattern:
        return {}
    if duplicates == "mean":
        titles = [f"mean {name}" for name in table.label_columns]
        return dict(zip(titles, merged.labels.T, strict=True))
    names: dict[float, Any] = {}
    if not table.label_type.is_number:
        names = dict(enumerate(table.binary_names or [0, 1]))
    is_same = (table.labels == merged.labels) | np.isnan(merged.labels)
    columns = {}
    for name, labels, same in zip(table.label_columns, merged.labels.T, is_same.T, strict=True):
        if not same.all():
            cells = [None if np.isnan(label) else names.get(label, label) for label in labels]
            columns[f"merged {name}"] = np.array(cells, dtype=object)
    return columns


def count_shared(groups: np.ndarray, split: dict[str, np.ndarray]) -> int:
    """How many groups stand in several parts of a split, as one by column may have."""
    groups_of_parts = [pd.Series(groups[rows]).drop_duplicates() for rows in split.values()]
    return int((pd.concat(groups_of_parts).value_counts() > 1).sum())


def _repeated_rows(table: TextTable, groups: np.ndarray) -> list[list[int]]:
    """For every group that has several usable rows, their numbers."""
    rows = pd.Series(np.flatnonzero(table.usable))
    rows_of_groups = rows.groupby(groups[rows]).agg(list)
    return [rows_of_group for rows_of_group in rows_of_groups if len(rows_of_group) > 1]


def _contradict(labels: np.ndarray) -> bool:
    """Whether a column of labels [rows, labels] has two different ones."""
    return any(len(np.unique(column[~np.isnan(column)])) > 1 for column in labels.T)
