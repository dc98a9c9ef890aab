"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from exlm.data.readers import COMPRESSIONS, not_utf8, open_text
from exlm.errors import InputError
from exlm.storage import replacing

FILE_TYPES = (".csv", ".tsv", ".txt", ".jsonl", ".parquet")


def read_frame(path: str | Path, header: Sequence[str] = ()) -> pd.DataFrame:
    """Read CSV, TSV or JSONL, plain or compressed (.gz, .xz, .zst), or Parquet (which compresses inside).

    CSV and TSV cells stay the strings that the file holds ("" where empty), so that they can be written back
    unchanged. Between tabs, quotes are ordinary characters. Rows of a TSV file that have another number of fields than
    its header are reported, cut or filled up with "", and listed in `frame.attrs["malformed"]`, a dictionary from row
    to reason: they are not to be used.

    header: the columns of a TSV file that has no header line (one that shares a name with them is one).

    Raises InputError for a missing, empty or unreadable file, and for two columns of one name.
    """
    path = Path(path)
    suffix = plain_suffix(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if suffix not in FILE_TYPES:
        raise InputError(f"{path}: unknown file type; use {listed(FILE_TYPES)} (text also .gz, .xz, .zst)")
    try:
        if suffix == ".csv":
            frame = pd.read_csv(path, dtype=str, keep_default_na=False).fillna("")
            if not isinstance(frame.index, pd.RangeIndex):  # pandas made the surplus fields an index
                raise InputError(f"{path}: its rows have more fields than its header; name every column")
        elif suffix == ".jsonl":
            frame = pd.read_json(path, lines=True, dtype=False, convert_dates=False)
        else:
            frame = pd.read_parquet(path).reset_index(drop=True) if suffix == ".parquet" else _read_tsv(path, header)
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8: {not_utf8(str(path))}; convert it, or remove what is damaged") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: is empty") from None
    except Exception as error:  # every format and compression has errors of its own; the file is at fault
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read: {reason}") from error
    if twice := [name for name, doubled in zip(frame, frame.columns.duplicated(), strict=True) if doubled]:
        raise InputError(f"{path}: two columns are called {twice[0]!r}; rename or remove one of them")
    if frame.empty:
        raise InputError(f"{path}: holds no data rows")
    return frame


def _read_tsv(path: Path, header: Sequence[str]) -> pd.DataFrame:
    with open_text(str(path), newline="\n") as file:
        rows = [line.rstrip("\n").removesuffix("\r").split("\t") for line in file]
    while rows and rows[-1] == [""]:
        rows.pop()
    if not rows:
        raise pd.errors.EmptyDataError
    first_line = 2 if not header or set(header) & set(rows[0]) else 1
    columns = rows.pop(0) if first_line == 2 else list(header)
    width = len(columns)
    wrong = {row: len(fields) for row, fields in enumerate(rows) if len(fields) != width}
    if wrong:
        named = ", ".join(f"line {row + first_line} has {fields}" for row, fields in list(wrong.items())[:3])
        message = f"{path}: {len(wrong)} of {len(rows)} rows do not have the {width} fields of the header"
        if len(wrong) == len(rows):
            raise InputError(f"{message} ({named}); is it separated by tabs?")
        print(f"{message} and cannot be used: {named}{', ...' if len(wrong) > 3 else ''}")
    frame = pd.DataFrame([(fields + [""] * width)[:width] for fields in rows], columns=columns, dtype=str)
    frame.attrs["malformed"] = {row: f"{fields} fields instead of {width}" for row, fields in wrong.items()}
    return frame


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv, .tsv or .parquet file, whole or not at all.

    Raises InputError for cells that a TSV file cannot hold.
    """
    with replacing(path) as unfinished:
        if path.suffix == ".parquet":
            frame.to_parquet(unfinished, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(unfinished, index=False)
        elif frame.astype(str).map(lambda cell: bool({"\t", "\n", "\r"} & set(cell))).to_numpy().any():
            raise InputError(f"{path}: a cell holds a tab or line break; write a .csv or .parquet file")
        else:
            frame.to_csv(unfinished, index=False, sep="\t", quoting=csv.QUOTE_NONE)


def plain_suffix(path: Path) -> str:
    """The suffix of a file's format, in lower case, whatever it is compressed with."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()


def check_columns(frame: pd.DataFrame, path: str | Path, *names: str | None) -> None:
    """Raises InputError for the first name that is not a column of the frame read from `path` (None is left out)."""
    for name in names:
        if name is not None and name not in frame.columns:
            raise InputError(f"{path}: no column {name!r}; it has: {listed(frame)}")


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, cut short after `limit`."""
    items = [str(name) for name in names]
    return ", ".join(items[:limit]) + (f", ... ({len(items)} in all)" if len(items) > limit else "")
