"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from exlm.data.columns import check_different
from exlm.data.files import LARGEST, open_text, read_errors
from exlm.data.formats import READABLE, READERS, check_sheet, reader_name
from exlm.data.tabular import AS_USUAL, Record, TableOptions
from exlm.errors import InputError, first_line
from exlm.storage.files import replacing, sync

LONGEST_CELL = 32767  # characters in a cell of a workbook
# A number as programs write it. Zeros in front, more digits than a float has, and an exponent
# without a sign, as in the well 1E02, are an id's.
NUMBER = r"(?!-0$)-?(0|[1-9]\d{0,14})(\.\d+)?([eE][+-]\d{1,3})?"
# Formats in which programs write numbers: Python's own, the shortest, and as many decimals in all
# cells. Each writes different numbers differently, and writes a number in one way.
NUMBER_FORMATS = ("", ".15g", ".15G", *(f".{n}{kind}" for n in range(18) for kind in "feE"))
# beside formats: whatever they are written in, no two cells spell one number
DISTINCT = "distinct"
CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f]"  # what a workbook has no place for


class FileRows(NamedTuple):
    """Rows of a file, and why some of them must not be used."""

    frame: pd.DataFrame
    faults: Mapping[Any, str] = {}  # by the row's entry in the index of the frame

    @property
    def faults_of_rows(self) -> list[str]:
        """[rows] why a row must not be used, "" if it may."""
        return [self.faults.get(row, "") for row in self.frame.index]


def read_frame(path: str | Path, options: TableOptions = AS_USUAL) -> pd.DataFrame:
    """The frame of `read_file`, for those who do not ask which rows must not be used."""
    return read_file(path, options).frame


def read_file(path: str | Path, options: TableOptions = AS_USUAL) -> FileRows:
    """A whole table, read from a file in any format of SUFFIXES or from standard input (`-`).

    Cells of CSV and TSV stay the strings that the file holds ("" where empty), so that they can be
    written back unchanged; Parquet, JSONL and Excel cells keep their types. Rows with another
    number of fields than the header are cut or filled up with "" and must not be used.

    InputError for a missing, empty or unreadable file, and for two columns with the same name."""
    return next(read_file_chunks(path, options))


def read_file_chunks(
    path: str | Path,
    options: TableOptions = AS_USUAL,
    rows: int | None = None,
    like: pd.DataFrame | None = None,
) -> Iterator[FileRows]:
    """The table of `read_file` in chunks of at most `rows` rows, in constant memory. The index
    counts the rows of the file, from 0. Each chunk has the columns and types that its rows need, or
    those of the frame `like`."""
    kind = reader_name(path, options)
    if kind is None:
        raise InputError(f"{path}: unknown file type; use a {READABLE}")
    check_sheet(options.sheet, [path])
    columns = None if like is None else like.columns
    start = 0
    with read_errors(path):
        for frame, faults in _chunks(kind, path, options, rows, columns):
            if start == 0 and len(faults) == len(frame) > 0:
                raise InputError(
                    f"{path}: no row can be used, the first: {faults[0]}; "
                    "check the separator and the header"
                )
            if like is not None:
                frame = frame.astype(like.dtypes)
            frame.index += start
            faults = {start + row: fault for row, fault in faults.items()}
            start += len(frame)
            if len(frame):
                yield FileRows(frame, faults)
    if not start:
        raise InputError(f"{path}: holds no data rows")


def _chunks(
    kind: str,
    path: str | Path,
    options: TableOptions,
    rows: int | None,
    columns: pd.Index | None,
) -> Iterator[tuple[pd.DataFrame, dict[int, str]]]:
    """At most `rows` rows of a file at a time, without the blank lines at its end. Parquet files do
    not become records first, as they do for `prepare`: their columns would lose their types."""
    if kind == "parquet":
        with pq.ParquetFile(path) as file:
            check_different(file.schema_arrow.names, path)
            for table in file.iter_batches(rows) if rows else [file.read()]:
                yield _from_arrow(table), {}
        return
    records = _without_blank_end(READERS[kind](str(path), options))
    while chunk := list(islice(records, rows)):
        frame = _with_whole_numbers(chunk, columns)
        faults = {row: record.fault for row, record in enumerate(chunk) if record.fault}
        yield frame if kind == "jsonl" else frame.fillna(""), faults


def _with_whole_numbers(records: list[Record], columns: Any) -> pd.DataFrame:
    """The cells of records. Whole numbers stay whole where some are missing: floats would change
    the last digits of long ones, such as barcodes."""
    frame = pd.DataFrame([record.cells for record in records], columns=columns)
    for name in frame.select_dtypes("float"):
        cells = [record.cells.get(name) for record in records]
        if all(cell is None or type(cell) is int for cell in cells):
            frame[name] = pd.Series(cells, dtype=object)
    return frame


