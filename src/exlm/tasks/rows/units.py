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


def units(cells: Iterable[Any], unit: str) -> list[list[str]]:
    """The residues or words in every cell, which may be a list of them."""
    return [
        [str(item) for item in cell] if isinstance(cell, list) else re.findall(unit, str(cell))
        for cell in cells
    ]


def labels_of_units(cells: Iterable[Any], texts: list[list[str]], unit: str) -> list[list[str]]:
    """The labels in every cell. Those of residues are letters, or words, if there are as many words
    as residues."""
    labels = []
    for cell, of_cell, text in zip(cells, units(cells, unit), texts, strict=True):
        words = cell.split() if isinstance(cell, str) else []
        labels.append(words if len(words) in _label_counts(text) else of_cell)
    return labels


def _label_counts(text: list[str]) -> set[int]:
    """How many labels the units of a text may have: the STOP at its end may have none."""
    return {len(text) - 1, len(text)} if text[-1:] == [STOP] else {len(text)}


def read_unit_labels(
    table: TextTable,
    label_column: str,
    mask_column: str | None,
    unit: str,
    classes: Sequence[str],
) -> tuple[np.ndarray, list[str]]:
    """Class indices [rows, units], NaN where there is no label, and what is wrong with each row, ""
    if nothing is."""
    texts = units(table.texts, unit)
    names_of_rows = labels_of_units(table.frame[label_column].fillna(""), texts, unit)
    masks = [["1"] * len(names) for names in names_of_rows]
    if mask_column:
        masks = units(table.frame[mask_column].fillna(""), unit)
    index = {name: float(i) for i, name in enumerate(classes)}
    labels = np.full((len(texts), max(map(len, texts))), np.nan)
    problems = [""] * len(texts)
    for row, (text, names, mask) in enumerate(zip(texts, names_of_rows, masks, strict=True)):
        marks = [mark.lower() for mark in mask]
        unknown_labels = set(names) - {*index, NO_LABEL}
        unknown_marks = set(marks) - COUNTS - COUNTS_NOT
        if len(names) not in _label_counts(text) or len(names) != len(marks):
            of_mask = f" and a mask of {len(marks)}" if mask_column else ""
            problems[row] = f"{len(text)} residues or words, but {len(names)} labels{of_mask}"
        elif unknown_labels:
            problems[row] = f"the model has no label {min(unknown_labels)!r}"
        elif unknown_marks:
            problems[row] = f"the mask has {min(unknown_marks)!r}, which is neither 0 nor 1"
        else:
            for number, (name, mark) in enumerate(zip(names, marks, strict=True)):
                if mark in COUNTS:
                    labels[row, number] = index.get(name, np.nan)
    return labels, problems


def spelled(
    predictions: np.ndarray, texts: list[str], classes: Sequence[str], unit: str
) -> list[str]:
    """The most probable labels of every row as one string, from predictions [rows, units, classes];
    "" for rows without any. Spaces divide labels of more than one letter."""
    was_read = ~np.isnan(predictions[..., 0])
    best = np.nan_to_num(predictions).argmax(-1)
    not_read = next((mark for mark in NOT_READ if mark not in classes), "")
    labels = np.where(was_read, np.array(classes, dtype=object)[best], not_read)
    letters = unit == RESIDUE and all(len(name) == 1 for name in classes)
    space = "" if letters else " "
    return [
        space.join(labels[row, : len(text_units)]) if was_read[row].any() else ""
        for row, text_units in enumerate(units(texts, unit))
    ]
