"""What the cells of a table's columns of texts say: a text, a list of words or of two texts."""

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

from exlm.data.cell_texts import text_to_read
from exlm.data.frames import FileRows
from exlm.tasks.labels.cells import check_no_list_as_text


def read_texts(
    rows: FileRows, text_column: str, pair_column: str | None, path: str
) -> tuple[list[list[str]], list[str]]:
    """The texts [rows] of the text column and, if there is one, of the pair column, "" where
    missing; and [rows] why a row cannot be used, "" if it can. If both are one column, it has lists
    of two texts; other lists are words. InputError for lists that were written as text."""
    problems = rows.problems_of_rows
    if pair_column == text_column:
        cells = rows.frame[text_column]
        no_pairs = ["" if _is_pair(cell) else f"{cell!r} is no list of two texts" for cell in cells]
        problems = first_of_each(problems, no_pairs)
        pairs = [cell if _is_pair(cell) else ["", ""] for cell in cells]
        columns = [pd.Series(texts) for texts in zip(*pairs, strict=True)]
    else:
        columns = [rows.frame[name] for name in (text_column, pair_column) if name is not None]
    for column in columns:
        check_no_list_as_text(column, path)
        problems = first_of_each(problems, map(_problem, column))
    texts = [list(map(text_to_read, column)) for column in columns]
    is_empty = ["" if any(of_row) else "empty text" for of_row in zip(*texts, strict=True)]
    return texts, first_of_each(problems, is_empty)


def are_pairs(cells: pd.Series) -> bool:
    """Whether all cells are lists of two texts, and not all of them lists of two words."""
    are_lists = all(map(_is_pair, cells))
    return are_lists and any(len(" ".join(cell).split()) > 2 for cell in cells)


def _is_pair(cell: Any) -> bool:
    """Whether a cell is a list of two texts."""
    return isinstance(cell, list) and len(cell) == 2 and all(isinstance(x, str) for x in cell)


def _problem(cell: Any) -> str:
    """Why a cell is neither a text nor a list of words, "" if it is one of them."""
    words = cell if isinstance(cell, list) else []
    for word in words:
        if not isinstance(word, str) or not word.strip():
            return f"{word!r} in its list is not one word"
        if space := re.search(r"\s", word):
            return (
                f"{word!r} in its list is not one word: write another character in place of the "
                f"space (U+{ord(space[0]):04X})"
            )
    return f"{cell!r} is not text" if isinstance(cell, dict) else ""


def first_of_each(messages: Iterable[str], others: Iterable[str]) -> list[str]:
    """[rows] the message on every row, or else the other one; "" if it has neither."""
    return [message or other for message, other in zip(messages, others, strict=True)]
