"""Rows of a table with the same molecule or the same text: how many there are, and how they are
merged or left out if the user wants it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.tasks.config import Duplicates
from exlm.tasks.labels.cells import row_name
from exlm.tasks.rows.splits import RowSplit, part_of_rows
from exlm.tasks.rows.table import LabelledTable, TextTable

TREATMENTS: dict[Duplicates, str] = {
    "keep": "task.duplicates says what to do with them",
    "mean": "task.duplicates is mean: the first row of each has the mean of their labels",
    "drop": "task.duplicates is drop: the first row of each is used, or none if labels differ",
}


def find_groups(table: TextTable, spelling: Callable[[str], str]) -> np.ndarray:
    """[rows] the first row with the same text or pair of texts, all written in one `spelling`. A
    row without text is a group of its own."""
    texts = pd.Series(list(map(spelling, table.texts)))
    seconds = pd.Series(list(map(spelling, table.pairs))) if table.pairs else texts
    rows = pd.Series(range(len(texts)))
    first_rows = rows.groupby([texts, seconds], sort=False).transform("min")
    return first_rows.where(texts.ne("") | seconds.ne(""), rows).to_numpy()


def describe_duplicates(table: LabelledTable, groups: np.ndarray, duplicates: Duplicates) -> str:
    """How many usable rows share their text with others, how many of these texts have different
    labels, and what is done with them; "" if no text is repeated."""
    repeated_groups = _repeated_rows(groups, table.usable)
    if not repeated_groups:
        return ""
    conflicts = sum(_contradict(table.labels.values[rows]) for rows in repeated_groups)
    return (
        f"{sum(map(len, repeated_groups))} rows share {len(repeated_groups)} texts or molecules, "
        f"{conflicts} of these with different labels ({TREATMENTS[duplicates]})"
    )


def describe_shared(table: LabelledTable, groups: np.ndarray, split: RowSplit) -> str:
    """How many texts stand in several parts of a split, and how many of these texts have different
    labels; "" if none does."""
    parts = part_of_rows(split, len(groups))
    repeated_groups = _repeated_rows(groups, parts != "")
    shared_groups = [rows for rows in repeated_groups if len(set(parts[rows])) > 1]
    if not shared_groups:
        return ""
    conflicts = sum(_contradict(table.labels.values[rows]) for rows in shared_groups)
    return (
        f"{len(shared_groups)} texts or molecules stand in several of them, {conflicts} of these "
        "with different labels"
    )


def resolve_duplicates(
    table: LabelledTable, groups: np.ndarray, duplicates: Duplicates, split: RowSplit | None
) -> LabelledTable:
    """The table where, unless `duplicates` is `keep`, only the first row of a group can be used.
    With `mean` that row has the mean of the group's labels; with `drop` it has all labels of the
    group, and cannot be used if two of a column differ. A group is divided by the parts of a
    `split` that the user chose: a label of one part must not tell of another. InputError for means
    of classes."""
    if duplicates == "keep":
        return table
    if duplicates == "mean" and not table.labels.type.is_number:
        raise InputError(
            f"task.duplicates mean is for regression, not {table.labels.task_type}; use drop"
        )
    if split is not None:
        parts = part_of_rows(split, len(groups))
        groups = pd.MultiIndex.from_arrays([parts, groups]).factorize()[0]
    labels = table.labels.values.copy()
    problems = list(table.problems)
    for rows in _repeated_rows(groups, table.usable):
        first = rows[0]
        reason = f"the same text or molecule as {row_name(table.frame.index[first])}"
        has_label = ~np.isnan(labels[rows]).all(0)
        if duplicates == "mean":
            labels[np.ix_(rows, has_label)] = np.nanmean(labels[rows][:, has_label], 0)
        elif _contradict(labels[rows]):
            reason = "rows with the same text or molecule have different labels"
            problems[first] = reason
        else:  # all labels of a column are equal, or missing
            labels[first, has_label] = np.nanmax(labels[rows][:, has_label], 0)
        for row in rows[1:]:
            problems[row] = reason
    return replace(table, labels=table.labels._replace(values=labels), problems=problems)


def merged_labels(table: LabelledTable, merged: LabelledTable) -> dict[str, pd.Series]:
    """The label columns that `resolve_duplicates` changed when it made `merged` of a table, with
    the words of the cells in place of 0 and 1. {} for labels of residues or words."""
    if table.labels.type.of_units:
        return {}
    columns = {}
    for column, name in enumerate(table.labels.columns):
        before = table.labels.values[:, column]
        after = merged.labels.values[:, column]
        if not np.array_equal(before, after, equal_nan=True):
            cells = pd.Series(after, table.frame.index)
            if not table.labels.type.is_number:
                cells = cells.map(dict(enumerate(table.labels.binary_names or ["0", "1"])))
            columns[f"merged {name}"] = cells
    return columns


def _repeated_rows(groups: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """For every group that has several rows of the mask ([rows] bool), their numbers."""
    rows = pd.Series(np.flatnonzero(mask))
    rows_of_groups = rows.groupby(groups[rows]).agg(list)
    return [rows_of_group for rows_of_group in rows_of_groups if len(rows_of_group) > 1]


def _contradict(labels: np.ndarray) -> bool:
    """Whether a column of labels [rows, labels] has two different ones."""
    return any(len(np.unique(column[~np.isnan(column)])) > 1 for column in labels.T)
