"""Readers of tables: text with cells between separators, and workbooks."""

import csv
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import chain, count, zip_longest
from typing import Any, NamedTuple

from exlm.data.columns import check_different, listed
from exlm.data.files import LARGEST, LONGEST, first_lines, open_text, text_lines
from exlm.errors import InputError, first_line, import_optional

QUOTES_SAMPLE = 2**18  # characters of a file in which quotes around cells are looked for
SEPARATORS = ",;\t|"
# a cell between tabs that begins with a quote and has two in a row
DOUBLED_QUOTE = re.compile(r'(^|\t)"([^"]|"")*?""', re.MULTILINE)


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


def read_csv(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a text whose cells are usually divided by commas; missing ones at the end of a
    row are ""."""
    return _separated(name, options, _separator(name, ","))


def _separated(name: str, options: TableOptions, separator: str) -> Iterator[Record]:
    rows = _csv_rows(name, separator)
    if _named_separator(first_lines(name)):
        next(rows)
    return _records(rows, options, name, may_be_short=True)


def read_tsv(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a text whose cells are usually divided by tabs."""
    separator = _separator(name, "\t")
    # Columns are given for files of GLUE, in which quotes are part of the text.
    may_have_quotes = not options.columns_if_missing
    if separator != "\t" or (may_have_quotes and _has_quoted_cells(name)):
        return _separated(name, options, separator)
    return _records(_tsv_rows(name), options, name, may_be_short=False)


def _has_quoted_cells(name: str) -> bool:
    """Whether quotes enclose cells between tabs, as R, pandas and Excel write them: every cell of
    the first 256 KiB that begins with a quote also ends with one, and the first cell does, or a
    quote inside is doubled, or all cells with commas do, as in a column that came from a .csv file.
    In other files quotes are part of the text."""
    with open_text(name) as file:
        sample = file.read(QUOTES_SAMPLE)
    if _needs_quotes(sample):
        return True
    with_commas = [cell for cell in re.split("[\t\n]", sample) if "," in cell]
    is_one_column = "\t" not in sample
    needs_quotes = with_commas or is_one_column
    commas_are_quoted = needs_quotes and all(cell.startswith('"') for cell in with_commas)
    if not (sample.startswith('"') or DOUBLED_QUOTE.search(sample) or commas_are_quoted):
        return False
    try:
        for _ in csv.reader(io.StringIO(sample, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error as error:
        is_cut = len(sample) == QUOTES_SAMPLE
        return is_cut and "end of data" in str(error)
    return True


def _needs_quotes(sample: str) -> bool:
    """Whether all rows have as many fields only if quotes enclose cells, which then hold tabs or
    ends of lines."""
    try:
        rows = list(csv.reader(io.StringIO(sample, newline=""), delimiter="\t"))[:-1]
    except csv.Error:
        return False
    lines = sample.split("\n")[:-1]
    widths_of_rows = {len(row) for row in rows if row}
    widths_of_lines = {line.count("\t") + 1 for line in lines if line}
    return len(widths_of_rows) == 1 < len(widths_of_lines)


def _separator(name: str, usual: str) -> str:
    """The separator of a table: the one that its first line names, or the one that divides all
    lines alike, or, if the first line lacks the usual one, most lines alike, into most fields; else
    the usual one."""
    lines = first_lines(name)
    if named := _named_separator(lines):
        return named
    candidates = [mark for mark in SEPARATORS if _divides(lines, mark, least_share=1)]
    if not candidates and lines and usual not in lines[0]:
        candidates = [mark for mark in SEPARATORS if _divides(lines, mark, least_share=0.51)]
    # decimal commas may divide a line, but into fewer fields than the separator
    candidates.sort(key=lambda mark: lines[0].count(mark), reverse=True)
    counts = [lines[0].count(mark) for mark in candidates]
    return candidates[0] if counts and counts.count(counts[0]) == 1 else usual


def _divides(lines: list[str], mark: str, least_share: float) -> bool:
    """Whether a separator divides the first line, and divides no other into more fields and at
    least this share of them into as many."""
    first, *others = [len(row) for row in csv.reader(lines, delimiter=mark)] or [0]
    return (
        first > 1
        and max(others, default=0) <= first
        and others.count(first) >= least_share * len(others)
    )


def _named_separator(lines: list[str]) -> str | None:
    """The separator that Excel's first line names: `sep=;`."""
    match = re.fullmatch('"?sep=([,;\t])"?', lines[0]) if lines else None
    return match and match[1]


def _csv_rows(name: str, separator: str) -> Iterator[list[str]]:
    """The rows of cells; a note says of a row that may have swallowed others. InputError if the
    last cell has a quote that is never closed."""
    lines: list[str] = []  # of the row that is read
    rows = csv.reader(_remembered(text_lines(name), lines), delimiter=separator)
    separators = 0
    for number in count():  # 0 is the header, where there is one
        last_lines = lines.copy()
        lines.clear()
        limit = csv.field_size_limit(LONGEST)
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise InputError(
                f"{name}, row {number}: {error}; correct it, a quote may be open"
            ) from error
        finally:
            csv.field_size_limit(limit)  # other readers in this process have their own limit
        if row is None:
            if _has_open_quote(last_lines, separator):
                behind = last_lines[0].strip().rpartition('"')[2]
                raise InputError(
                    f"{name}: the quote before {behind[:40]!r} is never closed; the last "
                    f"{len(last_lines)} lines are one row, or the end of the file is missing"
                )
            return
        if number == 0:
            separators = lines[0].count(separator)
        has_lines_in_a_cell = separators > 0 and len(lines) > 2
        if has_lines_in_a_cell and all(line.count(separator) == separators for line in lines):
            _note_lines_in_a_cell(name, number, len(lines))
        yield row


def _remembered(lines: Iterator[str], memory: list[str]) -> Iterator[str]:
    for line in lines:
        memory.append(line)
        yield line


def _has_open_quote(lines: list[str], separator: str) -> bool:
    try:
        for _ in csv.reader(lines, delimiter=separator, strict=True):
            pass
    except csv.Error as error:
        return "end of data" in str(error)
    return False


@cache  # a command may read a file several times
def _note_lines_in_a_cell(name: str, row: int, lines: int) -> None:
    print(
        f"note: {name}, row {row}: one cell holds {lines} lines which look like rows; a quote may "
        "be missing",
        file=sys.stderr,
    )


def _tsv_rows(name: str) -> Iterator[list[str]]:
    """Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    inside a line."""
    for line in text_lines(name, newline="\n"):
        line = line.rstrip("\n").removesuffix("\r")
        yield line.split("\t") if line else []


def read_xlsx(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a sheet of a workbook. InputError if there is none of the name."""
    openpyxl = import_optional("openpyxl", "excel", f"reading {name}")
    sheet = options.sheet
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it is larger than {LARGEST:,} bytes when it is unpacked")
        with closing(openpyxl.load_workbook(name, read_only=True, data_only=True)) as book:
            sheets = {entry.title: entry for entry in book.worksheets}
            if sheet is not None and sheet not in sheets:
                raise InputError(f"{name}: no sheet {sheet!r}; it has: {listed(sheets)}")
            if sheet is None:
                sheet = next(iter(sheets))
                _name_sheet(name, sheet, listed(other for other in sheets if other != sheet))
            with closing(openpyxl.load_workbook(name, read_only=True)) as formulas:
                rows = _xlsx_rows(name, sheets[sheet], formulas[sheet])
                yield from _records(rows, options, name, may_be_short=True)
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error


@cache  # a command may read a file several times
def _name_sheet(name: str, sheet: str, others: str) -> None:
    if others:
        print(
            f"note: of {name}, the sheet {sheet!r} is read; there are also: {others} (labelled "
            "data: --sheet; else save the sheet as a file of its own)",
            file=sys.stderr,
        )


def _xlsx_rows(name: str, sheet: Any, formulas: Any) -> Iterator[list[Any]]:
    """The rows of a sheet. A row without cells is blank; one with a label of 0 or False is not.
    `formulas` is the same sheet, read with formulas in place of their values. InputError if it has
    formulas and no values of them: only spreadsheet programs compute them."""
    limit = 2**20  # as many rows as Excel can have
    both = zip(
        sheet.iter_rows(max_row=limit, values_only=True),
        formulas.iter_rows(max_row=limit, values_only=True),
        strict=True,
    )
    formula = None
    has_values = False
    for row, contents in both:
        for value, content in zip(row, contents, strict=False):
            if value != content:
                formula = content
                has_values |= value is not None
        cells = ["" if cell is None else cell for cell in row]
        yield cells if any(cell != "" for cell in cells) else []
    if formula is not None and not has_values:
        raise InputError(
            f"{name} has formulas such as {formula!r} without their values; "
            "open it in a spreadsheet program and save it again, or paste values over them"
        )


def _records(
    rows: Iterator[list[Any]], options: TableOptions, name: str, may_be_short: bool
) -> Iterator[Record]:
    """Rows of cells as records. With `may_be_short`, missing cells at the end of a row are "", and
    no fault."""
    first = next(rows, None)
    if first is None:
        return
    columns, first_is_data = _columns(first, options)
    check_different(columns, name)
    if first_is_data:
        rows = chain([first], rows)
    for cells in rows:
        if not cells:
            yield Record({})
            continue
        fault = ""
        if len(cells) > len(columns) or (len(cells) < len(columns) and not may_be_short):
            fault = f"{len(cells)} fields instead of {len(columns)}"
        elif len(cells) > 1 and cells == columns and not first_is_data:
            fault = "repeats the names of the columns"
        yield Record(dict(zip_longest(columns, cells[: len(columns)], fillvalue="")), fault)


def _columns(first: list[Any], options: TableOptions) -> tuple[list[str], bool]:
    """The names of a table's columns, and whether its first row is data already."""
    if not options.header:
        return [f"column {i}" for i in range(1, len(first) + 1)], True
    if options.columns_if_missing and set(options.columns_if_missing).isdisjoint(first):
        return list(options.columns_if_missing), True
    return [str(cell) or f"Unnamed: {i}" for i, cell in enumerate(first)], False