def _from_arrow(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    table.validate(full=True)  # text that is no UTF-8 would be noticed only later
    try:
        # floats would change the last digits of long whole numbers
        frame = table.to_pandas(integer_object_nulls=True)
        # An index is a column like any other, unless it is a range of numbers without a name.
        is_range = isinstance(frame.index, pd.RangeIndex) and frame.index.name is None
        frame = frame.reset_index(drop=is_range)
    except Exception as error:  # damaged metadata of pandas raise anything
        raise pa.ArrowInvalid(first_line(error)) from error
    for name, dtype in frame.dtypes.items():
        # Categories and numbers that may be missing refuse other values, such as an empty text.
        is_text_or_time = isinstance(dtype, pd.StringDtype | pd.DatetimeTZDtype)
        if pd.api.types.is_extension_array_dtype(dtype) and not is_text_or_time:
            frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    for field in table.schema:
        if pa.types.is_nested(field.type) and field.name in frame:
            # As JSONL has them; pandas makes arrays of lists.
            lists = [x.tolist() if isinstance(x, np.ndarray) else x for x in frame[field.name]]
            frame[field.name] = pd.Series(lists, frame.index, object)
    return frame


def _without_blank_end(records: Iterator[Record]) -> Iterator[Record]:
    blank_lines = 0
    for record in records:
        if not record.cells and not record.fault:
            blank_lines += 1
            continue
        yield from [Record({})] * blank_lines
        blank_lines = 0
        yield record


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, plain or compressed. Raises InputError if it cannot be read."""
    with read_errors(path), open_text(path) as file:
        try:
            # In blocks, because one large read would take as much memory for a small file.
            text = ""
            while block := file.read(2**20):
                text += block
                if len(text) > LARGEST:
                    raise ValueError(f"it has more than {LARGEST:,} characters")
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path} cannot be read: {first_line(error)}; correct the JSON"
            ) from error


def number_columns(path: str | Path, frame: pd.DataFrame) -> frozenset[str]:
    """The columns of a file without types (CSV, TSV) in which every cell is empty or a number, and
    none is another spelling of another: 1.1 and 1.10 are ids. They stay texts while rows are read,
    so that a CSV file gets them back as they were; `write_frame` makes them numbers in a format
    that has numbers."""
    return columns_with_format([number_formats(path, frame)])


def number_formats(path: str | Path, frame: pd.DataFrame) -> dict[str, set[str]]:
    """By column of a file without types: those of NUMBER_FORMATS in which all its cells that are
    not empty may have been written, and DISTINCT if no two of them spell one number."""
    if reader_name(path, AS_USUAL) not in ("csv", "tsv"):
        return {}
    formats = {}
    for name, column in frame.select_dtypes(exclude="number").items():
        texts = column.astype(str).drop_duplicates()
        texts = texts[texts.ne("")]
        are_numbers = texts.str.fullmatch(NUMBER).all()
        formats[str(name)] = _formats_of(texts) if are_numbers else set()
        if are_numbers and texts.astype(float).is_unique:
            formats[str(name)].add(DISTINCT)
    return formats


def _formats_of(numbers: Iterable[str]) -> set[str]:
    formats = set(NUMBER_FORMATS)
    for text in numbers:
        formats = {kind for kind in formats if format(float(text), kind) == text}
    return formats


def columns_with_format(formats_of_chunks: Sequence[dict[str, set[str]]]) -> frozenset[str]:
    """The columns of numbers of a table, from `number_formats` of all its chunks. Of several chunks
    they have a format in common, because 1.1 may be in one and 1.10 in another."""
    columns = set()
    for name in formats_of_chunks[0]:
        formats = set.intersection(*(of_chunk[name] for of_chunk in formats_of_chunks))
        if len(formats_of_chunks) > 1:
            formats.discard(DISTINCT)
        if formats:
            columns.add(name)
    return frozenset(columns)


def with_numbers(frame: pd.DataFrame, numbers: Collection[str]) -> pd.DataFrame:
    """The frame, with the texts of some of its `number_columns` as numbers: whole ones where all
    are, missing where a text is empty."""
    frame = frame.copy(deep=False)
    for name in numbers:
        texts = frame[name].mask(frame[name].eq(""))
        # with missing values, plain integers would become floats
        frame[name] = pd.to_numeric(texts, dtype_backend="numpy_nullable")
    return frame


def _write_sheet(frame: pd.DataFrame, file: Path) -> None:
    """Writes an .xlsx file. A text that begins with = stays a text, and is no formula. A whole
    number of more than 15 digits becomes a text, because spreadsheet programs would round it.
    ValueError for texts that a workbook cannot hold."""
    for name, column in frame.select_dtypes(exclude="number").items():
        texts = column.astype(str)
        if texts.str.len().max() > LONGEST_CELL or texts.str.contains(CONTROL).any():
            raise ValueError(f"{name} has texts that are too long, or control characters")
    with pd.ExcelWriter(file, engine="openpyxl") as writer:
        frame.to_excel(writer, index=False)
        for row in writer.book.active.iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    cell.data_type = "s"
                elif isinstance(cell.value, int) and abs(cell.value) >= 10**15:
                    cell.value = str(cell.value)


def write_frame(
    frame: pd.DataFrame, path: Path, header: bool = True, numbers: Collection[str] = ()
) -> None:
    """Write a .csv, .tsv, .jsonl, .parquet or .xlsx file, whole or not at all; lists as JSON where
    a format has none. The texts of the columns `numbers` become numbers where a format has them.
    InputError for cells that a format cannot hold, such as times with a zone."""
    if path.suffix not in (".csv", ".tsv"):
        frame = with_numbers(frame, numbers)
    if path.suffix not in (".parquet", ".jsonl"):
        frame = frame.copy(deep=False)
        for name in frame.select_dtypes("object"):
            cells = [_without_list(cell) for cell in frame[name]]
            frame[name] = pd.Series(cells, frame.index, dtype=object)
    try:
        with replacing(path) as file:
            _write(frame, file, path.suffix, header)
            sync(file)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{path} cannot hold a column of the table: {first_line(error)}; "
            "write a .parquet file, or leave the column out"
        ) from error


def _write(frame: pd.DataFrame, file: Path, suffix: str, header: bool) -> None:
    if suffix == ".parquet":
        pq.write_table(as_arrow(frame), file)
    elif suffix == ".jsonl":
        # pandas would round numbers to 15 digits
        cells = frame.astype(object).where(frame.notna(), None)
        with file.open("w", encoding="utf-8") as stream:
            for record in cells.to_dict("records"):
                print(_as_json(record), file=stream)
    elif suffix == ".xlsx":
        _write_sheet(frame, file)
    elif suffix == ".csv":
        # pandas would leave a carriage return without quotes, and read it as a line's end.
        quote_texts = _any_text_has(frame, "\r")
        in_csv: Literal[0, 2] = csv.QUOTE_NONNUMERIC if quote_texts else csv.QUOTE_MINIMAL
        frame.to_csv(file, index=False, header=header, quoting=in_csv)
    else:
        # Readers differ in whether a quote is part of a cell; if all cells have them, none is.
        quote_all = _any_text_has(frame, '^"|[\t\n\r]')
        in_tsv: Literal[1, 3] = csv.QUOTE_ALL if quote_all else csv.QUOTE_NONE
        frame.to_csv(file, index=False, header=header, sep="\t", quoting=in_tsv)


def _without_list(cell: Any) -> Any:
    """A list or a record as JSON; any other cell as it is."""
    return _as_json(cell) if isinstance(cell, (list, dict)) else cell


def as_text(cell: Any) -> str | None:
    """A cell as text: a list or a record as JSON; None if it is missing."""
    if isinstance(cell, (list, dict)):
        return _as_json(cell)
    return None if pd.isna(cell) else str(cell)


def _as_json(value: Any) -> str:
    """A value as JSON. Times and other objects become texts. ValueError for infinite numbers."""

    def in_json(item: Any) -> Any:
        if isinstance(item, (np.ndarray, np.generic)):
            return item.tolist()
        return item.isoformat() if hasattr(item, "isoformat") else str(item)

    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=in_json)


def _any_text_has(frame: pd.DataFrame, pattern: str) -> bool:
    texts = frame.select_dtypes(exclude="number").astype(str)
    return any(column.str.contains(pattern, na=False).any() for _, column in texts.items())


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    """The frame as an Arrow table. The cells of a column that has several types, as in JSONL,
    become strings, but for missing ones."""
    frame = frame.copy(deep=False)
    for name, column in frame.items():
        try:
            pa.Array.from_pandas(column)
        except (pa.ArrowException, OverflowError):
            frame[name] = pd.Series([as_text(cell) for cell in column], column.index, object)
    return pa.Table.from_pandas(frame, preserve_index=False)


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with more columns. If a name is taken, "exlm " is put before the new one: nothing is
    overwritten."""
    new = {}
    for name, values in columns.items():
        while name in frame:
            name = f"exlm {name}"
        new[name] = values
    return pd.concat([frame, pd.DataFrame(new, frame.index)], axis=1)
