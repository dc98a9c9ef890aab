"""Finds the files that an input stands for, and reads their values one row at a time, in constant memory."""

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from ..errors import InputError, first_line

COMPRESSIONS = (".gz", ".xz", ".zst")
TEXT_COLUMNS = ("smiles", "mol", "text")
LONGEST_FIELD = 2**24  # characters; an unclosed quote must not read the whole file into memory
NOT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")
UNREADABLE = (OSError, EOFError, UnicodeError, lzma.LZMAError, zlib.error, pyarrow.ArrowInvalid)
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?")


@dataclass(frozen=True)
class Source:
    """One file, or one split of a Hugging Face data set."""

    name: str  # as given, or the path inside a given directory
    reader: str  # key of READERS
    bytes: int | None  # size on disk; None for the hub


def find_sources(inputs: list[str]) -> tuple[list[Source], int]:
    """The sources behind `inputs` (files, directories, hub names) in order, and how many files were left out.

    InputError if an input does not exist or has nothing in a format that can be read.
    """
    sources: list[Source] = []
    left_out = 0
    for name in inputs:
        path = Path(name)
        if not path.exists() and not _format(path) and HUB_NAME.fullmatch(name):
            sources.append(Source(name, "hub", None))
            continue
        files, unwanted = (sorted(path.iterdir()), NOT_DATA) if path.is_dir() else ([path], ())
        data = [f for f in files if f.is_file() and _format(f) and not f.name.lower().startswith(unwanted)]
        if not data:
            raise InputError(
                f"the input {name} does not exist or has no {', '.join(SUFFIXES)} file, which may be compressed "
                f"({', '.join(COMPRESSIONS)}) unless it is Parquet; check its path and its name"
            )
        sources += [Source(str(file), str(_format(file)), file.stat().st_size) for file in data]
        left_out += len(files) - len(data)
    return sources, left_out


def _format(path: Path) -> str | None:
    """The key of READERS that a file's name stands for."""
    compressed = path.suffix.lower() in COMPRESSIONS
    suffix = Path(path.stem if compressed else path).suffix.lower()
    return None if compressed and suffix == ".parquet" else SUFFIXES.get(suffix)


@contextmanager
def unreadable(name: str | Path) -> Iterator[None]:
    """Turns what reading a damaged file raises (UNREADABLE) into an InputError that names the file and the reason."""
    try:
        yield
    except UNREADABLE as error:
        reason = first_line(error)
        if isinstance(error, UnicodeDecodeError):
            reason = f"it is not UTF-8: {not_utf8(name) or reason}"
        raise InputError(f"{name} cannot be read: {reason}; correct the file, or get a whole copy") from error


def read_rows(source: Source, column: str | None = None) -> Iterator[str]:
    """The value of every row without white space around it; "" where the row is blank or the value is missing.

    InputError if the source is damaged or has no rows, or if it is unclear which column to read. Row numbers in
    messages start at 1. They count the lines of a text file, or the rows of a table without its header.
    """
    row = 0
    with unreadable(source.name):
        for row, value in enumerate(READERS[source.reader](source.name, column), 1):
            try:
                text = "" if value is None else value.strip()
                text.encode()
            except (AttributeError, UnicodeError):  # no string, or lone surrogates
                where = f"{source.name}, row {row}"
                raise InputError(f"{where}: {value!r} is not text; choose another column with --column") from None
            yield text
    if not row:
        raise InputError(f"{source.name} has no rows; remove it from the inputs")


def open_text(name: str | Path, errors: str = "strict", newline: str = "") -> TextIO:
    """A UTF-8 file, plain or compressed as its name says (COMPRESSIONS). Damage raises one of UNREADABLE."""
    suffix = Path(name).suffix.lower()
    if suffix == ".zst":  # Arrow reads every frame and notices a truncated file; the zstandard package does neither
        file: Any = pyarrow.input_stream(str(name), compression="zstd")
    else:
        opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix, open)
        file = opener(name, "rb")
    return io.TextIOWrapper(file, "utf-8-sig", errors, newline=newline)


