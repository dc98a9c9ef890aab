"""What the cells of a table's columns of texts say: a text, or a list of words."""

from collections.abc import Iterable
from typing import Any

from exlm.data.columns import MISSING_TEXTS
from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.tasks.labels.cells import check_no_list_as_text


def read_texts(
    rows: FileRows, text_column: str, pair_column: str | None, path: str
) -> tuple[list[list[str]], list[str]]:
    """The texts [rows] of the text column and, if there is one, of the column of second texts, ""
    where missing; and [rows] why a row cannot be used, "" if it can. InputError for lists that were
    written as text, and for one column in both places."""
    if pair_column == text_column:
        raise InputError(
            f"{path}: {text_column!r} is text_column and pair_column; a pair has two columns"
        )
    names = [text_column] if pair_column is None else [text_column, pair_column]
    problems = rows.problems_of_rows
    texts = []
    for name in names:
        cells = rows.frame[name]
        check_no_list_as_text(cells, path)
        problems = first_of_each(problems, map(_problem, cells))
        texts.append(list(map(_text, cells)))
    is_empty = ["" if any(of_row) else "empty text" for of_row in zip(*texts, strict=True)]
    return texts, first_of_each(problems, is_empty)


def _problem(cell: Any) -> str:
    """Why a cell is neither a text nor a list of words, "" if it is one of them."""
    words = cell if isinstance(cell, list) else []
    for word in words:
        if not isinstance(word, str) or len(word.split()) != 1:
            return f"{word!r} in its list is not one word"
    return f"{cell!r} is not text" if isinstance(cell, dict) else ""


def _text(cell: Any) -> str:
    """The text of a cell, "" if it is missing; words are joined by spaces."""
    if isinstance(cell, list):
        return " ".join(map(str, cell))
    text = "" if cell is None else str(cell).strip()
    return "" if text in MISSING_TEXTS else text


def first_of_each(messages: Iterable[str], others: Iterable[str]) -> list[str]:
    """[rows] the message on every row, or else the other one; "" if it has neither."""
    return [message or other for message, other in zip(messages, others, strict=True)]
