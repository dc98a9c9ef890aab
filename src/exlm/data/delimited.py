"""Records of texts with cells between separators, as .csv and .tsv files are; and what divides the
cells, and where the header line is."""

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain, takewhile, zip_longest
from typing import Any, NamedTuple

from exlm.data.columns import check_different
from exlm.data.formats import DataFile, Record
from exlm.data.open_files import LONGEST_LINE, first_lines, note_once, text_lines
from exlm.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# A header line as R writes it with its usual separator
NAMES_BETWEEN_SPACES = re.compile(r'"[^"]*"( "[^"]*")+')


class TableLayout(NamedTuple):
    """How a text is divided into cells."""

    separator: str = ","
    lines_above: int = 0  # lines above the table that are not blank
    decimal: str = "."  # for writing: the mark before the decimals of numbers
    without_names: tuple[str, ...] = ()  # for writing: the columns with an empty heading

    def headings(self, names: Iterable[Any]) -> list[str]:
        """What is written above the columns of these names."""
        return ["" if name in self.without_names else str(name) for name in names]


AS_PROGRAMS_WRITE = TableLayout()


def read_delimited(file: DataFile) -> Iterator[list[str]]:
    """The rows of cells of a .csv or .tsv file."""
    csv.field_size_limit(LONGEST_LINE)  # Python's own limit is lower
    layout = find_layout(file)
    # Columns are given for files of GLUE, in which quotes are part of the text.
    has_tabs = layout.separator == "\t"
    is_plain = has_tabs and (file.columns_if_missing or not _quotes_enclose_cells(file.name))
    rows = _unquoted_rows(file.name) if is_plain else _csv_rows(file.name, layout.separator)
    for _ in range(layout.lines_above):
        next(filter(None, rows), None)
    return rows


def _quotes_enclose_cells(name: str) -> bool:
    """Whether quotes enclose cells between tabs, as R, pandas and Excel write them: a cell begins
    with a quote, and all such cells end with one. Quotes that would join lines are part of the
    text if all lines have equally many cells without that."""

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


def _csv_rows(name: str, separator: str) -> Iterator[list[str]]:
    """The rows of cells. InputError for a quote that is never closed or stands inside a cell, and
    for a carriage return in a cell without quotes: they may have swallowed or divided rows."""
    rows = csv.reader(text_lines(name), delimiter=separator, strict=True)
    first_line_of_row = 1
    try:
        for row in rows:
            yield row
            first_line_of_row = rows.line_num + 1
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]  # without advice for programmers
        raise InputError(
            f"{name}, line {first_line_of_row}: {reason}; correct it, a quote may be open, or "
            "stand inside a cell without a second one, or a carriage return in a cell without "
            "quotes"
        ) from error


def _unquoted_rows(name: str) -> Iterator[list[str]]:
    """Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    inside a line."""
    for line in text_lines(name):
        line = line.rstrip("\n").removesuffix("\r")
        yield line.split("\t") if line else []


def records_of(rows: Iterator[list[Any]], file: DataFile) -> Iterator[Record]:
    """Rows of cells as records. Cells that a row lacks at its end are "", and a note counts such
    rows. A row with more cells than the first has a problem. A row of empty cells is blank:
    spreadsheet programs leave such rows behind a table."""
    first = first_row(rows)
    if not first:
        return
    columns, first_is_data = _columns(first, file)
    check_different(columns, file.name)
    if first_is_data:
        rows = chain([first], rows)
    short_rows = 0
    for cells in rows:
        if _is_blank(cells) and len(cells) <= len(columns):
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
            f"rows of {file.name} that have fewer than {len(columns)} cells: {short_rows}; "
            "those that are missing at their ends are read as empty"
        )


def first_row(rows: Iterator[list[Any]]) -> list[Any]:
    """The first row that is not blank; [] if there is none."""
    return next((cells for cells in rows if not _is_blank(cells)), [])


def _is_blank(cells: list[Any]) -> bool:
    return not any(str(cell).strip() for cell in cells)


