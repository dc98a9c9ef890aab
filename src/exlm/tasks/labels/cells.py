"""What the cells of labels say: a number, a class, no or yes."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd

from exlm.data.columns import listed
from exlm.errors import InputError, note

# What labels 0 and 1 are usually called, in any case
NEGATIVE = ("inactive", "no", "false", "f")
POSITIVE = ("active", "yes", "true", "t")
NUMBER_LIKE = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(e[-+]?\d+)?\s*%?", re.IGNORECASE)
# Spaces that papers and spreadsheets put between thousands: no-break, thin, narrow no-break
THOUSANDS_SPACE = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
MINUS_SIGN = "\u2212"
WHOLE_FLOAT = re.compile(r"-?\d+\.0")
# What begins as a number: 10 uM, >5 mg/mL, 3.2 ± 0.1
BEGINS_AS_NUMBER = r"[<>~≤≥=]*\s*[-+]?[\d.,]*\d.*"
# A list that pandas or Python wrote as text: ['EU' 'rejects'] or [3, 0, 7]
LIST_AS_TEXT = re.compile(r"""\[\s*(["'].*["']|\d+([\s,]+\d+)*)\s*\]""", re.DOTALL)
# The labels of the words of a text: O O B-PER
TAGS = re.compile(r"(O|[BIESLU]-\S+)(\s+(O|[BIESLU]-\S+))+")


def check_single_labels(cells: pd.DataFrame, path: str | Path) -> None:
    """InputError for a label column that has a cell with several labels: a list, or a label for
    every word of a text."""
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


def read_numbers(cells: pd.Series) -> pd.Series:
    """The cells of a column as numbers, NaN for other cells. A minus may be that of typography, and
    no-break spaces may stand between thousands. Percent signs, decimal commas and marks between
    thousands are read if all numbers of a column have them: `10,8%` is 10.8. One cell must be
    clear: `1,234` alone may be a thousand. A column that has both `1` and `01` has codes and no
    numbers.

    | cells of a column   | numbers         |
    | ------------------- | --------------- |
    | `1`, `2.5`, `x`     | 1, 2.5, NaN     |
    | `−3`, `>10`         | -3, NaN         |
    | `10,8`, `9,75`, `x` | 10.8, 9.75, NaN |
    | `1.234,5`, `2`      | 1234.5, 2       |
    | `1,234.5`, `2`      | 1234.5, 2       |
    | `1,234`, `2,500`    | NaN, NaN        |
    | `1,234`, `10,8`     | 1.234, 10.8     |
    | `10.8%`, `5%`       | 10.8, 5         |
    | `10.8%`, `5`        | NaN, 5          |
    | `01`, `02`          | 1, 2            |
    | `01`, `1`           | NaN, NaN        |"""
    plain = cells.map(_without_typography)
    numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    is_code = plain.astype(str).str.strip().str.fullmatch(r"0\d+")
    if numbers[is_code].isin(numbers[~is_code]).any():
        return numbers * np.nan
    if not (numbers.isna() & plain.notna()).any():
        return numbers
    marked = _marked_numbers(plain.dropna())
    return numbers if marked.isna().any() else marked.reindex(cells.index).fillna(numbers)


def _marked_numbers(cells: pd.Series) -> pd.Series:
    """The cells of a column that look like numbers, read without percent signs, decimal commas and
    marks between thousands; NaN where no cell makes clear how numbers are written."""
    # Cells of a workbook that are numbers say nothing of how others are written.
    are_texts = cells.map(lambda cell: isinstance(cell, str)).astype(bool)
    texts = cells[are_texts].astype(str).str.strip().str.lower()
    texts = texts[texts.str.fullmatch(NUMBER_LIKE)]
    if are_texts.all() and texts.str.endswith("%").all():
        texts = texts.str.removesuffix("%").str.strip()
    return pd.to_numeric(_with_decimal_points(texts), errors="coerce").astype(float)


def _without_typography(cell: Any) -> Any:
    """A text with an ordinary minus, and nothing but digits between digits of a number; NaN for a
    list."""
    if isinstance(cell, (list, dict)):
        return np.nan
    if not isinstance(cell, str):
        return cell
    return THOUSANDS_SPACE.sub("", cell.replace(MINUS_SIGN, "-"))


def _with_decimal_points(texts: pd.Series) -> pd.Series:
    """Numbers with a decimal point and nothing between thousands; as they are, if they could be
    read in several ways."""
    for decimal, thousands in ((",", "."), (".", ",")):
        groups = rf"[1-9]\d{{0,2}}([{thousands}]\d{{3}})+"
        number = rf"[-+]?(\d+|{groups})([{decimal}]\d+)?(e[-+]?\d+)?"
        has_both_marks = texts.str.fullmatch(rf"[-+]?{groups}[{decimal}]\d+").any()
        if has_both_marks and texts.str.fullmatch(number).all():
            return texts.str.replace(thousands, "").str.replace(decimal, ".")
    may_be_thousands = texts.str.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}|[^,]*").all()
    if texts.str.fullmatch(r"[-+]?\d+(,\d+)?(e[-+]?\d+)?").all() and not may_be_thousands:
        return texts.str.replace(",", ".")
    return texts


def is_whole(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    """Whether all cells that are not missing say whole numbers; `numbers` has what they say."""
    return bool((cells.isna() | (numbers % 1 == 0)).all(axis=None))


def check_numbers(cells: pd.DataFrame, numbers: pd.DataFrame, path: str | Path) -> None:
    """Prints how `read_numbers` read a column with commas or percent signs. InputError for a column
    whose cells all begin as numbers and cannot be read as such: as words they would be classes."""
    for name, column in cells.items():
        texts = column.dropna().map(_without_typography).astype(str).str.strip()
        # A bound, such as >10, or several labels are no number: `read_labels` names their cells.
        marked = texts[texts.str.contains(r"[^\d.eE<>~≤≥=;|\s+-]")]
        if not len(marked) or not texts.str.fullmatch(BEGINS_AS_NUMBER).all():
            continue
        index = marked.index[0]
        number = float(numbers[name][index])
        if math.isnan(number):
            raise InputError(
                f"{path}: column {name!r}, {row_name(index)}: {marked.iloc[0]!r} is more than a "
                "number, or can be read in several ways; write the numbers alone, all in one unit "
                "and as 1234.5, or set task_type multiclass for classes"
            )
        note(f"in column {name!r}, {column[index]!r} is read as {number:g}")


def class_name(cell: Any) -> str:
    """The class that a cell says, with accents in one encoding. 1.0 is 1: a gap in a column turns
    whole numbers into floats."""
    text = normalize("NFC", str(cell).strip())
    return text.removesuffix(".0") if WHOLE_FLOAT.fullmatch(text) else text


def class_values(names: Sequence[str | int]) -> list[str | int]:
    """The classes as cells of an output have them: their names, or booleans if the names are False
    and True."""
    return [False, True] if list(names) == ["False", "True"] else list(names)


def find_binary_names(
    cells: pd.DataFrame, positive: str | None, path: str | Path
) -> list[str] | None:
    """The names of labels 0 and 1: the two values that the columns have, of which `positive` is
    label 1. InputError if the columns have other values. Without `positive`, the values must be one
    of NEGATIVE and one of POSITIVE in a single column; None if they are not."""
    if positive is None and len(cells.columns) != 1:
        return None
    values = dict[str, str]()  # by their small letters
    for name in cells:
        for value in cells[name].dropna().map(class_name):
            values.setdefault(value.lower(), value)
    if positive is not None:
        others = [value for key, value in values.items() if key != positive.lower()]
        if len(values) != 2 or len(others) != 1:
            raise InputError(
                f"{path}: positive is {positive!r}; it must be one of two classes, the same in "
                f"every label column, and the values there are {listed(values.values())}"
            )
        return [others[0], values[positive.lower()]]
    negatives = [value for key, value in values.items() if key in NEGATIVE]
    positives = [value for key, value in values.items() if key in POSITIVE]
    if len(values) == 2 and len(negatives) == len(positives) == 1:
        return [negatives[0], positives[0]]
    return None


def note_binary_names(cells: pd.DataFrame, labels: pd.DataFrame) -> None:
    """Prints what labels 1 and 0 are called in every column where not all cells are numbers."""
    for name, column in cells.items():
        values = column.dropna().map(class_name)
        has_labels = labels[name].notna().any()
        if has_labels and not values.str.fullmatch(NUMBER_LIKE).all():
            ones, zeros = (listed(values[labels[name] == label].unique()) for label in (1, 0))
            note(f"in column {name!r}, label 1 is {ones}, label 0 is {zeros}")


def zeros_and_ones(
    cells: pd.DataFrame, numbers: pd.DataFrame, binary_names: Sequence[str] | None
) -> pd.DataFrame:
    """The numbers, but 0 and 1 for `binary_names`, or for the names in NEGATIVE and POSITIVE. Where
    names are numbers, or `no` is label 1, a cell that says 1 may mean either, so that all other
    cells are NaN.

    | cells of a column    | `binary_names` | labels    |
    | -------------------- | -------------- | --------- |
    | `1`, `0`, `2`        | None           | 1, 0, 2   |
    | `active`, `No`, `1`  | None           | 1, 0, 1   |
    | `toxic`, `safe`, `1` | safe, toxic    | 1, 0, 1   |
    | `1`, `2`, `0`        | 1, 2           | 0, 1, NaN |
    | `yes`, `no`, `1`     | yes, no        | 0, 1, NaN |"""
    negative = (binary_names[0].lower(),) if binary_names else NEGATIVE
    positive = (binary_names[1].lower(),) if binary_names else POSITIVE
    keys = cells.apply(lambda column: column.map(class_name).str.lower())
    are_usual = not set(negative) & set(POSITIVE) and not set(positive) & set(NEGATIVE)
    if not are_usual or any(map(NUMBER_LIKE.fullmatch, (*negative, *positive))):
        numbers = numbers * np.nan
    return numbers.mask(keys.isin(negative), 0.0).mask(keys.isin(positive), 1.0)


def row_name(index: Any) -> str:
    """A row by its number from 1, and by its part if there are several: "row 3", "test row 3"."""
    if isinstance(index, tuple):
        part, row = index
        return f"{part} row {row + 1}"
    return f"row {index + 1}"
