"""Readers of tables: text with cells between separators, and workbooks."""

import csv
import re
import zipfile
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.columns import check_different, listed
from exlm.data.files import LARGEST_FILE, LONGEST_LINE, note_once, text_lines
from exlm.data.layout import TableLayout, find_layout
from exlm.errors import InputError, first_line, import_optional


class TableOptions(NamedTuple):
    """What is known of a table before it is read."""

    header: bool = True  # whether it has a header line
    columns_if_missing: tuple[
        str, ...
    ] = ()  # names of the columns where the header line is missing
    sheet: str | None = None  # name of a sheet of a workbook; the first where absent

    @property
    def has_names(self) -> bool:
        """Whether a table certainly begins with the names of its columns."""
        return self.header and not self.columns_if_missing


AS_USUAL = TableOptions()


class Record(NamedTuple):
    """A row of a file."""

    cells: dict[Any, Any]  # by the name of the column; empty if the line is blank
    problem: str = ""  # why the row should not be used


def read_csv(name: str, options: TableOptions, usual: str = ",") -> Iterator[Record]:
    """The rows of a text with cells between separators, `usual` ones if its first lines do not say
    otherwise."""
    csv.field_size_limit(LONGEST_LINE)  # Python's own limit is lower
    layout = find_layout(name, usual, options.has_names)
    # Columns are given for files of GLUE, in which quotes are part of the text.
    has_tabs = layout.separator == "\t"
    is_plain = has_tabs and (options.columns_if_missing or not _quotes_enclose_cells(name))
    rows = _unquoted_rows(name) if is_plain else _csv_rows(name, layout, options.header)
    for _ in range(layout.lines_above):
        next(filter(None, rows), None)
    return _records(rows, options, name)


def _quotes_enclose_cells(name: str) -> bool:
    """Whether quotes enclose cells between tabs, as R, pandas and Excel write them: some cell
    begins with a quote, and all of these end with one. In other files quotes are part of the text,
    and also where they would join lines that have as many cells as all others."""

    def lines() -> Iterator[str]:
        for line in text_lines(name):
            yield line.rstrip("\r\n").replace("\r", " ") + "\n"

    if not any(re.search('(^|\t)"', line) for line in lines()):
        return False
    rows = csv.reader(lines(), delimiter="\t", strict=True)
    try:
        joins_lines = sum(1 for _ in rows) < rows.line_num
    except csv.Error:
        return False
    tabs_in_lines = {line.count("\t") for line in lines() if line.strip()}
    return not joins_lines or len(tabs_in_lines) > 1 or tabs_in_lines == {0}


def _csv_rows(name: str, layout: TableLayout, header: bool) -> Iterator[list[str]]:
    """The rows of cells. InputError for a quote that is never closed or stands inside a cell, and
    for a carriage return in a cell without quotes: they may have swallowed or divided rows."""
    # Rows are numbered from 1, after the header line. Blank lines count only inside of the table.
    first_number = 0 if header else 1
    number = first_number - layout.lines_above
    try:
        for row in csv.reader(text_lines(name), delimiter=layout.separator, strict=True):
            yield row
            if row or number > first_number:
                number += 1
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]  # without advice for programmers
        place = f"row {number}" if number > 0 else "the lines above the first row"
        raise InputError(
            f"{name}, {place}: {reason}; correct it, a quote may be open, or stand inside a "
            "cell without a second one, or a carriage return in a cell without quotes"
        ) from error


def _unquoted_rows(name: str) -> Iterator[list[str]]:
    """Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    inside a line."""
    for line in text_lines(name):
        line = line.rstrip("\n").removesuffix("\r")
        yield line.split("\t") if line else []


def read_xlsx(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a sheet of a workbook; one without cells is blank. InputError if there is no
    sheet of the name."""
    import_optional("openpyxl", "excel", f"reading {name}")
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise ValueError(f"it is larger than {LARGEST_FILE:,} bytes when it is unpacked")
        with pd.ExcelFile(name, "openpyxl") as book:
            sheet = options.sheet or str(book.sheet_names[0])
            if sheet not in book.sheet_names:
                raise InputError(f"{name}: no sheet {sheet!r}; it has: {listed(book.sheet_names)}")
            other_sheets = listed(book.sheet_names[1:])
            if options.sheet is None and other_sheets:
                note_once(
                    f"of {name}, the sheet {sheet!r} is read; --sheet reads one of the others: "
                    f"{other_sheets}"
                )
            cells = pd.read_excel(book, sheet, header=None, dtype=object, na_filter=False)
        frame = cells.where(cells.notna(), "")  # errors such as #N/A are missing cells
        with pd.ExcelFile(name, "openpyxl", engine_kwargs={"data_only": False}) as book:
            _check_formulas(name, frame, book.book[sheet])
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error
    rows = (row if any(cell != "" for cell in row) else [] for row in frame.values.tolist())
    yield from _records(rows, options, name)


def _check_formulas(name: str, values: pd.DataFrame, sheet: Any) -> None:
    """InputError if a sheet has formulas and no values of them: only spreadsheet programs compute
    them."""
    height, width = values.shape
    formulas = [cell for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    inside = [cell for cell in formulas if cell.row <= height and cell.column <= width]
    if formulas and all(values.iat[cell.row - 1, cell.column - 1] == "" for cell in inside):
        raise InputError(
            f"{name} has formulas such as {formulas[0].value!r} without their values; "
            "open it in a spreadsheet program and save it again, or paste values over them"
        )


def _records(rows: Iterator[list[Any]], options: TableOptions, name: str) -> Iterator[Record]:
    """Rows of cells as records. Missing cells at the end of a row are "", and the rows that have
    some are counted in a note; a row with more cells than the first has a problem."""
    first = next(filter(None, rows), None)
    if first is None:
        return
    columns, first_is_data = _columns(first, options)
    check_different(columns, name)
    if first_is_data:
        rows = chain([first], rows)
    short_rows = 0
    for cells in rows:
        if not cells:
            yield Record({})
            continue
        problem = ""
        if len(cells) > len(columns):
            problem = f"{len(cells)} fields instead of {len(columns)}"
        elif len(cells) > 1 and cells == columns and not first_is_data:
            problem = "repeats the names of the columns"
        short_rows += len(cells) < len(columns)
        yield Record(dict(zip_longest(columns, cells[: len(columns)], fillvalue="")), problem)
    if short_rows:
        note_once(
            f"rows of {name} that have fewer than {len(columns)} cells: {short_rows}; "
            "those that are missing at their ends are read as empty"
        )


def _columns(first: list[Any], options: TableOptions) -> tuple[list[str], bool]:
    """The names of a table's columns, and whether its first row is data already."""
    if not options.header:
        return [f"column {i}" for i in range(1, len(first) + 1)], True
    if options.columns_if_missing and set(options.columns_if_missing).isdisjoint(first):
        return list(options.columns_if_missing), True
    return [str(cell) or f"Unnamed: {i}" for i, cell in enumerate(first)], False
