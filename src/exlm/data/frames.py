"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError, first_line
from ..storage import replacing
from .columns import check_header
from .files import STANDARD_INPUT, open_text, unreadable
from .formats import FAULT, READERS, Header, format_of
from .readers import formats


def read_frame(path: str | Path, header: Header = True) -> pd.DataFrame:
    """A whole table, read from a file in any format of SUFFIXES or from standard input (`-`).

    Cells of CSV and TSV stay the strings that the file holds ("" where empty), so that they can be written back
    unchanged; Parquet, JSONL and Excel cells keep their types. Rows with another number of fields than the header are
    cut or filled up with "" and must not be used: `frame.attrs["malformed"]` has the reasons by row, from 0. `header`
    is False for a table without a header line, or it has the columns of a file that may lack this line.

    InputError for a missing, empty or unreadable file, and for two columns with the same name."""
    kind = format_of(path)
    if kind is None:
        raise InputError(f"{path}: unknown file type; use a {formats()}")
    with unreadable(path):
        if kind == "parquet":
            frame, faults = pd.read_parquet(path).reset_index(drop=True), {}
        else:
            records = list(READERS[kind](str(path), header, partial(_all_columns, str(path))))
            while records and not records[-1]:  # blank lines at the end
                records.pop()
            faults = {row: record.pop(FAULT) for row, record in enumerate(records) if FAULT in record}
            frame = pd.DataFrame(records) if kind == "jsonl" else pd.DataFrame(records).fillna("")
    if frame.empty:
        raise InputError(f"{path}: holds no data rows")
    if len(faults) == len(frame):
        raise InputError(f"{path}: no row can be used, the first: {faults[0]}; check the header and the separator")
    frame.attrs["malformed"] = faults
    return frame


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


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv, .tsv, .parquet or .xlsx file, whole or not at all. InputError for cells that TSV cannot hold."""
    with replacing(path) as unfinished:
        if path.suffix == ".parquet":
            pq.write_table(as_arrow(frame), unfinished)
        elif path.suffix == ".csv":
            frame.to_csv(unfinished, index=False)
        elif path.suffix == ".xlsx":
            frame.to_excel(unfinished, index=False)
        elif any(column.astype(str).str.contains("[\t\n\r]", na=False).any() for _, column in frame.items()):
            raise InputError(f"{path}: a cell holds a tab or line break; write a .csv or .parquet file")
        else:
            frame.to_csv(unfinished, index=False, sep="\t", quoting=csv.QUOTE_NONE)


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
