"""The units of texts, residues or words: their labels in a table, and predictions as strings."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from exlm.ops.expansion import IGNORED
from exlm.tasks.rows.table import TextTable

# the units, as regular expressions
RESIDUE = r"\S"
WORD = r"\S+"
STOP = "*"  # the end of a translated sequence, which may have no label
NO_LABEL = str(IGNORED)  # in place of the label of a unit that does not count
NOT_READ = "-?_~"  # the first that is no class is in place of the label of a unit that was cut off
# what a mask says of a unit, in any case
COUNTS = {"1", "1.0", "t", "true", "y", "yes"}
COUNTS_NOT = {"0", "0.0", "f", "false", "n", "no"}


def units(cells: Iterable[Any], unit_pattern: str) -> list[list[str]]:
    """The residues or words in every cell, which may be a list of them."""
    return [
        list(map(str, cell)) if isinstance(cell, list) else re.findall(unit_pattern, str(cell))
        for cell in cells
    ]


def labels_of_units(
    cells: Iterable[Any], texts: list[list[str]], unit_pattern: str
) -> list[list[str]]:
    """The labels in every cell, for `texts` that are lists of their units. Labels of residues are
    letters, or words, if a cell has as many words as there are residues."""
    labels = []
    for cell, labels_of_cell, text in zip(cells, units(cells, unit_pattern), texts, strict=True):
        words = cell.split() if isinstance(cell, str) else []
        labels.append(words if len(words) in _label_counts(text) else labels_of_cell)
    return labels


def _label_counts(text: list[str]) -> set[int]:
    """How many labels a list of units may have: a STOP at the end may have none."""
    return {len(text) - 1, len(text)} if text[-1:] == [STOP] else {len(text)}


def read_unit_labels(
    table: TextTable,
    label_column: str,
    mask_column: str | None,
    unit_pattern: str,
    class_names: Sequence[str],
    most_units: int,
) -> tuple[np.ndarray, list[str]]:
    """Class indices of the first `most_units` units [rows, units], NaN where there is no label, and
    the problem of each row, "" if it has none."""
    texts = units(table.texts, unit_pattern)
    cells = table.frame[label_column].fillna("")
    labels_of_rows = labels_of_units(cells, texts, unit_pattern)
    masks = [["1"] * len(labels) for labels in labels_of_rows]
    if mask_column:
        marks_of_rows = units(table.frame[mask_column].fillna(""), unit_pattern)
        masks = [[mark.lower() for mark in marks] for marks in marks_of_rows]
    index_of = {name: float(index) for index, name in enumerate(class_names)}
    longest = max(map(len, texts))
    indices = np.full((len(texts), min(longest, most_units)), np.nan)
    problems = []
    for row, (text, labels, mask) in enumerate(zip(texts, labels_of_rows, masks, strict=True)):
        unknown_labels = set(labels) - {*class_names, NO_LABEL}
        unknown_marks = set(mask) - COUNTS - COUNTS_NOT
        problem = ""
        if len(labels) not in _label_counts(text) or len(labels) != len(mask):
            of_mask = f" and a mask of {len(mask)}" if mask_column else ""
            problem = f"{len(text)} residues or words, but {len(labels)} labels{of_mask}"
        elif unknown_labels:
            problem = f"the model has no label {min(unknown_labels)!r}"
        elif unknown_marks:
            problem = f"the mask has {min(unknown_marks)!r}, which is neither 0 nor 1"
        else:
            for number in range(min(len(labels), most_units)):
                if mask[number] in COUNTS:
                    indices[row, number] = index_of.get(labels[number], np.nan)
        problems.append(problem)
    return indices, problems


def spelled(
    predictions: np.ndarray, texts: list[str], class_names: Sequence[str], unit_pattern: str
) -> list[str]:
    """The most probable labels of every row as one string, from predictions [rows, units, classes],
    which may leave out the last units; "" for rows without any. Spaces divide labels of more than
    one letter."""
    was_read = ~np.isnan(predictions[..., 0])
    best = np.nan_to_num(predictions).argmax(-1)
    not_read = next((mark for mark in NOT_READ if mark not in class_names), "")
    labels = np.where(was_read, np.array(class_names, dtype=object)[best], not_read)
    are_letters = unit_pattern == RESIDUE and all(len(name) == 1 for name in class_names)
    space = "" if are_letters else " "
    spelled_rows = []
    for row, text_units in enumerate(units(texts, unit_pattern)):
        labels_of_row = labels[row, : len(text_units)].tolist()
        labels_of_row += [not_read] * (len(text_units) - len(labels_of_row))
        spelled_rows.append(space.join(labels_of_row) if was_read[row].any() else "")
    return spelled_rows