def _columns(first: list[Any], file: DataFile) -> tuple[list[str], bool]:
    """The names of a table's columns, and whether its first row is data already."""
    if not file.header:
        return [f"column {i}" for i in range(1, len(first) + 1)], True
    if file.columns_if_missing and set(file.columns_if_missing).isdisjoint(first):
        return list(file.columns_if_missing), True
    return name_columns(first), False


def name_columns(headings: list[Any]) -> list[str]:
    """The headings of a table; an empty one becomes a name that no other column has, as pandas
    calls it."""
    names = list(map(str, headings))
    for i, name in enumerate(names):
        if not name:
            name = f"Unnamed: {i}"
            while name in names:
                name += ".1"
            names[i] = name
    return names


def find_layout(file: DataFile) -> TableLayout:
    """How the text of a file is divided. Above the table may stand `sep=;`, as Excel writes it, or
    comments: lines that begin with # and a space. InputError if the header line is divided
    otherwise than all rows."""
    lines = first_lines(file.name)
    named_separator = re.fullmatch('"?sep=([,;\t])"?', lines[0]) if lines else None
    comments = list(takewhile(lambda line: line.startswith("# "), lines))
    lines_above = 1 if named_separator else len(comments)
    table = lines[lines_above:]
    # how many cells every line has, by what divides them
    counts = {mark: [len(row) for row in csv.reader(table, delimiter=mark)] for mark in SEPARATORS}
    separator = named_separator[1] if named_separator else _separator(counts, file)
    if comments:
        note_once(
            f"comments above the table {file.name} are left out (lines: {lines_above}, "
            f"the first: {comments[0][:80]!r})"
        )
    if file.has_names and table:
        _check_header_line(file.name, table[0], counts, separator)
    return TableLayout(separator, lines_above)


def _separator(counts: dict[str, list[int]], file: DataFile) -> str:
    """The separator of a table, whose lines have these `counts` of cells by each separator. It
    divides the first line and at least half of the others into equally many cells; of several, the
    one that divides most lines so, or makes the most cells, because decimal commas make few. Else
    it divides the header line and most others, or is the usual one of the format."""
    usual = "\t" if file.format == "tsv" else ","

    def fit(mark: str) -> tuple[bool, int, int, bool]:
        first_count, *other_counts = counts[mark] or [0]
        alike = other_counts.count(first_count)
        divided = sum(count > 1 for count in other_counts)
        fits_half = first_count > 1 and 2 * alike >= len(other_counts)
        fits_header = first_count > 1 and file.has_names and 2 * divided > len(other_counts)
        if fits_half or fits_header:
            return fits_half, alike, first_count, mark == usual
        return False, 0, 0, mark == usual

    return max(SEPARATORS, key=fit)


def _check_header_line(
    name: str, header: str, counts: dict[str, list[int]], separator: str
) -> None:
    """InputError if the header line of the file `name` is divided otherwise than all rows."""
    if NAMES_BETWEEN_SPACES.fullmatch(header):
        raise InputError(
            f"{name}: there are spaces between the names in its header line; put commas or tabs "
            'between all cells (in R: sep = "\\t", row.names = FALSE)'
        )
    name_count, *cell_counts = counts[separator]
    if not cell_counts:
        return
    in_header = [mark for mark in SEPARATORS if counts[mark][0] > 1]
    in_rows = [mark for mark in SEPARATORS if min(counts[mark][1:]) > 1]
    if in_header and in_rows and not set(in_header) & set(in_rows):
        raise InputError(
            f"{name}: there are {SEPARATORS[in_header[0]]} in its header line, and "
            f"{SEPARATORS[in_rows[0]]} in all rows; put the same between the cells of all lines"
        )
    if set(cell_counts) == {name_count + 1}:
        raise InputError(
            f"{name}: every row has one cell more than its header line has names ({name_count}); "
            "if R wrote it, write it with row.names = FALSE, else name every column, and put cells "
            f"that hold {SEPARATORS[separator]} in quotes"
        )
