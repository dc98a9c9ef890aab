"""Which mark stands before the decimals of numbers that are texts: a comma or a point.

The point of 1.250 may stand between thousands; those of 0.25, 12.5 and 1.2500 cannot. So numbers
of the second kind tell the decimal mark of their column. If a column has none of them, the other
columns of its file tell whether its points may stand between thousands."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

MINUS_SIGN = "\u2212"
SIGN = f"[-+{MINUS_SIGN}]?"
END = r"(e[-+]?\d+)?\s*%?"
MAY_BE_THOUSANDS = re.compile(rf"{SIGN}[1-9]\d{{0,2}}[.,]\d{{3}}\s*%?")
# Numbers by the mark before their decimals; MAY_BE_THOUSANDS fits some of them, too
DECIMALS = {
    ",": re.compile(rf"{SIGN}(?=,?\d)(\d*|\d{{1,3}}(\.\d{{3}})+),\d*{END}", re.IGNORECASE),
    ".": re.compile(rf"{SIGN}(?=\.?\d)\d*\.\d*{END}", re.IGNORECASE),
}


def decimal_marks(cells: Iterable[Any]) -> dict[str, str]:
    """The marks before decimals in a column, each with the first number that tells it:
    {",": "2,14"} for the texts 1.250 and 2,14. Numbers that may be thousands tell nothing."""
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    marks = {}
    for mark, pattern in DECIMALS.items():
        for text in texts:
            if pattern.fullmatch(text) and not MAY_BE_THOUSANDS.fullmatch(text):
                marks[mark] = text
                break
    return marks


def point_may_divide_thousands(cell: Any) -> bool:
    """Whether a cell alone does not tell if its point stands between thousands, as 1.250."""
    return isinstance(cell, str) and "." in cell and bool(MAY_BE_THOUSANDS.fullmatch(cell.strip()))


def find_possible_thousands(
    cells: pd.DataFrame, frame: pd.DataFrame, separators: Mapping[str, str]
) -> pd.DataFrame:
    """Which numbers of some columns [rows, columns] have a point that may stand between thousands.
    In a column without `decimal_marks` that is every 1.250, if its file has decimal commas in other
    columns, or if it has semicolons between its cells and no decimal points: programs that write
    decimal commas put semicolons there.

    `frame` has all columns of the file, or of the files by (part, row). `separators` are what
    divides their cells, by part, of a single file under ""; absent if nothing does."""
    may_be_thousands = cells.map(point_may_divide_thousands)
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
    """Whether no point in a file with these columns can stand between thousands."""
    if separator == ",":
        return True
    marks = {mark for _, column in frame.items() for mark in decimal_marks(column)}
    return "," not in marks and (separator != ";" or "." in marks)
