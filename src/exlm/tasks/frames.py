"""Files of labelled data as data frames: every row and every cell as the file has it."""

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from exlm.data.readers import COMPRESSIONS, not_utf8, open_text
from exlm.errors import InputError
from exlm.storage import replacing


def read_frame(path: str | Path, header: Sequence[str] | None = None) -> pd.DataFrame:
    """Read CSV, TSV or JSONL, plain or compressed (.gz, .xz, .zst), or Parquet (which compresses inside).

    CSV and TSV cells stay the strings that the file holds ("" where empty), so that they can be written
    back unchanged. Between tabs, quotes are ordinary characters. Rows of a TSV file that have another number of
    fields than its header are reported, cut or filled up with "", and listed in `frame.attrs["malformed"]`, a
    dictionary from row to reason: they are not to be used.

    header: the columns of a TSV file that has no header line (one that shares a name with them is one).

    Raises InputError for a missing, empty or unreadable file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        frame = _reader(path, header)(path)
    except InputError:
        raise
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8: {not_utf8(str(path))}; convert it, or remove what is damaged") from None
    except pd.errors.EmptyDataError:
        raise InputError(f"{path}: is empty") from None
    except Exception as error:  # every format and compression has errors of its own; the file is at fault
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read: {reason}") from error
    if frame.empty:
        raise InputError(f"{path}: holds no data rows")
    return frame


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a .csv, .tsv or .parquet file, whole or not at all.

    Raises InputError for cells that a TSV file cannot hold.
    """
    with replacing(path) as partial_path:
        if path.suffix == ".parquet":
            frame.to_parquet(partial_path, index=False)
        elif path.suffix == ".csv":
            frame.to_csv(partial_path, index=False)
        elif frame.astype(str).map(lambda cell: bool({"\t", "\n", "\r"} & set(cell))).to_numpy().any():
            raise InputError(f"{path}: a cell holds a tab or line break; write a .csv or .parquet file")
        else:
            frame.to_csv(partial_path, index=False, sep="\t", quoting=csv.QUOTE_NONE)


def plain_suffix(path: Path) -> str:
    """The suffix of a file's format, in lower case, whatever it is compressed with."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()


def existing(frame: pd.DataFrame, name: str, path: str | Path) -> str:
    """`name`, which must be a column of the frame read from `path`."""
    if name not in frame.columns:
        raise InputError(f"{path}: no column {name!r}; it has: {listed(frame)}")
    return name


def listed(names: Iterable[object], limit: int = 20) -> str:
    """Names for a message, cut short after `limit`."""
    items = [str(name) for name in names]
    return ", ".join(items[:limit]) + (f", ... ({len(items)} in all)" if len(items) > limit else "")


def _reader(path: Path, header: Sequence[str] | None) -> Callable[[Path], pd.DataFrame]:
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": _read_csv,
        ".tsv": partial(_read_tsv, header=header),
        ".txt": partial(_read_tsv, header=header),
        ".jsonl": lambda file: pd.read_json(file, lines=True, dtype=False, convert_dates=False),
        ".parquet": pd.read_parquet,
    }
    suffix = plain_suffix(path)
    if suffix not in readers:
        raise InputError(f"{path}: unknown file type; use {listed(readers)} (text also .gz, .xz, .zst)")
    return readers[suffix]


def _read_csv(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes surplus leading fields as an index
        raise InputError(f"{path}: its rows have more fields than its header; name every column")
    return frame.fillna("")


def _read_tsv(path: Path, header: Sequence[str] | None) -> pd.DataFrame:
    with open_text(str(path), newline="\n") as file:
        lines = [line.rstrip("\n").removesuffix("\r").split("\t") for line in file]
    while lines and lines[-1] == [""]:
        lines.pop()
    if not lines:
        raise InputError(f"{path}: is empty")
    headed = header is None or bool(set(header) & set(lines[0]))
    columns, rows = (lines[0], lines[1:]) if headed else (list(header or ()), lines)
    width = len(columns)
    wrong = {row: len(fields) for row, fields in enumerate(rows) if len(fields) != width}
    if wrong:
        _report(path, wrong, len(rows), width, first_line=2 if headed else 1)
    frame = pd.DataFrame([(fields + [""] * width)[:width] for fields in rows], columns=columns, dtype=str)
    frame.attrs["malformed"] = {row: f"{fields} fields instead of {width}" for row, fields in wrong.items()}
    return frame


def _report(path: Path, wrong: dict[int, int], rows: int, width: int, first_line: int) -> None:
    """Says how many rows have the wrong number of fields, and which are the first."""
    named = ", ".join(f"line {row + first_line} has {fields}" for row, fields in list(wrong.items())[:3])
    message = f"{path}: {len(wrong)} of {rows} rows do not have the {width} fields of the header"
    if len(wrong) == rows:
        raise InputError(f"{message} ({named}); is it separated by tabs?")
    print(f"{message} and cannot be used: {named}{', ...' if len(wrong) > 3 else ''}")
