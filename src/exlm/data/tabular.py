"""Readers of tables: text with cells between separators, and workbooks."""

import csv
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from itertools import chain, dropwhile, takewhile, zip_longest
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.columns import check_different, listed
from exlm.data.files import LARGEST, LONGEST, first_lines, line_end, text_lines
from exlm.errors import InputError, first_line, import_optional, note

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# a header line as R writes it with its usual separator
NAMES_BETWEEN_SPACES = re.compile(r'"[^"]*"( "[^"]*")+')


class TableOptions(NamedTuple):
    """What is known of a table before it is read."""

    header: bool = True  # whether it has a header line
    columns_if_missing: tuple[str, ...] = ()  # of a table whose header line may be missing
    sheet: str | None = None  # of a workbook, the first where absent


AS_USUAL = TableOptions()


class Record(NamedTuple):
    """A row of a file."""

    cells: dict[Any, Any]  # by the name of the column; empty if the line is blank
    fault: str = ""  # why the row should not be used


class Layout(NamedTuple):
    """How the cells of a text are divided."""

    separator: str
    lines_above: int = 0  # lines above the table that are not blank


def read_csv(name: str, options: TableOptions, usual: str = ",") -> Iterator[Record]:
    """The rows of a text with cells between separators, `usual` ones if its first lines do not say
    otherwise."""
    csv.field_size_limit(LONGEST)  # Python's own limit is lower
    has_names = options.header and not options.columns_if_missing
    lines = first_lines(name)
    layout = _layout(name, lines, usual, has_names)
    if has_names:
        _check_header_line(name, lines[layout.lines_above :], layout.separator)
    # Columns are given for files of GLUE, in which quotes are part of the text.
    has_tabs = layout.separator == "\t"
    is_plain = has_tabs and (options.columns_if_missing or not _quotes_enclose_cells(name))
    rows = _unquoted_rows(name) if is_plain else _csv_rows(name, layout)
    for _ in range(layout.lines_above):
        next(filter(None, rows))
    return _records(rows, options, name)


