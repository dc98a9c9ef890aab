"""Writes data frames as files, and gives cells the types that a format can hold."""

import csv
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import is_numeric_dtype

from exlm.data.cell_texts import as_json, text_to_write
from exlm.data.columns import listed
from exlm.data.delimited import AS_PROGRAMS_WRITE, TableLayout
from exlm.data.open_files import note_once
from exlm.errors import InputError, first_line
from exlm.storage.files import check_suffix, replacing, sync

LONGEST_CELL = 32767  # characters in a cell of a workbook
ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")  # of tables that are written
# what writing raises if a format cannot hold a cell
CANNOT_HOLD = (ValueError, TypeError, OverflowError, pa.ArrowException)
CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f]"  # characters that a workbook cannot hold


def write_frame(
    frame: pd.DataFrame,
    path: Path,
    header: bool = True,
    layout: TableLayout = AS_PROGRAMS_WRITE,
) -> None:
    """Writes a file with one of the ENDINGS, whole or not at all; lists as JSON where a format has
    none. Texts stay texts. `layout` is that of a .csv file, and says for .tsv and .xlsx files which
    headings are empty. InputError for another ending, and for names and cells that a format cannot
    hold, such as times with a zone."""
    check_suffix(path, ENDINGS)
    with replacing(path) as file:
        _write_or_refuse(frame, file, path, header, layout)
        sync(file)


def check_cells(frame: pd.DataFrame, path: Path) -> None:
    """Raises InputError if the file `path`, for which work is still to be done, cannot hold cells
    of the frame: JSON, for example, has no infinite numbers."""
    if path.suffix in ENDINGS:
        with TemporaryDirectory() as folder:
            _write_or_refuse(frame, Path(folder) / "cells", path)


def _write_or_refuse(
    frame: pd.DataFrame,
    file: Path,
    path: Path,
    header: bool = True,
    layout: TableLayout = AS_PROGRAMS_WRITE,
) -> None:
    """Writes to `file`, which is named otherwise until it is whole, what `path` shall have, whose
    ending says the format. InputError for cells that this cannot hold."""
    if path.suffix == ".tsv":
        layout = TableLayout("\t", without_names=layout.without_names)

    def write(columns: pd.DataFrame, file: Path, ending: str = path.suffix) -> None:
        if ending == ".parquet":
            pq.write_table(as_arrow(columns), file)
        elif ending == ".jsonl":
            _write_lines(columns, file)
        elif ending == ".xlsx":
            _write_sheet(_without_lists(columns), file, layout)
        else:
            _write_text(_without_lists(columns), file, header, layout)

    try:
        write(frame, file)
    except CANNOT_HOLD as error:
        way_out = "leave the column out"
        for ending in (".jsonl", ".parquet"):
            if not _name_refused_column(frame, partial(write, ending=ending)):
                way_out = f"write a {ending} file, or leave the column out"
        raise InputError(
            f"{path} cannot hold a column of the table{_name_refused_column(frame, write)}: "
            f"{first_line(error)}; {way_out}"
        ) from error


def _name_refused_column(frame: pd.DataFrame, write: Callable[[pd.DataFrame, Path], None]) -> str:
    """The words `, 'name'` for a column that cannot be written by itself; "" if every one can."""
    with TemporaryDirectory() as folder:
        for name in frame:
            try:
                write(frame[[name]], Path(folder) / "column")
            except CANNOT_HOLD:
                return f", {str(name)[:80]!r}"
    return ""


def _write_text(frame: pd.DataFrame, file: Path, header: bool, layout: TableLayout) -> None:
    quoting: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL
    if layout.separator == "\t":
        # Readers differ in whether a quote is part of a cell; if all cells have them, none is.
        has_marks = _any_text_has(frame, '^"|[\t\n\r]')
        quoting = csv.QUOTE_ALL if has_marks else csv.QUOTE_NONE
    elif _any_text_has(frame, "\r"):
        # pandas would leave a carriage return without quotes, and read it as a line's end.
        quoting = csv.QUOTE_NONNUMERIC
    frame.to_csv(
        file,
        sep=layout.separator,
        decimal=layout.decimal,
        index=False,
        header=layout.headings(frame) if header else False,
        quoting=quoting,
    )


