"""Files of labelled data as data frames: every row and every cell as the file has it."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from exlm.data.columns import check_different, listed
from exlm.data.delimited import find_layout
from exlm.data.formats import DataFile, Record, data_files
from exlm.data.open_files import explain_read_errors, note_once, path_of
from exlm.data.records import READERS
from exlm.errors import InputError

FORMATS_WITH_TYPES = ("parquet", "jsonl")  # in which a missing cell is no empty text
FORMATS_WITHOUT_HEADER = ("jsonl", "sdf")  # in which every row names its own columns


class FileRows(NamedTuple):
    """Rows of a file, and why some of them must not be used."""

    frame: pd.DataFrame
    problems: Mapping[Any, str] = {}  # why, by the row's entry in the index of the frame
    # what divides the cells of CSV and TSV files, by the part of a file ("" for a single file)
    separators: Mapping[str, str] = {}

    @property
    def problems_of_rows(self) -> list[str]:
        """[rows] why a row must not be used, "" if it may."""
        return [self.problems.get(row, "") for row in self.frame.index]


def read_file(path: str | Path, header: bool = True, sheet: str | None = None) -> FileRows:
    """All rows of the file of this name, or of standard input, as `read_frames` reads them."""
    [file] = data_files([path], header, sheet)
    [rows] = read_frames(file)
    return rows


def read_frames(
    file: DataFile, rows: int | None = None, columns: list[str] | None = None
) -> Iterator[FileRows]:
    """The rows of a file: `rows` at a time, in constant memory, or all at once if it is None.

    The index counts the rows of the file, from 0. Each frame has the columns that its rows have, or
    these `columns`. Cells of CSV and TSV stay the strings that the file holds ("" where empty), so
    that they can be written back unchanged; Parquet, JSONL and Excel cells keep their types. Rows
    with another number of fields than the header are cut or filled up with "" and must not be used.

    InputError for a missing, empty or unreadable file, for two columns with the same name, and,
    after the last frame, if no row may be used."""
    first_problem = ""
    any_usable = False
    with explain_read_errors(file.name):
        separators = {}
        if file.format in ("csv", "tsv"):
            separators = {"": find_layout(file).separator}
        if file.format == "parquet":
            frames = _parquet_frames(file.name, rows)
        else:
            frames = _frames_of_records(READERS[file.format](file), rows, columns)
        for rows_of_frame in frames:
            problems = rows_of_frame.problems
            first_problem = first_problem or next(iter(problems.values()), "")
            any_usable = any_usable or len(problems) < len(rows_of_frame.frame)
            if file.format not in FORMATS_WITH_TYPES:
                rows_of_frame = rows_of_frame._replace(frame=rows_of_frame.frame.fillna(""))
            yield rows_of_frame._replace(separators=separators)
    if first_problem and not any_usable:
        raise InputError(
            f"{file.name}: no row can be used, the first: {first_problem}; "
            "check the separator and the header"
        )
    if not any_usable:
        raise InputError(f"{file.name}: holds no data rows")


def find_columns(file: DataFile, rows: int) -> list[Any]:
    """All columns that rows of a file have. It is read to its end, `rows` at a time."""
    names = chain.from_iterable(rows_of_frame.frame for rows_of_frame in read_frames(file, rows))
    return list(dict.fromkeys(names))


def _parquet_frames(name: str, rows: int | None) -> Iterator[FileRows]:
    """At most `rows` rows of a Parquet file at a time. They do not become records first, because
    columns would lose their types."""
    start = 0
    with pq.ParquetFile(path_of(name)) as file:
        check_different(file.schema_arrow.names, name)
        _note_class_names(file.schema_arrow, name)
        for table in file.iter_batches(rows) if rows else [file.read()]:
            if len(table):
                frame = _from_arrow(table)
                frame.index += start
                start += len(frame)
                yield FileRows(frame)


def _note_class_names(schema: pa.Schema, name: str) -> None:
    """Tells the user that of columns of classes that `datasets` wrote the numbers are read. The
    names of these classes are only in the metadata of the file."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata.get("info", {}).get("features", {})
    columns = [
        column for column, feature in features.items() if '"ClassLabel"' in json.dumps(feature)
    ]
    if columns:
        note_once(
            f"{name} has the numbers of classes in {listed(columns)}, and their names elsewhere, "
            "which is not read; to use the names, write them into the column "
            "(dataset.features[NAME].int2str)"
        )


def _frames_of_records(
    records: Iterator[Record], rows: int | None, columns: list[str] | None
) -> Iterator[FileRows]:
    """At most `rows` records at a time, without the blank ones at the end. Whole numbers stay whole
    where some are missing: floats would change the last digits of long ones, such as barcodes."""
    numbered = enumerate(_without_blank_end(records))
    while records_of_frame := dict(islice(numbered, rows)):
        cells_of_rows = [record.cells for record in records_of_frame.values()]
        frame = pd.DataFrame(cells_of_rows, columns=columns)
        for name in frame.select_dtypes("float"):
            cells = [cells_of_row.get(name) for cells_of_row in cells_of_rows]
            if all(cell is None or type(cell) is int for cell in cells):
                frame[name] = pd.Series(cells, dtype=object)
        frame.index += min(records_of_frame)
        problems = {
            row: record.problem for row, record in records_of_frame.items() if record.problem
        }
        yield FileRows(frame, problems)


def _from_arrow(table: pa.Table | pa.RecordBatch) -> pd.DataFrame:
    """The rows as a frame with cells as other formats have them: lists and not arrays, texts and
    not categories, which would refuse other values, such as an empty text."""
    table.validate(full=True)  # text that is no UTF-8 would be noticed only later
    # Without the metadata of pandas, its index is a column like any other. Floats would change the
    # last digits of long whole numbers.
    table = table.replace_schema_metadata(None)
    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        if pa.types.is_nested(field.type) or pa.types.is_dictionary(field.type):
            cells = table[field.name].to_pylist()
            frame[field.name] = pd.Series(cells, frame.index, object)
    if "index" not in frame:
        frame = frame.rename(columns={"__index_level_0__": "index"})  # it had no name
    return frame


def _without_blank_end(records: Iterator[Record]) -> Iterator[Record]:
    blank_lines = 0
    for record in records:
        if not record.cells and not record.problem:
            blank_lines += 1
            continue
        yield from [Record({})] * blank_lines
        blank_lines = 0
        yield record
