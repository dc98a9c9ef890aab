"""Raw rows: which files an input stands for, and their values one row at a time, in constant memory."""

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import pyarrow
import pyarrow.parquet

from ..errors import InputError

COMPRESSIONS = (".gz", ".xz", ".zst")
TEXT_COLUMNS = ("smiles", "mol", "text")
LONGEST_FIELD = 2**24  # characters; an unclosed quote must not read the whole file into memory
NOT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")
UNREADABLE = (OSError, EOFError, UnicodeError, csv.Error, lzma.LZMAError, zlib.error, pyarrow.ArrowInvalid)
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

    InputError if an input does not exist, is empty, or has a format that cannot be read.
    """
    if not inputs:
        raise InputError("no input given; name at least one file, directory or Hugging Face data set")
    sources: list[Source] = []
    left_out = 0
    for name in inputs:
        path, formats = Path(name), ", ".join(SUFFIXES)
        if path.is_dir():
            files = sorted(path.iterdir())
            data = [f for f in files if f.is_file() and _format(f) and not f.name.lower().startswith(NOT_DATA)]
            if not data:
                raise InputError(f"the directory {path} has no {formats} file; name the files themselves")
            sources += [Source(str(f), str(_format(f)), f.stat().st_size) for f in data]
            left_out += len(files) - len(data)
        elif path.is_file() and (known := _format(path)):
            sources.append(Source(name, known, path.stat().st_size))
        elif path.is_file():
            raise InputError(
                f"the format of {name} is not known; its name must end in {formats}, optionally "
                f"followed by {', '.join(COMPRESSIONS)} (Parquet is compressed inside)"
            )
        elif _format(path) or not HUB_NAME.fullmatch(name):
            raise InputError(f"the input {name} does not exist; check the path")
        else:
            sources.append(Source(name, "hub", None))
    return sources, left_out


def _format(path: Path) -> str | None:
    """The key of READERS that a file's name stands for."""
    compressed = path.suffix.lower() in COMPRESSIONS
    suffix = Path(path.stem if compressed else path).suffix.lower()
    return None if compressed and suffix == ".parquet" else SUFFIXES.get(suffix)


def read_rows(source: Source, column: str | None = None) -> Iterator[str]:
    """The value of every row, stripped; an empty string where the row is blank or the value missing.

    InputError if the source is damaged, has no rows, or its column cannot be told. Row numbers in messages are 1-based:
    lines of a line file, data rows (without the header) of a table.
    """
    row = 0
    try:
        for value in READERS[source.reader](source.name, column):
            if not isinstance(value, str | None):
                where = f"{source.name}, row {row + 1}"
                raise InputError(f"{where}: {value!r} is not text; choose another column with --column")
            text = (value or "").strip()
            text.encode()  # lone surrogates are no text; this raises UnicodeError
            row += 1
            yield text
    except UNREADABLE as error:
        reason = f"cannot be read after row {row} ({error}); check that it is complete and UTF-8"
        if isinstance(error, UnicodeDecodeError) and (line := not_utf8(source.name)):
            reason = f"is not UTF-8: {line}; convert it, or remove what is damaged"
        raise InputError(f"{source.name} {reason}") from error
    if not row:
        raise InputError(f"{source.name} has no rows; remove it from the inputs")


def open_text(name: str, errors: str = "strict", newline: str = "") -> TextIO:
    """A UTF-8 file, plain or compressed as its name says (COMPRESSIONS). Damage raises one of UNREADABLE."""
    suffix = Path(name).suffix.lower()
    if suffix == ".zst":  # Arrow reads every frame and notices a cut; the zstandard package does neither
        file: Any = pyarrow.input_stream(name, compression="zstd")
    else:
        opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(suffix, open)
        file = opener(name, "rb")
    return io.TextIOWrapper(file, "utf-8-sig", errors, newline=newline)


def not_utf8(name: str) -> str | None:
    """The first line that is not UTF-8: decoding goes by blocks, so that its own error does not tell."""
    with suppress(*UNREADABLE), open_text(name, "surrogateescape") as file:
        for number, line in enumerate(file, 1):
            bad = next((character for character in line if "\udc80" <= character <= "\udcff"), None)
            if bad:
                return f"line {number} has the byte 0x{ord(bad) - 0xDC00:02x} after {line[: line.index(bad)][-20:]!r}"
    return None


def _lines(name: str, column: str | None) -> Iterator[str]:
    with open_text(name) as file:
        yield from file


def _smi(name: str, column: str | None) -> Iterator[str]:
    return ((line.split(maxsplit=1) or [""])[0] for line in _lines(name, column))


def _csv(name: str, column: str | None, **dialect: Any) -> Iterator[str]:
    csv.field_size_limit(LONGEST_FIELD)
    with open_text(name) as file:
        rows = csv.reader(file, **dialect)
        header = next(rows, None)
        if header is None:
            return
        index = header.index(_choose_column(header, column, name))
        for row in rows:
            yield row[index] if index < len(row) else ""


def _jsonl(name: str, column: str | None) -> Iterator[object]:
    chosen = ""
    with open_text(name) as file:
        for row, line in enumerate(file, 1):
            where = f"{name}, row {row}"
            try:
                record = json.loads(line) if line.strip() else {}
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise InputError(f"{where}: {line[:80].strip()!r} is not a JSON object; every line must be one")
            if record and not chosen:
                chosen = _choose_column(record, column, where)
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
        rows = iter(load_dataset(found["name"], found["config"], split=found["split"] or "train", streaming=True))
        first: dict[str, object] = next(rows, {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        raise InputError(
            f"{name} is neither a file here nor a Hugging Face data set that could be opened "
            f"({type(error).__name__}); check the name and the network"
        ) from error
    column = _choose_column(first, column, name)
    for record in chain([first], rows):
        yield record[column]


def _choose_column(columns: Iterable[str], wanted: str | None, where: str) -> str:
    """`wanted` if it exists, else the only column called smiles, mol or text in any case."""
    columns = list(columns)
    hits = [c for c in columns if (c == wanted if wanted else c.lower() in TEXT_COLUMNS)]
    if len(hits) == 1:
        return hits[0]
    problem = f"{len(hits) or 'no'} columns called {wanted or ' or '.join(TEXT_COLUMNS)}"
    raise InputError(f"{where} has {problem}; name one with --column: {', '.join(map(repr, columns))}")


READERS: dict[str, Callable[[str, str | None], Iterator[object]]] = {
    "lines": _lines,
    "smi": _smi,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # between tabs, quotes are ordinary characters
    "jsonl": _jsonl,
    "parquet": _parquet,
    "hub": _hub,
}
SUFFIXES = {".smi": "smi", ".txt": "lines", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
