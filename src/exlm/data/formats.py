"""Which file is read, and which format it has."""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from exlm.data.columns import ALL_TEXT_NAMES, find_usual_columns, listed
from exlm.data.open_files import (
    COMPRESSIONS,
    STANDARD_INPUT,
    advice_on_name,
    explain_read_errors,
    first_lines,
    is_standard_input,
    plain_suffix,
)
from exlm.errors import InputError

# The format of a file, by the ending of its name
FORMATS = ("smi", "txt", "csv", "tsv", "jsonl", "fasta", "conll", "sdf", "xlsx", "parquet")
SUFFIXES = {f".{name}": name for name in FORMATS}
SUFFIXES |= dict.fromkeys([".fa", ".faa", ".fas", ".fna", ".ffn", ".pep"], "fasta")
SUFFIXES |= {".conllu": "conll"}
READABLE = (  # for messages
    f"{', '.join(SUFFIXES)} file (those of text may be compressed: {', '.join(COMPRESSIONS)})"
)
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(
    r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?"
)


@dataclass(frozen=True)
class DataFile:
    """A file with a row for each example, standard input, or one split of a Hugging Face data set,
    and what is known of it before it is read."""

    name: str
    format: str  # a key of READERS (`records.py`), or parquet
    header: bool = True  # whether a table has a header line
    sheet: str | None = None  # name of a sheet of a workbook; the first where absent
    # names of the columns of a table where the header line is missing
    columns_if_missing: tuple[str, ...] = ()

    @property
    def has_names(self) -> bool:
        """Whether a table certainly begins with the names of its columns."""
        return self.header and not self.columns_if_missing


class Record(NamedTuple):
    """A row of a file."""

    cells: dict[Any, Any]  # by the name of the column; empty if the line is blank
    problem: str = ""  # why the row should not be used


def data_files(
    names: Iterable[str | Path],
    header: bool = True,
    sheet: str | None = None,
    columns_if_missing: Iterable[str] = (),
    from_hub: bool = False,
) -> list[DataFile]:
    """The files of these names, in order; the sheet is that of the workbooks among them. With
    `from_hub`, a name may be that of a Hugging Face data set. InputError if a format is not known,
    or if a sheet is named and none of the files is a workbook."""
    files = []
    for name in map(str, names):
        file_format = "hub" if from_hub and is_hub_name(name) else _format_to_read(name, header)
        sheet_of_file = sheet if file_format == "xlsx" else None
        files.append(DataFile(name, file_format, header, sheet_of_file, tuple(columns_if_missing)))
    if sheet is not None and all(file.sheet is None for file in files):
        raise InputError(
            f"{listed([file.name for file in files], 5)} has no sheets; "
            "leave out sheet, which is for .xlsx files"
        )
    return files


def is_hub_name(name: str) -> bool:
    """Whether this may be the name of a Hugging Face data set, as it is that of no file."""
    is_file = Path(name).exists() or format_of(name) is not None
    return not (is_file or is_standard_input(name)) and HUB_NAME.fullmatch(name) is not None


def format_of(path: str | Path) -> str | None:
    """The format that a file's name stands for: a value of SUFFIXES, or None."""
    if str(path) == STANDARD_INPUT:
        return "txt"
    suffix = plain_suffix(path)
    if suffix in (".parquet", ".xlsx") and Path(path).suffix.lower() in COMPRESSIONS:
        return None
    return SUFFIXES.get(suffix)


def _format_to_read(name: str, header: bool) -> str:
    """The format of a `DataFile`. A .txt file and standard input without an ending are a table if
    their first line has a tab; else each line is a text. InputError if the ending of the name is
    unknown, if the first line of a .txt file is that of a .fasta or .jsonl file, or if lines
    without an ending seem to be a table."""
    file_format = format_of(name)
    if file_format is None:
        raise InputError(f"{name}: unknown file type; use a {READABLE}")
    if file_format != "txt":
        return file_format
    with explain_read_errors(name):
        first_line = next(iter(first_lines(name)), "")
    for ending, start in ((".fasta", r">(?=\S)"), (".jsonl", r'\{\s*"')):
        if match := re.match(start, first_line):
            raise InputError(
                f"{name} begins with {match.group()}, as a {ending} file does; "
                f"{advice_on_name(name, ending)}"
            )
    if "\t" in first_line:
        return "tsv"
    if name == STANDARD_INPUT and not header:
        raise InputError(
            f"{name} has a text in each line, and header is for tables; "
            f"{advice_on_name(name, '.csv')}, or leave header out"
        )
    check_no_table(name)
    return "lines"


def check_no_table(name: str, column: str = "") -> None:
    """InputError if standard input without an ending seems to be a table: its first line has,
    between separators, the name `column` or the usual name of a column of texts."""
    if name != STANDARD_INPUT:
        return
    with explain_read_errors(name):
        first_line = next(iter(first_lines(name)), "")
    if "\t" in first_line:
        return
    rows = [row for mark in ",;|" for row in csv.reader([first_line], delimiter=mark)]
    cells = [cell.strip() for row in rows for cell in row]
    names = [cell for cell in cells if cell and cell.lower() == column.lower()]
    names = names or find_usual_columns(cells, ALL_TEXT_NAMES)
    if names:
        raise InputError(
            f"{name} begins with {names[0]!r}, the name of a column, and each line would be a "
            f"text; write {name}.csv in place of {name} for a table, or {name}.txt for texts"
        )
