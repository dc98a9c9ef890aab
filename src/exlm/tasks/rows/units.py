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
NUMBER = re.compile(r"(0|[1-9]\d*)(\.\d+)?(e\+?\d+)?", re.IGNORECASE)  # as a program writes it
NO_LABEL = str(IGNORED)  # in place of the label of a unit that does not count
# marks for a unit that was cut off, or has no token; the first that is no class is taken
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
    texts = [split_units(text, unit_pattern) for text in table.texts]
    split = partial(unit_labels, unit_pattern=unit_pattern)
    labels_of_rows = list(map(split, table.frame[label_column].fillna(""), table.texts))
    masks = [["1"] * len(labels) for labels in labels_of_rows]
    if mask_column:
        masks = list(map(split, table.frame[mask_column].fillna(""), table.texts))
    index_of = {name: float(index) for index, name in enumerate(class_names)}
    longest = max(map(len, texts))
    indices = np.full((len(texts), min(longest, most_units)), np.nan)
    problems = []
    for row, (units, labels, mask) in enumerate(zip(texts, labels_of_rows, masks, strict=True)):
        unknown_labels = set(labels) - {*class_names, NO_LABEL}
        unknown_marks = set(mask) - {"0", "1"}
        problem = ""
        if not len(units) == len(labels) == len(mask):
            of_mask = f" and a mask of {len(mask)}" if mask_column else ""
            if len(mask) < len(labels) and _is_number(table.frame[mask_column].iloc[row]):
                of_mask += ", which was stored as a number, without zeros in front: make it a text"
            problem = f"{len(units)} residues or words, but {len(labels)} labels{of_mask}"
        elif "" in labels:
            problem = f"label {labels.index('') + 1} of {len(labels)} is missing"
        elif unknown_labels:
            problem = f"the model has no label {min(unknown_labels)!r}"
        elif unknown_marks:
            problem = f"the mask has {min(unknown_marks)!r}, which is neither 0 nor 1"
        problems.append(problem)
        if not problem:
            for number in range(min(len(labels), most_units)):
                if mask[number] == "1":
                    indices[row, number] = index_of.get(labels[number], np.nan)
    return indices, problems


def _is_number(cell: Any) -> bool:
    return NUMBER.fullmatch(str(cell)) is not None


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
