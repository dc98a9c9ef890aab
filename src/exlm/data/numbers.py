"""Which columns of a table of texts hold numbers, so that a file with types gets numbers there."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from exlm.data.formats import reader_name
from exlm.data.tabular import AS_USUAL

# A number as programs write it. Zeros in front, more digits than a float has, and an exponent
# without a sign, as in the well 1E02, are an id's.
NUMBER = r"(?!-0$)-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]\d{1,3})?"
# Formats in which programs write numbers: Python's own, the shortest, and as many decimals in all
# cells. Each writes different numbers differently, and writes a number in one way.
NUMBER_FORMATS = ("", ".15g", ".15G", *(f".{n}{kind}" for n in range(18) for kind in "feE"))


class Spelling(NamedTuple):
    """How the numbers of a column are written."""

    formats: frozenset[str]  # the NUMBER_FORMATS in which all may have been written
    is_unique: bool  # whether no two cells spell one number differently


def number_columns(path: str | Path, frame: pd.DataFrame) -> frozenset[str]:
    """The columns of a file without types (CSV, TSV) in which every cell is empty or a number, and
    none is another spelling of another: 1.1 and 1.10 are ids. They stay texts while rows are read,
    so that a CSV file gets them back as they were; `write_frame` makes them numbers in a format
    that has numbers."""
    return shared_number_columns([number_spellings(path, frame)])


def number_spellings(path: str | Path, frame: pd.DataFrame) -> dict[str, Spelling]:
    """How numbers are written in those columns of a file without types in which every cell is empty
    or a number, by the name of the column."""
    if reader_name(path, AS_USUAL) not in ("csv", "tsv"):
        return {}
    spellings = {}
    for name, column in frame.select_dtypes(exclude="number").items():
        texts = column.astype(str).drop_duplicates()
        texts = texts[texts.ne("")]
        if not texts.str.fullmatch(NUMBER).all():
            continue
        numbers = texts.astype(float)
        formats = set(NUMBER_FORMATS)
        for text, number in zip(texts, numbers, strict=True):
            formats = {kind for kind in formats if format(number, kind) == text}
        spellings[str(name)] = Spelling(frozenset(formats), numbers.is_unique)
    return spellings


def shared_number_columns(spellings_of_chunks: Sequence[dict[str, Spelling]]) -> frozenset[str]:
    """The columns of numbers of a table, from the `number_spellings` of all its chunks. Of several
    chunks they have a format in common, because 1.1 may be in one and 1.10 in another."""
    first, *others = spellings_of_chunks
    if not others:
        return frozenset(name for name, spelling in first.items() if spelling.is_unique)
    columns = set()
    for name in set(first).intersection(*others):
        formats = [spellings[name].formats for spellings in spellings_of_chunks]
        if frozenset.intersection(*formats):
            columns.add(name)
    return frozenset(columns)


def with_numbers(frame: pd.DataFrame, numbers: Collection[str]) -> pd.DataFrame:
    """The frame, with the texts of some of its `number_columns` as numbers: whole ones where all
    are, missing where a text is empty."""
    frame = frame.copy(deep=False)
    for name in numbers:
        texts = frame[name].mask(frame[name].eq(""))
        # Plain integers would become floats where values are missing.
        frame[name] = pd.to_numeric(texts, dtype_backend="numpy_nullable")
    return frame