def read_tsv(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a text whose cells are usually divided by tabs."""
    return read_csv(name, options, "\t")


def _layout(name: str, lines: list[str], usual: str, has_names: bool) -> Layout:
    """How a text is divided that begins with these lines. Above a table may stand `sep=;`, as Excel
    writes it, or comments: lines that begin with # and do not hold the separator of the rows."""
    named_separator = re.fullmatch('"?sep=([,;\t])"?', lines[0]) if lines else None
    if named_separator:
        return Layout(named_separator[1], 1)
    rows = list(dropwhile(lambda line: line.startswith("#"), lines))
    separator = _separator(rows, usual, has_names)
    comments = list(takewhile(lambda line: line.startswith("#") and separator not in line, lines))
    table = lines[len(comments) :]
    if not comments or not table or separator not in table[0]:
        return Layout(_separator(lines, usual, has_names))
    _note_once(
        f"comments above the table {name} are left out (lines: {len(comments)}, the first: "
        f"{comments[0][:80]!r})"
    )
    return Layout(_separator(table, usual, has_names), len(comments))


def _separator(lines: list[str], usual: str, has_names: bool) -> str:
    """The separator that divides the first line of a table, and half of the others or more, into as
    many cells; of several such the one that divides the most lines, or makes the most cells, as
    decimal commas make fewer. If there is none, one that divides the header line and most others,
    or else the usual one."""

    def fit(mark: str) -> tuple[int, int, int, bool]:
        header, *rows = _cells_of_lines(lines, mark)
        alike = rows.count(header)
        divided_rows = sum(cells > 1 for cells in rows)
        if header > 1 and 2 * alike >= len(rows):
            return 2, alike, header, mark == usual
        if has_names and header > 1 and 2 * divided_rows > len(rows):
            return 1, alike, header, mark == usual
        return 0, 0, 0, mark == usual

    return max(SEPARATORS, key=fit)


def _cells_of_lines(lines: list[str], separator: str) -> list[int]:
    """How many cells every line has; [0] if there is no line."""
    return [len(row) for row in csv.reader(lines, delimiter=separator)] or [0]


def _check_header_line(name: str, lines: list[str], separator: str) -> None:
    """InputError if a header line, the first of these, is divided otherwise than all rows; a note
    if most rows have another number of cells."""
    if lines and NAMES_BETWEEN_SPACES.fullmatch(lines[0]):
        raise InputError(
            f"{name}: there are spaces between the names in its header line; put commas or tabs "
            'between all cells (in R: sep = "\\t", row.names = FALSE)'
        )
    header, *rows = _cells_of_lines(lines, separator)
    if not rows:
        return
    in_header = [mark for mark in SEPARATORS if mark in lines[0]]
    in_rows = [mark for mark in SEPARATORS if all(mark in line for line in lines[1:])]
    if in_header and in_rows and not set(in_header) & set(in_rows):
        raise InputError(
            f"{name}: there are {SEPARATORS[in_header[0]]} in its header line, and "
            f"{SEPARATORS[in_rows[0]]} in all rows; put the same between the cells of all lines"
        )
    if all(cells == header + 1 for cells in rows):
        raise InputError(
            f"{name}: every row has one cell more than its header line has names ({header}); "
            "if R wrote it, write it with row.names = FALSE, else name every column, and put cells "
            f"that hold {SEPARATORS[separator]} in quotes"
        )
    others = len(rows) - rows.count(header)
    if header > 1 and 2 * others > len(rows):
        _note_once(
            f"{name} is read as cells between {SEPARATORS[separator]}, and {others} of its first "
            f"{len(rows)} rows have another number of cells than the header line ({header}); "
            "correct them, or put cells that hold this separator in quotes"
        )


@cache  # a command may read a file several times
def _note_once(text: str) -> None:
    note(text)


def _table_lines(name: str) -> Iterator[str]:
    """The lines of a table, with their ends; a carriage return inside a line is part of a cell."""
    return text_lines(name, line_end(name))


def _quotes_enclose_cells(name: str) -> bool:
    """Whether quotes enclose cells between tabs, as R, pandas and Excel write them: some cell
    begins with a quote, and all of these end with one. In other files quotes are part of the text,
    and also where they would join lines that have as many cells as all others."""

    def lines() -> Iterator[str]:
        for line in _table_lines(name):
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


def _csv_rows(name: str, layout: Layout) -> Iterator[list[str]]:
    """The rows of cells. InputError for a quote that is never closed or stands inside a cell, and
    for a carriage return in a cell without quotes: they may have swallowed or divided rows."""
    number = -layout.lines_above  # 0 is the header
    try:
        for row in csv.reader(_table_lines(name), delimiter=layout.separator, strict=True):
            yield row
            number += 1
    except csv.Error as error:
        raise InputError(
            f"{name}, row {number}: {error}; correct it, a quote may be open, or stand inside a "
            "cell without a second one, or a carriage return in a cell without quotes"
        ) from error


def _unquoted_rows(name: str) -> Iterator[list[str]]:
    """Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    inside a line."""
    for line in _table_lines(name):
        line = line.rstrip("\n").removesuffix("\r")
        yield line.split("\t") if line else []


def read_xlsx(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a sheet of a workbook; one without cells is blank. InputError if there is no
    sheet of the name."""
    import_optional("openpyxl", "excel", f"reading {name}")
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it is larger than {LARGEST:,} bytes when it is unpacked")
        with pd.ExcelFile(name, "openpyxl") as book:
            sheet = options.sheet or str(book.sheet_names[0])
            if sheet not in book.sheet_names:
                raise InputError(f"{name}: no sheet {sheet!r}; it has: {listed(book.sheet_names)}")
            other_sheets = listed(book.sheet_names[1:])
            if options.sheet is None and other_sheets:
                _note_once(
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
    some are counted in a note; a row with more cells than the first has a fault."""
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
        fault = ""
        if len(cells) > len(columns):
            fault = f"{len(cells)} fields instead of {len(columns)}"
        elif len(cells) > 1 and cells == columns and not first_is_data:
            fault = "repeats the names of the columns"
        short_rows += len(cells) < len(columns)
        yield Record(dict(zip_longest(columns, cells[: len(columns)], fillvalue="")), fault)
    if short_rows:
        _note_once(
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
