"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
import json
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, first_line
from ..storage import replacing
from .columns import check_header
from .files import STANDARD_INPUT, open_text, unreadable
from .formats import FAULT, READERS, Header, Record, format_of
from .readers import formats


def read_frame(path: str | Path, header: Header = True) -> pd.DataFrame:
    """A whole table, read from a file in any format of SUFFIXES or from standard input (`-`).

    Cells of CSV and TSV stay the strings that the file holds ("" where empty), so that they can be written back
    unchanged; Parquet, JSONL and Excel cells keep their types. Rows with another number of fields than the header are
    cut or filled up with "" and must not be used: `frame.attrs["malformed"]` has the reasons by row, from 0. `header`
    is False for a table without a header line, or it has the columns of a file that may lack this line.

    InputError for a missing, empty or unreadable file, and for two columns with the same name."""
    return next(read_frames(path, header))


def read_frames(
    path: str | Path, header: Header = True, rows: int | None = None, like: pd.DataFrame | None = None
) -> Iterator[pd.DataFrame]:
    """The table of `read_frame` in parts of at most `rows` rows, in constant memory. The index counts the rows of the
    file, from 0. Each part has the columns and types that its rows need, or those of the frame `like`."""
    kind, start = format_of(path), 0
    if kind is None:
        raise InputError(f"{path}: unknown file type; use a {formats()}")
    with unreadable(path):
        for records in _parts(kind, path, header, rows):
            if isinstance(records, pd.DataFrame):
                frame, faults = records.reset_index(drop=True), {}
            else:
                faults = {row: record.pop(FAULT) for row, record in enumerate(records, start) if FAULT in record}
                frame = pd.DataFrame(records, columns=None if like is None else like.columns)
                frame = frame if kind == "jsonl" else frame.fillna("")
            if not start and len(faults) == len(frame) > 0:
                first = f"no row can be used, the first: {faults[0]}"
                raise InputError(f"{path}: {first}; check the header and the separator")
            frame = frame if like is None else frame.astype(like.dtypes)
            frame.index += start
            frame.attrs["malformed"] = faults
            start += len(frame)
            if len(frame):
                yield frame
    if not start:
        raise InputError(f"{path}: holds no data rows")


def _parts(kind: str, path: str | Path, header: Header, rows: int | None) -> Iterator[pd.DataFrame | list[Record]]:
    """At most `rows` rows of a file at a time, without the blank lines at its end."""
    if kind == "parquet" and rows is None:
        yield pd.read_parquet(path)
    elif kind == "parquet":
        with pq.ParquetFile(path) as file:
            yield from (pa.Table.from_batches([batch]).to_pandas() for batch in file.iter_batches(rows))
    else:
        records = _without_blank_end(READERS[kind](str(path), header, partial(_all_columns, str(path))))
        while part := list(islice(records, rows)):
            yield part


def _without_blank_end(records: Iterator[Record]) -> Iterator[Record]:
    blank = 0
    for record in records:
        if record:
            yield from ({} for _ in range(blank))
            yield record
        blank = 0 if record else blank + 1


def _all_columns(path: str, columns: list[str]) -> list[str]:
    if len(set(columns)) < len(columns):
        check_header(columns, path)
        twice = max(columns, key=columns.count)
        raise InputError(f"{path}: two columns are called {twice!r}; rename or remove one of them")
    return columns


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, plain or compressed. Raises InputError if it cannot be read."""
    with unreadable(path), open_text(path) as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise InputError(f"{path} cannot be read: {first_line(error)}; correct the JSON") from error


def write_frame(frame: pd.DataFrame, path: Path, header: bool = True) -> None:
    """Write a .csv, .tsv, .parquet or .xlsx file, whole or not at all. InputError for cells that TSV cannot hold."""
    with replacing(path) as unfinished:
        if path.suffix == ".parquet":
            pq.write_table(as_arrow(frame), unfinished)
        elif path.suffix == ".csv":
            frame.to_csv(unfinished, index=False, header=header)
        elif path.suffix == ".xlsx":
            frame.to_excel(unfinished, index=False)
        elif any(column.astype(str).str.contains("[\t\n\r]", na=False).any() for _, column in frame.items()):
            raise InputError(f"{path}: a cell holds a tab or line break; write a .csv or .parquet file")
        else:
            frame.to_csv(unfinished, index=False, header=header, sep="\t", quoting=csv.QUOTE_NONE)


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    """The frame as an Arrow table. Where a column has cells of several types, as in JSONL, all cells become strings."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except pa.ArrowException:
        return pa.Table.from_pandas(frame.astype(str), preserve_index=False)


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with further columns. If a name is taken, "exlm " is put before the new one: nothing is overwritten."""
    free = {}
    for name, values in columns.items():
        while name in frame:
            name = f"exlm {name}"
        free[name] = values
    return pd.concat([frame, pd.DataFrame(free, frame.index)], axis=1)


def output_path(model: str, input: str, output: str | None, ending: str, suffixes: tuple[str, ...]) -> Path:
    """Where to write: `output`, or a name beside the input that also names the model, as each has its own results."""
    if not output and input == STANDARD_INPUT:
        raise InputError("standard input has no name to derive another from; name the file to write with --output")
    beside = Path(input).with_name(f"{Path(input).name.split('.')[0]}-{Path(model).resolve().name}-{ending}")
    target = Path(output) if output else beside
    if target.resolve() == Path(input).resolve():
        raise InputError(f"{target} is the input itself; choose another name for --output")
    if target.suffix not in suffixes:
        raise InputError(f"cannot write {target}; the name must end in {' or '.join(suffixes)}")
    if target.suffix == ".xlsx" and find_spec("openpyxl") is None:
        raise InputError(f"writing {target} needs openpyxl; install it with: pip install openpyxl")
    return target
