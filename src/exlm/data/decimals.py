"""Which mark stands before the decimals of numbers that are texts: a comma or a point.

A mark is *sure* if it cannot stand between thousands: that of 0.25, 12.5 or 1.2500 is, that of
1.250 is not. So a column tells its mark by the numbers whose mark is sure, and where it has none,
the other columns of its file tell what it may be."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

MINUS_SIGN = "\u2212"
SIGN = f"[-+{MINUS_SIGN}]?"
END = r"(e[-+]?\d+)?\s*%?"
MAY_BE_THOUSANDS = re.compile(rf"{SIGN}[1-9]\d{{0,2}}[.,]\d{{3}}\s*%?")
# Numbers by the mark before their decimals; those that may be thousands are among them
DECIMALS = {
    ",": re.compile(rf"{SIGN}(?=,?\d)(\d*|\d{{1,3}}(\.\d{{3}})+),\d*{END}", re.IGNORECASE),
    ".": re.compile(rf"{SIGN}(?=\.?\d)\d*\.\d*{END}", re.IGNORECASE),
}


def decimal_marks(cells: Iterable[Any]) -> dict[str, str]:
    """The first number with each mark that is sure: {",": "2,14"} for the texts 1.250 and 2,14."""
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    marks = {}
    for mark, pattern in DECIMALS.items():
        for text in texts:
            if pattern.fullmatch(text) and not MAY_BE_THOUSANDS.fullmatch(text):
                marks[mark] = text
                break
    return marks


def marks_of_columns(frame: pd.DataFrame) -> dict[str, str]:
    """The first number with each mark that is sure in any of the columns."""
    marks = dict[str, str]()
    for _, column in frame.items():
        marks = decimal_marks(column) | marks
    return marks


def find_possible_thousands(
    cells: pd.DataFrame, frame: pd.DataFrame, separators: Mapping[str, str]
) -> pd.DataFrame:
    """Which numbers of some columns [rows, columns] have a point that may stand between thousands.
    In a column without a sure mark that is every 1.250, if other columns of its file have decimal
    commas, or if the file has semicolons and no sure points: those keep commas free for decimals.
    Commas between cells do not.

    `frame` has all columns of the file, or of the files by (part, row). `separators` are what
    divides their cells, by part, of a single file under ""; absent if nothing does."""
    may_be_thousands = cells.map(
        lambda cell: (
            isinstance(cell, str)
            and "." in cell
            and MAY_BE_THOUSANDS.fullmatch(cell.strip()) is not None
        )
    )
    if not may_be_thousands.any(axis=None):
        return may_be_thousands
    index = frame.index
    parts = [""] * len(index) if index.nlevels == 1 else index.get_level_values(0)
    for part, rows in frame.groupby(np.array(parts, dtype=object), sort=False):
        in_file = index.isin(rows.index)
        if _points_are_decimals(rows, separators.get(str(part), "")):
            may_be_thousands[in_file] = False
        for name, column in cells[in_file].items():
            if decimal_marks(column):
                may_be_thousands.loc[in_file, name] = False
    return may_be_thousands


def _points_are_decimals(frame: pd.DataFrame, separator: str) -> bool:
    """Whether a point in a file with these columns stands before decimals for sure."""
    if separator == ",":
        return True
    marks = marks_of_columns(frame)
    return "," not in marks and (separator != ";" or "." in marks)
