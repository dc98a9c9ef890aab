"""What the cells of label columns say: a class, perhaps a number, and perhaps a number as a word.
The task type (see `label_types.py`) decides which of these counts.

| cell       | class    | number | number, also of a word such as no and yes |
| ---------- | -------- | ------ | ----------------------------------------- |
| `Inactive` | Inactive |        | 0                                         |
| `1`        | 1        | 1      | 1                                         |
| `12,5`     | 12,5     | 12.5   | 12.5                                      |

After these come the checks of columns, and what they tell the user. Cells have the index of their
rows: numbers from 0, or pairs of a part and such a number where each part has a file."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.data.cell_texts import class_name
from exlm.data.columns import listed
from exlm.data.conll import TAG
from exlm.data.decimals import MINUS_SIGN, decimal_marks, point_may_divide_thousands
from exlm.errors import InputError, note

# What labels 0 and 1 are usually called, in any case
NEGATIVE = ("inactive", "negative", "no", "false", "f")
POSITIVE = ("active", "positive", "yes", "true", "t")
# A number, perhaps with a decimal comma and a percent sign, but not with a zero in front, as codes
NUMBER = r"[-+]?(?!0\d)[\d.,]*\d[\d.,]*(e[-+]?\d+)?\s*%?"
# What begins as a number: 10 uM, >5 mg/mL, 3.2 ± 0.1
BEGINS_AS_NUMBER = rf"[<>~≤≥=]*\s*[-+{MINUS_SIGN}]?[\d.,]*\d.*"
# A measurement that ends at a limit: >5 mg/mL
BOUND = re.compile("[<>≤≥]")
# A list that pandas or Python wrote as text: ['EU' 'rejects'] or [3, 0, 7]
LIST_AS_TEXT = re.compile(r"""\[\s*(["'].*["']|\d+([\s,]+\d+)*)\s*\]""", re.DOTALL)
# The labels of the words of a text: O O B-PER
TAGS = re.compile(rf"{TAG}(\s+{TAG})+")


def read_numbers(cells: pd.Series) -> pd.Series:
    """The cells of a column as numbers, NaN for all others.

    A comma is a decimal comma if it is the only one of the `decimal_marks` that the column has in
    its file; else its cell is no number. A percent sign is left out if every cell has one.
    `find_possible_thousands` tells where a point may stand between thousands.

    | cells of a column       | numbers          |
    | ----------------------- | ---------------- |
    | `10,8%`, `−1,234%`      | 10.8, -1.234     |
    | `12,5`, `1.250`         | 12.5, NaN        |
    | `1,234`, `2`, `01`, `x` | NaN, 2, NaN, NaN |"""
    cells = cells.astype(object)
    is_number = cells.map(lambda cell: isinstance(cell, Number)).astype(bool)
    numbers = cells.where(is_number, np.nan).astype(float)
    texts = cells[~is_number].astype(str).str.strip().str.replace(MINUS_SIGN, "-")
    texts = texts[texts.str.fullmatch(NUMBER, case=False)]
    if numbers.isna().all() and texts.str.endswith("%").all():
        texts = texts.str.removesuffix("%").str.strip()
    if texts.index.nlevels == 1:
        texts = _with_decimal_point(texts)
    else:
        texts = texts.groupby(level=0, sort=False).transform(_with_decimal_point)
    return numbers.fillna(pd.to_numeric(texts, errors="coerce").astype(float))


def are_numbers_with_some_percent_signs(cells: pd.Series) -> bool:
    """Whether all cells of a column are numbers or missing, and only some numbers have a percent
    sign: the others may be shares or percent."""
    texts = cells.dropna().astype(str).str.strip()
    has_sign = texts.str.endswith("%")
    without_signs = texts.str.removesuffix("%").str.strip()
    return bool(0 < has_sign.sum() < len(texts) and read_numbers(without_signs).notna().all())


def _with_decimal_point(texts: pd.Series) -> pd.Series:
    """The numbers that a column has in one file, with points in place of decimal commas."""
    if set(decimal_marks(texts)) != {","}:
        return texts
    return texts.mask(texts.str.contains(".", regex=False)).str.replace(",", ".")


def is_whole(cells: pd.DataFrame, numbers: pd.DataFrame) -> bool:
    """Whether all cells that are not missing say whole numbers; `numbers` has what they say."""
    return bool((cells.isna() | (numbers % 1 == 0)).all(axis=None))


def words_as_numbers(
    cells: pd.DataFrame, numbers: pd.DataFrame, binary_names: Sequence[str] | None
) -> pd.DataFrame:
    """The numbers, and 0 and 1 for the names in NEGATIVE and POSITIVE. If `binary_names` are other
    names, they alone are labels, and numbers are none.

    | cells of a column        | `binary_names` | labels     |
    | ------------------------ | -------------- | ---------- |
    | `active`, `No`, `1`, `2` | None           | 1, 0, 1, 2 |
    | `yes`, `no`, `1`         | yes, no        | 0, 1, NaN  |"""
    label_of = dict.fromkeys(NEGATIVE, 0.0) | dict.fromkeys(POSITIVE, 1.0)
    labels_by_name = {name.lower(): float(label) for label, name in enumerate(binary_names or ())}
    if not labels_by_name.items() <= label_of.items():
        numbers = numbers * np.nan
        label_of = labels_by_name
    names = cells.apply(lambda column: column.map(class_name).str.lower())
    return names.apply(lambda column: column.map(label_of)).fillna(numbers)


def find_binary_names(
    cells: pd.DataFrame, positive: str | None, path: str | Path
) -> list[str] | None:
    """The names of labels 0 and 1, as the first cells spell them. With `positive`, the name of 1,
    every cell must have this or the same other value, else InputError, with the place of the rarest
    value. Without `positive`, a single column must have one of NEGATIVE and one of POSITIVE, else
    None."""
    if positive is None and len(cells.columns) != 1:
        return None
    values = dict[str, str]()  # as they are spelled first, by their small letters
    places = dict[str, str]()
    counts = Counter[str]()
    for name in cells:
        for index, value in cells[name].dropna().map(class_name).items():
            values.setdefault(value.lower(), value)
            places.setdefault(value.lower(), f"column {name!r}, {row_name(index)}")
            counts[value.lower()] += 1
    for zero, one in permutations(values) if len(values) == 2 else ():
        is_usual = zero in NEGATIVE and one in POSITIVE
        is_wanted = positive is not None and one == positive.lower()
        if is_wanted or (positive is None and is_usual):
            return [values[zero], values[one]]
    if positive is None:
        return None
    odd_cell = ""
    if len(values) > 2:
        odd_one = min(counts, key=counts.__getitem__)
        odd_cell = f", but {places[odd_one]} has {values[odd_one]!r}"
    raise InputError(
        f"{path}: positive is {positive!r}; it must be one of two classes, the same in "
        f"every label column{odd_cell}, and the values there are {listed(values.values())}; "
        "leave the cells empty that have neither"
    )


def check_single_labels(cells: pd.DataFrame, path: str | Path) -> None:
    """InputError for a cell with several labels: a list, or a label for every word of a text."""
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


def check_numbers(cells: pd.DataFrame, numbers: pd.DataFrame, path: str | Path) -> None:
    """Prints how `read_numbers` read a column with commas or percent signs. InputError if all cells
    of a column begin as numbers and one is no number: else they would all be classes."""
    for name, column in cells.items():
        texts = column.dropna().astype(str).str.strip()
        if not texts.str.fullmatch(BEGINS_AS_NUMBER).all():
            continue
        if are_numbers_with_some_percent_signs(column):
            has_sign = texts.str.endswith("%")
            with_sign: Any = has_sign.idxmax()
            without_sign: Any = has_sign.idxmin()
            raise InputError(
                f"{path}: column {name!r} has a percent sign in {has_sign.sum()} of "
                f"{len(texts)} cells ({row_name(with_sign)}: {texts[with_sign]!r}, "
                f"{row_name(without_sign)}: {texts[without_sign]!r}); write all in one way"
            )
        unread = texts[numbers[name][texts.index].isna()]
        if len(unread):
            row: Any = unread.index[0]
            problem = f"{row_name(row)}: {unread_number(column, row)}"
            others = f" (rows with such cells: {len(unread)})" if len(unread) > 1 else ""
            raise InputError(f"{path}: column {name!r}, {problem}{others}")
        marked = texts[texts.str.contains("[,%]")]
        if len(marked):
            note(
                f"in column {name!r}, {marked.iloc[0]!r} is read as "
                f"{numbers[name][marked.index[0]]:g}"
            )


def unread_number(cells: pd.Series, row: Any) -> str:
    """Why the cell of a row is no number, and the way out; `cells` are all of its column."""
    texts = cells.dropna().astype(str).str.strip()
    cell = texts[row]
    marks = decimal_marks(texts.loc[row[0]] if isinstance(row, tuple) else texts)  # of its file
    if len(marks) == 2:
        return (
            f"{cell!r} stands in a column that has decimal commas, as in "
            f"{marks[',']!r}, and decimal points, as in {marks['.']!r}; write one mark everywhere"
        )
    if point_may_divide_thousands(cell):
        whole_number = cell.replace(".", "")
        decimal_mark = next(iter(marks), ".")
        decimal_number = f"{cell}0".replace(".", decimal_mark)
        return (
            f"{cell!r} can be read in several ways, because its point may stand "
            "between thousands in a table with decimal commas or semicolons; write "
            f"{whole_number}, or, if it stands before decimals, {decimal_number}"
        )
    bound = "; a bound is no measured number, so leave its cell empty" if BOUND.match(cell) else ""
    return (
        f"{cell!r} is more than a number, or can be read in several ways; write "
        "the numbers alone, all in one unit and as 1234.5 (several labels need a column for each), "
        f"or set task_type multiclass for classes{bound}"
    )


def note_binary_names(cells: pd.DataFrame, labels: pd.DataFrame) -> None:
    """Prints what labels 1 and 0 are called in every column where not all cells are numbers."""
    for name, column in cells.items():
        values = column.dropna().map(class_name)
        has_labels = labels[name].notna().any()
        if has_labels and not values.str.fullmatch(NUMBER).all():
            phrases = [
                f"label {label} is {listed(values[labels[name] == label].unique())}"
                for label in (1, 0)
                if (labels[name] == label).any()
            ]
            note(f"in column {name!r}, {', '.join(phrases)}")


def row_name(index: Any) -> str:
    """A row by its number from 1, and by its part if there are several: "row 3", "test row 3"."""
    if isinstance(index, tuple):
        part, row = index
        return f"{part} row {row + 1}"
    return f"row {index + 1}"
