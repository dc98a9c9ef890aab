"""The units of texts, residues or words: their labels in a table, and predictions as strings."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.data.cell_texts import split_units
from exlm.data.tokenization import alphabet_name
from exlm.ops.expansion import IGNORED
from exlm.tasks.rows.table import TextTable

# the units, as regular expressions
RESIDUE = r"\S"
PROTEIN_RESIDUE = r"(?!\*\Z)\S"  # all but a `*` at the end, which a tokenizer of proteins cuts
WORD = r"\S+"
# A mask such as 0110 that was stored as a number: 110, or 1.1e+20 if it is long
STORED_NUMBER = re.compile(r"(0|[1-9]\d*)(\.\d+)?(e\+?\d+)?", re.IGNORECASE)
NO_LABEL = str(IGNORED)  # in place of the label of a unit that does not count
# for a unit that was cut off, or has no token: the first of the characters that is no class
NOT_READ = "-?"


def residue_pattern(tokenizer: PreTrainedTokenizerFast | None) -> str:
    """What a residue is in the texts that the tokenizer reads."""
    is_protein = tokenizer and alphabet_name(tokenizer.backend_tokenizer) == "protein"
    return PROTEIN_RESIDUE if is_protein else RESIDUE


def unit_labels(cell: Any, text: str, unit_pattern: str) -> list[str]:
    """The labels, or marks, of a cell for the units of a text; a label of the `*` at the end of a
    protein, which is no unit, is left out."""
    if unit_pattern != PROTEIN_RESIDUE:
        return split_units(cell, unit_pattern)
    labels = split_units(cell, RESIDUE)
    has_label_of_end = len(labels) == len(split_units(text, RESIDUE))
    return labels[: len(split_units(text, unit_pattern))] if has_label_of_end else labels


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
    split = partial(unit_labels, unit_pattern=unit_pattern)
    labels_of_rows = list(map(split, table.frame[label_column].fillna(""), table.texts))
    masks = [["1"] * len(labels) for labels in labels_of_rows]
    mask_cells: list[Any] = [None] * len(masks)
    if mask_column:
        mask_cells = list(table.frame[mask_column].fillna(""))
        masks = list(map(split, mask_cells, table.texts))
    index_of = {name: float(index) for index, name in enumerate(class_names)}
    unit_counts = [len(split_units(text, unit_pattern)) for text in table.texts]
    indices = np.full((len(unit_counts), min(max(unit_counts), most_units)), np.nan)
    problems = []
    for row, unit_count in enumerate(unit_counts):
        labels = labels_of_rows[row]
        mask = masks[row]
        problem = _find_label_problem(unit_count, labels, class_names, mask, mask_cells[row])
        problems.append(problem)
        if not problem:
            for unit, label in enumerate(labels[:most_units]):
                if mask[unit] == "1":
                    indices[row, unit] = index_of.get(label, np.nan)
    return indices, problems


def _find_label_problem(
    unit_count: int, labels: list[str], class_names: Sequence[str], mask: list[str], mask_cell: Any
) -> str:
    """Why labels of a text cannot be used, "" if they can. Without masks, `mask_cell` is None."""
    if not unit_count == len(labels) == len(mask):
        of_mask = "" if mask_cell is None else f" and a mask of {len(mask)}"
        if len(mask) < len(labels) and STORED_NUMBER.fullmatch(str(mask_cell)):
            of_mask += ", which was stored as a number, without zeros in front: make it a text"
        return f"{unit_count} residues or words, but {len(labels)} labels{of_mask}"
    if "" in labels:
        return f"label {labels.index('') + 1} of {len(labels)} is missing"
    if unknown_labels := set(labels) - {*class_names, NO_LABEL}:
        return f"the model has no label {min(unknown_labels)!r}"
    if unknown_marks := set(mask) - {"0", "1"}:
        return f"the mask has {min(unknown_marks)!r}, which is neither 0 nor 1"
    return ""


def spell_labels(
    predictions: np.ndarray, texts: list[str], class_names: Sequence[str], unit_pattern: str
) -> list[str]:
    """The most probable labels of every row as one string, from predictions [rows, units, classes]
    of the first units (`UnitClasses`); "" for rows without any. Spaces divide labels of
    several letters."""
    probabilities = np.nan_to_num(predictions)
    was_read = probabilities.any(-1)
    best = probabilities.argmax(-1)
    not_read = next((mark for mark in NOT_READ if mark not in class_names), "")
    labels = np.where(was_read, np.array(class_names, dtype=object)[best], not_read)
    are_letters = unit_pattern != WORD and all(len(name) == 1 for name in class_names)
    space = "" if are_letters else " "
    spelled_rows = []
    for row, text in enumerate(texts):
        unit_count = len(split_units(text, unit_pattern))
        labels_of_row = labels[row, :unit_count].tolist()
        labels_of_row += [not_read] * (unit_count - len(labels_of_row))
        spelled_rows.append(space.join(labels_of_row) if was_read[row].any() else "")
    return spelled_rows
