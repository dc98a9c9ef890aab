"""What the cells of a table's columns of texts say: a text, a list of words or of two texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.columns import MISSING_TEXTS
from exlm.data.frames import FileRows
from exlm.tasks.labels.cells import check_no_list_as_text

# What the only column of a list of texts is called: `NA` may be two residues
LIST_COLUMNS = ("text", "sequence")


def read_texts(
    rows: FileRows, text_columns: list[str], path: str | Path
) -> tuple[list[list[str]], list[str]]:
    """The texts [rows] of every column, "" where missing, and [rows] why a row cannot be used, ""
    if it can.

    A list of words is joined by spaces. A column that is named twice has lists of two texts. In a
    table MISSING_TEXTS stand for no text; in a list (LIST_COLUMNS), `NA` may be one.
    InputError for lists that were written as text."""
    frame = rows.frame
    problems = rows.problems_of_rows
    if len(text_columns) == 2 and text_columns[0] == text_columns[1]:
        pairs = [_two_texts(cell) for cell in frame[text_columns[0]].fillna("")]
        firsts, seconds, pair_problems = map(list, zip(*pairs, strict=True))
        return [firsts, seconds], first_of_each(problems, pair_problems)
    is_list_of_texts = len(frame.columns) == 1 and str(frame.columns[0]).lower() in LIST_COLUMNS
    missing = () if is_list_of_texts else MISSING_TEXTS
    texts_of_columns = []
    for name in text_columns:
        cells = frame[name].fillna("")
        check_no_list_as_text(cells, path)
        if len(text_columns) == 2:
            # As an empty cell does, a missing text leaves the other one of its pair.
            cells = cells.mask(cells.astype(str).str.strip().isin(missing), "")
        # of the column, because pandas writes dates without the time where it is midnight
        as_texts = cells.astype(str).str.strip()
        texts = []
        cell_problems = []
        for cell, as_text in zip(cells, as_texts, strict=True):
            text, problem = _read_text(cell, as_text, missing)
            texts.append(text)
            cell_problems.append(problem)
        texts_of_columns.append(texts)
        problems = first_of_each(problems, cell_problems)
    return texts_of_columns, problems


def _read_text(cell: Any, as_text: str, missing: Sequence[str]) -> tuple[str, str]:
    """The text of a cell, which is a list of words or else `as_text`, and why it cannot be used, ""
    if it can."""
    if isinstance(cell, dict):
        return "", f"{cell!r} is not text"
    if not isinstance(cell, list):
        problem = f"{as_text} stands for a missing text" if as_text in missing else ""
        return as_text, problem
    no_words = [word for word in cell if not isinstance(word, str) or len(word.split()) != 1]
    problem = f"{no_words[0]!r} in its list is not one word" if no_words else ""
    return " ".join(cell) if _are_texts(cell) else "", problem


def _two_texts(cell: Any) -> tuple[str, str, str]:
    """The two texts of a cell, and why it cannot be used, "" if it can."""
    if _are_texts(cell) and len(cell) == 2:
        return cell[0].strip(), cell[1].strip(), ""
    return "", "", "empty text" if cell == "" else f"{cell!r} is no list of two texts"


def _are_texts(cell: Any) -> bool:
    """Whether a cell is a list of texts alone."""
    return isinstance(cell, list) and all(isinstance(text, str) for text in cell)


def are_pairs(cells: pd.Series) -> bool:
    """Whether all cells are lists of two texts. Where no list has more than two words in all, they
    are rather lists of words."""
    lists = cells.tolist() if cells.dtype == object else []
    are_two = [_are_texts(cell) and len(cell) == 2 for cell in lists]
    return bool(lists) and all(are_two) and any(len(" ".join(cell).split()) > 2 for cell in lists)


def first_of_each(messages: Iterable[str], others: Iterable[str]) -> list[str]:
    """[rows] the message on every row, or else the other one; "" if it has neither."""
    return [message or other for message, other in zip(messages, others, strict=True)]
