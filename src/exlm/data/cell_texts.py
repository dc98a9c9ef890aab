"""From a cell of a table to a text, for each use of it:

| cell               | `text_to_read` | `class_name` | `text_to_write` |
| ------------------ | -------------- | ------------ | --------------- |
| `" CCO"`           | `"CCO"`        | `"CCO"`      | `" CCO"`        |
| `"NA"`             | `""`           | `"NA"`       | `"NA"`          |
| `None`             | `""`           |              | `None`          |
| `1.0`              | `"1.0"`        | `"1"`        | `"1.0"`         |
| `["EU", "agreed"]` | `"EU agreed"`  |              | JSON            |
| `{"year": 1}`      |                |              | JSON            |

Where there is nothing, the caller refuses the cell. Other missing cells, such as NaN, are as None.
`split_units` divides a cell whose residues or words have labels of their own."""

import json
import re
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd

# What R, pandas, spreadsheets and data bases write in place of a missing text
MISSING_TEXTS = ("NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", r"\N")
WHOLE_FLOAT = re.compile(r"-?\d+\.0")


def is_missing(cell: Any) -> bool:
    """Whether a file has nothing in a cell. A text that stands for nothing, as NA, is a text."""
    return not isinstance(cell, (list, dict)) and bool(pd.isna(cell))


def text_to_read(cell: Any) -> str:
    """The text that a model reads, "" if it is missing. Words of a list are joined by spaces."""
    if isinstance(cell, list):
        return " ".join(map(str, cell))
    return "" if is_missing(cell) else clean_text(str(cell))


def clean_text(text: str) -> str:
    """A text without spaces at its ends, "" if it stands for a missing one."""
    text = text.strip()
    return "" if text in MISSING_TEXTS else text


def class_name(cell: Any) -> str:
    """The class that a cell says, with accents in one encoding. 1.0 is 1: a gap in a column turns
    whole numbers into floats."""
    text = normalize("NFC", str(cell).strip())
    return text.removesuffix(".0") if WHOLE_FLOAT.fullmatch(text) else text


def split_units(cell: Any, unit_pattern: str) -> list[str]:
    """The units of a text or a list, or their labels; "" for one that is missing in a list. The
    pattern is a regular expression for a unit."""
    if isinstance(cell, list):
        return ["" if pd.isna(unit) else str(unit) for unit in cell]
    return re.findall(unit_pattern, str(cell))


def text_to_write(cell: Any) -> str | None:
    """A cell in a file or a column of texts alone: a list or a dict as JSON; None if missing."""
    if isinstance(cell, (list, dict)):
        return as_json(cell)
    return None if is_missing(cell) else str(cell)


def as_json(value: Any) -> str:
    """A value as JSON. Times and other objects become texts. ValueError for infinite numbers."""

    def in_json(item: Any) -> Any:
        if isinstance(item, (np.ndarray, np.generic)):
            return item.tolist()
        return item.isoformat() if hasattr(item, "isoformat") else str(item)

    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=in_json)
