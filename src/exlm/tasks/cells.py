"""What the cells of a table say: a text, a list of words, or a list of two texts."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.errors import InputError

# A list that pandas or Python wrote as text: ['EU' 'rejects'] or [3, 0, 7]
LIST_AS_TEXT = re.compile(r"""\[\s*(["'].*["']|\d+([\s,]+\d+)*)\s*\]""", re.DOTALL)
# The labels of the words of a text: O O B-PER
TAGS = re.compile(r"(O|[BIESLU]-\S+)(\s+(O|[BIESLU]-\S+))+")


def read_texts(
    frame: pd.DataFrame, text_columns: list[str], path: str | Path
) -> tuple[list[list[str]], list[str]]:
    """The texts [rows] of every column, "" where missing, and [rows] why a row has none, "" if it
    has.

    A list of words is joined by spaces. A column that is named twice has lists of two texts.
    InputError for cells that are no text, as `exlm prepare` refuses them."""
    faults = [""] * len(frame)
    if text_columns[0] == text_columns[-1] and len(text_columns) == 2:
        pairs = [_two_texts(cell, index, path) for index, cell in frame[text_columns[0]].items()]
        first, second = zip(*pairs, strict=True)
        return [list(first), list(second)], faults
    texts = []
    for name in text_columns:
        cells = frame[name].fillna("")
        check_no_list_as_text(cells, path)
        if cells.dtype == object:
            for row, (index, cell) in enumerate(cells.items()):
                if isinstance(cell, (list, dict)):
                    faults[row] = _fault_of_words(cell, index, path)
            cells = cells.map(lambda cell: " ".join(cell) if isinstance(cell, list) else cell)
        texts.append(cells.astype(str).str.strip().tolist())
    return texts, faults


def _fault_of_words(cell: Any, index: Any, path: str | Path) -> str:
    """Why a list of words cannot be joined to a text, "" if it can."""
    if not _are_texts(cell):
        raise InputError(
            f"{path}, {row_name(index)}: {cell!r} is not text; "
            "choose another column with text_column"
        )
    for word in cell:
        if len(word.split()) != 1:
            return f"{word!r} in its list is not one word"
    return ""


def _two_texts(cell: Any, index: Any, path: str | Path) -> list[str]:
    if _are_texts(cell) and len(cell) == 2:
        return [text.strip() for text in cell]
    raise InputError(
        f"{path}, {row_name(index)}: {cell!r} is no list of two texts; correct it, or name the "
        "columns of the two texts with text_column and pair_column"
    )


def _are_texts(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(text, str) for text in cell)


def are_pairs(cells: pd.Series) -> bool:
    """Whether all cells are lists of two texts, which are more than two words."""
    lists = cells.tolist() if cells.dtype == object else []
    are_two = [_are_texts(cell) and len(cell) == 2 for cell in lists]
    return bool(lists) and all(are_two) and any(len(" ".join(cell).split()) > 2 for cell in lists)


def check_single_labels(cells: pd.DataFrame, path: str | Path) -> None:
    """InputError for a label column whose cells hold several labels: a list, or a word for every
    word."""
    for name, column in cells.items():
        check_no_list_as_text(column, path)
        for index, cell in column.items():
            if isinstance(cell, (list, dict)) or TAGS.fullmatch(str(cell)):
                raise InputError(
                    f"{path}: column {name!r}, {row_name(index)}: {str(cell)[:80]!r} is no single "
                    "label; add --task_type token_classification if it labels every word, or give "
                    "one value (several labels: a column of 0 and 1 for each)"
                )


def check_no_list_as_text(cells: pd.Series, path: str | Path) -> None:
    """InputError if every cell of a column is a list that was written as text."""
    texts = [cell for cell in cells if isinstance(cell, str) and cell]
    if texts and all(LIST_AS_TEXT.fullmatch(text) for text in texts):
        raise InputError(
            f"{path}: column {cells.name!r} has lists that were written as text, such as "
            f"{texts[0][:80]!r}; save the table as .jsonl or .parquet, which keep lists, or join "
            "the words of each with spaces"
        )


def row_name(index: Any) -> str:
    """A row by its number from 1, and by its part if there are several: "row 3", "test row 3"."""
    if isinstance(index, tuple):
        part, row = index
        return f"{part} row {row + 1}"
    return f"row {index + 1}"