def not_utf8(name: str | Path) -> str | None:
    """Says which line is the first that is not UTF-8. Python's own error does not: it decodes blocks, not lines."""
    with suppress(*UNREADABLE), open_text(name, "surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if bad := re.search("[\udc80-\udcff]", line):
                return f"line {number} has the byte 0x{ord(bad[0]) - 0xDC00:02x} after {line[: bad.start()][-20:]!r}"
    return None


def _lines(name: str, column: str | None) -> Iterator[str]:
    with open_text(name) as file:
        yield from file


def _smi(name: str, column: str | None) -> Iterator[str]:
    return ((line.split(maxsplit=1) or [""])[0] for line in _lines(name, column))


def _csv(name: str, column: str | None, **dialect: Any) -> Iterator[str]:
    with open_text(name) as file:
        rows = csv.reader(file, **dialect)
        for number in count():  # 0 is the header
            limit = csv.field_size_limit(LONGEST_FIELD)
            try:
                row = next(rows, None)
            except csv.Error as error:
                raise InputError(f"{name}, row {number}: {error}; correct it, a quote may be open") from error
            finally:
                csv.field_size_limit(limit)  # other readers in this process have their own limit
            if row is None:
                return
            if number == 0:
                index = row.index(_choose_column(row, column, name))
            else:
                yield row[index] if index < len(row) else ""


def _jsonl(name: str, column: str | None) -> Iterator[object]:
    chosen = ""
    with open_text(name) as file:
        for row, line in enumerate(file, 1):
            try:
                record = dict(json.loads(line) if line.strip() else {})
            except (ValueError, TypeError):
                text = f"{line[:80].strip()!r} is not a JSON object; every line must be one"
                raise InputError(f"{name}, row {row}: {text}") from None
            if record and not chosen:
                chosen = _choose_column(record, column, f"{name}, row {row}")
            yield record.get(chosen)


def _parquet(name: str, column: str | None) -> Iterator[object]:
    with pyarrow.parquet.ParquetFile(name) as file:
        column = _choose_column(file.schema_arrow.names, column, name)
        for batch in file.iter_batches(batch_size=4096, columns=[column]):
            yield from batch.column(0).to_pylist()


def _hub(name: str, column: str | None) -> Iterator[object]:
    from datasets import load_dataset  # takes seconds to import, and only hub names need it

    found = HUB_NAME.fullmatch(name)
    assert found
    try:
        rows = load_dataset(found["name"], found["config"], split=found["split"] or "train", streaming=True)
        first: dict[str, object] = next(iter(rows), {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        kinds = f"neither a file here nor a Hugging Face data set that could be opened ({first_line(error)})"
        raise InputError(f"{name} is {kinds}; check the name and the network") from error
    column = _choose_column(first, column, name)
    for record in rows:
        yield record[column]


def _choose_column(columns: Iterable[str], wanted: str | None, where: str) -> str:
    """`wanted` if it exists, else the only column called smiles, mol or text in any case."""
    columns = list(columns)
    hits = [c for c in columns if (c == wanted if wanted else c.lower() in TEXT_COLUMNS)]
    if len(hits) == 1:
        return hits[0]
    problem = f"{len(hits) or 'no'} columns called {wanted or ' or '.join(TEXT_COLUMNS)}"
    raise InputError(f"{where} has {problem}; name one with --column: {', '.join(map(repr, columns))}")


READERS: dict[str, Callable[[str, str | None], Iterator[Any]]] = {
    "lines": _lines,
    "smi": _smi,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # quotes are ordinary characters here
    "jsonl": _jsonl,
    "parquet": _parquet,
    "hub": _hub,
}
SUFFIXES = {".smi": "smi", ".txt": "lines", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
