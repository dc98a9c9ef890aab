"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.readers import COMPRESSIONS, not_utf8, open_text
from exlm.errors import InputError
from exlm.storage import replacing


def read_frame(path: str | Path, header: Sequence[str] = ()) -> pd.DataFrame:
    """Read CSV, TSV (also .txt) or JSONL, plain or compressed (.gz, .xz, .zst), or Parquet (which compresses itself).

    CSV and TSV cells stay the strings that the file holds ("" where empty), so that they can be written back
    unchanged. In TSV, quotes are ordinary characters, and rows with more or fewer fields than the header are cut or
    filled up with "". Such rows must not be used: `frame.attrs["malformed"]`, a dictionary, tells the reason by row.
    `header` has the columns of a TSV file without header line. (If its first line has a name of `header`, that line is
    a header.) InputError for a missing, empty or unreadable file, and for two columns with the same name.
    """
    path = Path(path)
    with _one_sentence(path):
        match plain_suffix(path):
            case ".csv":
                frame = pd.read_csv(path, dtype=str, keep_default_na=False).fillna("")
                if not isinstance(frame.index, pd.RangeIndex):  # pandas has made an index of the extra fields
                    raise InputError(f"{path}: its rows have more fields than its header; name every column")
            case ".tsv" | ".txt":
                frame = _read_tsv(path, header)
            case ".jsonl":
                frame = pd.read_json(path, lines=True, dtype=False, convert_dates=False)
            case ".parquet":
                frame = pd.read_parquet(path).reset_index(drop=True)
            case _:
                raise InputError(
                    f"{path}: unknown file type; use .csv, .tsv, .txt, .jsonl or .parquet (text also .gz, .xz, .zst)"
                )
    if frame.empty:
        raise InputError(f"{path}: holds no data rows")
    if twice := frame.columns[frame.columns.duplicated()].tolist():
        raise InputError(f"{path}: two columns are called {twice[0]!r}; rename or remove one of them")
    return frame


def _read_tsv(path: Path, header: Sequence[str]) -> pd.DataFrame:
    with open_text(str(path), newline="\n") as file:
        rows = [line.rstrip("\n").removesuffix("\r").split("\t") for line in file]
    while rows and rows[-1] == [""]:
        rows.pop()
    columns = list(header) if header and not (rows and set(header) & set(rows[0])) else rows.pop(0) if rows else []
    width = len(columns)
    wrong = {row: f"{len(fields)} fields instead of {width}" for row, fields in enumerate(rows) if len(fields) != width}
    if rows and len(wrong) == len(rows):
        raise InputError(f"{path}: no row has the {width} fields of the header; is it separated by tabs?")
    frame = pd.DataFrame([(fields + [""] * width)[:width] for fields in rows], columns=columns, dtype=str)
    frame.attrs["malformed"] = wrong
    return frame


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, plain or compressed. Raises InputError if it cannot be read."""
    with _one_sentence(Path(path)), open_text(str(path)) as file:
        return json.load(file)


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes an InputError that names it."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8: {not_utf8(str(path))}; convert it, or remove what is damaged") from None
    except Exception as error:  # every format and compression has errors of its own; the file is at fault
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read: {reason}; check that it is complete") from error


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv, .tsv or .parquet file, whole or not at all; InputError for cells that a TSV file cannot hold."""
    with replacing(path) as unfinished:
        if path.suffix == ".parquet":
            frame.to_parquet(unfinished, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(unfinished, index=False)
        elif any(column.astype(str).str.contains("[\t\n\r]", na=False).any() for _, column in frame.items()):
            raise InputError(f"{path}: a cell holds a tab or line break; write a .csv or .parquet file")
        else:
            frame.to_csv(unfinished, index=False, sep="\t", quoting=csv.QUOTE_NONE)


def with_columns(frame: pd.DataFrame, columns: dict[str, Any]) -> pd.DataFrame:
    """`frame` with further columns. If a name is taken, "exlm " is put before the new one: nothing is overwritten."""
    result = frame.copy()
    for name, values in columns.items():
        while name in frame:
            name = f"exlm {name}"
        result[name] = values
    return result


def output_path(input: str, output: str | None, ending: str, suffixes: tuple[str, ...]) -> Path:
    """Where to write: `output`, or a name beside the input."""
    target = Path(output) if output else Path(input).with_name(f"{Path(input).name.split('.')[0]}-{ending}")
    if target.suffix not in suffixes:
        raise InputError(f"cannot write {target}; the name must end in {' or '.join(suffixes)}")
    return target


def plain_suffix(path: Path) -> str:
    """The suffix of a file's format, in lower case and without the suffix of a compression."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()


def check_columns(frame: pd.DataFrame, path: str | Path, *names: str | None) -> None:
    """Raises InputError for the first name that is not a column of the frame read from `path`. None is skipped."""
    for name in names:
        if name is not None and name not in frame.columns:
            raise InputError(f"{path}: no column {name!r}; it has: {listed(frame)}")


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, cut short after `limit`."""
    items = [str(name) for name in names]
    return ", ".join(items[:limit]) + (f", ... ({len(items)} in all)" if len(items) > limit else "")
