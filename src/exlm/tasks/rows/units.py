"""The units of texts, residues or words: their labels in a table, and predictions as strings."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from exlm.ops.expansion import IGNORED
from exlm.tasks.rows.table import TextTable

# the units, as regular expressions
RESIDUE = r"\S"
WORD = r"\S+"
NO_LABEL = str(IGNORED)  # in place of the label of a unit that does not count
NOT_READ = "-?"  # marks for a unit that was cut off; the first that is no class is taken


def split_units(cells: Iterable[Any], unit_pattern: str) -> list[list[str]]:
    """The units, or their labels, in every cell, a text or a list; "" where one is missing."""
    return [
        ["" if pd.isna(unit) else str(unit) for unit in cell]
        if isinstance(cell, list)
        else re.findall(unit_pattern, str(cell))
        for cell in cells
    ]


def read_unit_labels(
    table: TextTable,
    label_column: str,
    mask_column: str | None,
    unit_pattern: str,
    class_names: Sequence[str],
    most_units: int,
) -> tuple[np.ndarray, list[str]]:
    """The class indices of the first `most_units` units [rows, units], NaN where there is no label,
    and [rows] why labels cannot be used, "" if they can."""
    texts = split_units(table.texts, unit_pattern)
    labels_of_rows = split_units(table.frame[label_column].fillna(""), unit_pattern)
    masks = [["1"] * len(labels) for labels in labels_of_rows]
    if mask_column:
        masks = split_units(table.frame[mask_column].fillna(""), unit_pattern)
    index_of = {name: float(index) for index, name in enumerate(class_names)}
    longest = max(map(len, texts))
    indices = np.full((len(texts), min(longest, most_units)), np.nan)
    problems = []
    for row, (text, labels, mask) in enumerate(zip(texts, labels_of_rows, masks, strict=True)):
        unknown_labels = set(labels) - {*class_names, NO_LABEL}
        unknown_marks = set(mask) - {"0", "1"}
        problem = ""
        if not len(text) == len(labels) == len(mask):
            of_mask = f" and a mask of {len(mask)}" if mask_column else ""
            problem = f"{len(text)} residues or words, but {len(labels)} labels{of_mask}"
        elif "" in labels:
            problem = f"label {labels.index('') + 1} of {len(labels)} is missing"
        elif unknown_labels:
            problem = f"the model has no label {min(unknown_labels)!r}"
        elif unknown_marks:
            problem = f"the mask has {min(unknown_marks)!r}, which is neither 0 nor 1"
        else:
            for number in range(min(len(labels), most_units)):
                if mask[number] == "1":
                    indices[row, number] = index_of.get(labels[number], np.nan)
        problems.append(problem)
    return indices, problems


def spell_labels(
    predictions: np.ndarray, texts: list[str], class_names: Sequence[str], unit_pattern: str
) -> list[str]:
    """The most probable labels of every row as one string, from predictions [rows, units, classes]
    of the first units; "" for rows without any. Spaces divide labels of several letters."""
    was_read = ~np.isnan(predictions[..., 0])
    best = np.nan_to_num(predictions).argmax(-1)
    not_read = next((mark for mark in NOT_READ if mark not in class_names), "")
    labels = np.where(was_read, np.array(class_names, dtype=object)[best], not_read)
    are_letters = unit_pattern == RESIDUE and all(len(name) == 1 for name in class_names)
    space = "" if are_letters else " "
    spelled_rows = []
    for row, text_units in enumerate(split_units(texts, unit_pattern)):
        labels_of_row = labels[row, : len(text_units)].tolist()
        labels_of_row += [not_read] * (len(text_units) - len(labels_of_row))
        spelled_rows.append(space.join(labels_of_row) if was_read[row].any() else "")
    return spelled_rows