def _any_text_has(frame: pd.DataFrame, pattern: str) -> bool:
    return any(texts.str.contains(pattern, na=False).any() for texts in _names_and_texts(frame))


def _names_and_texts(frame: pd.DataFrame) -> Iterator[pd.Series]:
    """What is written of every column as text: its name, and its cells unless they are numbers."""
    for name, column in frame.items():
        cells = column.iloc[:0] if is_numeric_dtype(column) else column
        yield pd.Series([str(name), *cells.astype(str)])


def _write_lines(frame: pd.DataFrame, file: Path) -> None:
    # pandas would round numbers to 15 digits
    cells = frame.astype(object).where(frame.notna(), None)
    with file.open("w", encoding="utf-8") as stream:
        for record in cells.to_dict("records"):
            print(as_json(record), file=stream)


def _write_sheet(frame: pd.DataFrame, file: Path, layout: TableLayout) -> None:
    """Writes an .xlsx file. A text that begins with = stays a text, and is no formula. A whole
    number of more than 15 digits becomes a text, because spreadsheet programs would round it.
    ValueError for texts that a workbook cannot hold."""
    for texts in _names_and_texts(frame):
        if texts.str.len().max() > LONGEST_CELL or texts.str.contains(CONTROL).any():
            raise ValueError("its name or texts are too long, or have control characters")
    with pd.ExcelWriter(file, engine="openpyxl") as writer:
        frame.to_excel(writer, index=False, header=layout.headings(frame))
        for row in writer.book.active.iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    cell.data_type = "s"
                elif isinstance(cell.value, int) and abs(cell.value) >= 10**15:
                    cell.value = str(cell.value)


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    """The frame as an Arrow table. The cells of a column that has several types, as in JSONL,
    become strings, but for missing ones."""
    frame = frame.copy(deep=False)
    for name, column in frame.items():
        try:
            pa.Array.from_pandas(column)
        except (pa.ArrowException, OverflowError):
            frame[name] = pd.Series([text_to_write(cell) for cell in column], column.index, object)
    return pa.Table.from_pandas(frame, preserve_index=False)


def _without_lists(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with lists and dicts as JSON."""
    frame = frame.copy(deep=False)
    for name in frame.select_dtypes("object"):
        cells = [as_json(x) if isinstance(x, (list, dict)) else x for x in frame[name]]
        frame[name] = pd.Series(cells, frame.index, dtype=object)
    return frame


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with more columns. If it has a column `vector`, a new one of this name is called
    `exlm vector`: nothing is overwritten."""
    new = {}
    for name, values in columns.items():
        while name in frame or name in new:
            name = f"exlm {name}"
        new[name] = values
    return pd.concat([frame, pd.DataFrame(new, frame.index)], axis=1)


def add_columns(
    frame: pd.DataFrame, columns: dict[str, Any], path: str, command: str
) -> pd.DataFrame:
    """Rows of the file `path` with what a command adds. If the file has columns of these names,
    perhaps of another model, they stay, and a note says once what the new ones are called."""
    result = with_columns(frame, columns)
    new_names = result.columns[len(frame.columns) :]
    renamed = {old: new for old, new in zip(columns, new_names, strict=True) if old != new}
    if renamed:
        note_once(
            f"{path} already has columns called {listed(renamed)}, which stay as they are; what "
            f"{command} adds is called {listed(renamed.values())}"
        )
    return result


def added_name(frame: pd.DataFrame, name: str) -> str:
    """What `with_columns` called the column `name` of the frame that it returned; `name` if it did
    not add one."""
    pattern = re.compile(f"(exlm )*{re.escape(name)}")
    titles = map(str, reversed(frame.columns))
    return next((title for title in titles if pattern.fullmatch(title)), name)
