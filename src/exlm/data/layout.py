"""What divides the cells of a table in a text file, where its header line is, and what its decimal
sign is, by its first lines."""

import csv
import re
from itertools import chain, takewhile
from typing import NamedTuple

from exlm.data.files import first_lines, note_once
from exlm.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# A header line as R writes it with its usual separator
NAMES_BETWEEN_SPACES = re.compile(r'"[^"]*"( "[^"]*")+')
DECIMAL_COMMA = re.compile(r"-?(\d+|\d{1,3}(\.\d{3})+),\d+%?")
DECIMAL_POINT = re.compile(r"-?\d+\.\d+%?")


class TableLayout(NamedTuple):
    """How a text is divided into cells."""

    separator: str = ","
    lines_above: int = 0  # lines above the table that are not blank
    # A comma if numbers have one, and none has a point. Only cells between semicolons can tell.
    decimal: str = "."


AS_PROGRAMS_WRITE = TableLayout()


def find_layout(name: str, usual: str, has_names: bool) -> TableLayout:
    """How the text of a file is divided; `has_names`: the table has a header line. Above it may
    stand `sep=;`, as Excel writes it, or comments: lines that begin with # and a space. InputError
    if the header line is divided otherwise than all rows."""
    lines = first_lines(name)
    named_separator = re.fullmatch('"?sep=([,;\t])"?', lines[0]) if lines else None
    if named_separator:
        lines_above = 1
        separator = named_separator[1]
    else:
        comments = list(takewhile(lambda line: line.startswith("# "), lines))
        lines_above = len(comments)
        separator = _separator(lines[lines_above:], usual, has_names)
        if comments:
            note_once(
                f"comments above the table {name} are left out (lines: {lines_above}, the first: "
                f"{comments[0][:80]!r})"
            )
    table = lines[lines_above:]
    if has_names and table:
        _check_header_line(name, table, separator)
    return TableLayout(separator, lines_above, _decimal_sign(table, separator))


def _decimal_sign(lines: list[str], separator: str) -> str:
    if separator != ";":
        return "."
    cells = list(chain.from_iterable(csv.reader(lines, delimiter=separator)))
    has_commas = any(map(DECIMAL_COMMA.fullmatch, cells))
    has_points = any(map(DECIMAL_POINT.fullmatch, cells))
    return "," if has_commas and not has_points else "."


def _separator(lines: list[str], usual: str, has_names: bool) -> str:
    """The separator that divides the first line of a table, and half of the others or more, into as
    many cells; of several such the one that divides the most lines, or makes the most cells, as
    decimal commas make fewer. If there is none, one that divides the header line and most others,
    or else the usual one."""

    def fit(mark: str) -> tuple[bool, int, int, bool]:
        header, *rows = _cell_counts(lines, mark) or [0]
        alike = rows.count(header)
        divided_rows = sum(cells > 1 for cells in rows)
        fits_half = header > 1 and 2 * alike >= len(rows)
        fits_header = header > 1 and has_names and 2 * divided_rows > len(rows)
        if fits_half or fits_header:
            return fits_half, alike, header, mark == usual
        return False, 0, 0, mark == usual

    return max(SEPARATORS, key=fit)


def _cell_counts(lines: list[str], separator: str) -> list[int]:
    """How many cells every row in these lines has."""
    return [len(row) for row in csv.reader(lines, delimiter=separator)]


def _check_header_line(name: str, lines: list[str], separator: str) -> None:
    """InputError if a header line, the first of these, is divided otherwise than all rows; a note
    if most rows have another number of cells, and some have more."""
    if NAMES_BETWEEN_SPACES.fullmatch(lines[0]):
        raise InputError(
            f"{name}: there are spaces between the names in its header line; put commas or tabs "
            'between all cells (in R: sep = "\\t", row.names = FALSE)'
        )
    counts = {mark: _cell_counts(lines, mark) for mark in SEPARATORS}
    names, *cells = counts[separator]
    if not cells:
        return
    in_header = [mark for mark in SEPARATORS if counts[mark][0] > 1]
    in_rows = [mark for mark in SEPARATORS if min(counts[mark][1:], default=0) > 1]
    if in_header and in_rows and not set(in_header) & set(in_rows):
        raise InputError(
            f"{name}: there are {SEPARATORS[in_header[0]]} in its header line, and "
            f"{SEPARATORS[in_rows[0]]} in all rows; put the same between the cells of all lines"
        )
    if set(cells) == {names + 1}:
        raise InputError(
            f"{name}: every row has one cell more than its header line has names ({names}); "
            "if R wrote it, write it with row.names = FALSE, else name every column, and put cells "
            f"that hold {SEPARATORS[separator]} in quotes"
        )
    others = len(cells) - cells.count(names)
    if 2 * others > len(cells) and max(cells) > names > 1:
        note_once(
            f"{name} is read as cells between {SEPARATORS[separator]}, and {others} of its first "
            f"{len(cells)} rows have another number of cells than the header line ({names}); "
            "correct them, or put cells that hold this separator in quotes"
        )
