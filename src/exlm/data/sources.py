"""From inputs to rows: finds the files that an input stands for, and reads their texts in constant
memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.columns import MISSING_TEXTS, choose_column
from exlm.data.files import STANDARD_INPUT
from exlm.data.formats import (
    HUB_NAME,
    READABLE,
    check_sheet,
    format_of,
    reader_name,
)
from exlm.data.frames import as_text, read_chunks
from exlm.data.tabular import AS_USUAL, TableOptions
from exlm.errors import InputError
from exlm.storage.manifest import MANIFEST, has_checksums

FRAME_ROWS = 1000  # the most rows of a table in memory
CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
LISTS = ("lines", "smi", "fasta")  # formats that have one column of texts


@dataclass(frozen=True)
class Source:
    """One file, standard input, or one split of a Hugging Face data set."""

    name: str  # the input as it was given, or the path of a file inside a directory
    reader: str  # key of READERS
    bytes: int | None  # size on disk; None for the hub and for standard input
    header: bool = True  # whether a table has a header line
    sheet: str | None = None  # name of a sheet of a workbook; the first where absent


class Row(NamedTuple):
    """A row of a source. The text is empty if the row is blank, or if its format could not be
    read."""

    source_name: str
    number: int  # from 1
    document: int
    text: str
    problem: str = ""  # why the row has no text, where its format says so


Chunk = list[Row]


def find_sources(
    inputs: list[str], options: TableOptions = AS_USUAL
) -> tuple[list[Source], list[str]]:
    """The sources behind `inputs` (files, directories, hub names, `-`) in order, and the files of
    directories whose format is not read. InputError if an input does not exist or has nothing that
    can be read."""
    header = options.header
    sources: list[Source] = []
    left_out: list[str] = []
    for name in inputs:
        path = Path(name)
        if name == STANDARD_INPUT:
            sources.append(Source(name, reader_name(name), None, header))
        elif not path.exists() and not format_of(path) and HUB_NAME.fullmatch(name):
            sources.append(Source(name, "hub", None, header))
        else:
            files, others = _data_files(path)
            for file in files:
                reader = reader_name(file)
                sheet = options.sheet if reader == "xlsx" else None
                sources.append(Source(str(file), reader, file.stat().st_size, header, sheet))
            left_out += map(str, others)
    check_sheet(options.sheet, [source.name for source in sources])
    return sources, left_out


def _data_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of a directory and its subfolders that can be read, or the one file `path`, and
    those whose format is not read; InputError if none can be read. What has a name that begins with
    a dot, and the folders that `exlm` wrote, are no data."""
    if not path.exists():
        raise InputError(f"the input {path} does not exist; check its path and its name")
    written = {file.parent for file in path.rglob(MANIFEST) if has_checksums(file.parent)} - {path}
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    data: list[Path] = []
    left_out: list[Path] = []
    for file in files:
        is_hidden = any(name.startswith(".") for name in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and written.isdisjoint(file.parents):
            (data if format_of(file) else left_out).append(file)
    if not data:
        what = "has no" if path.is_dir() else "is no"
        raise InputError(f"the input {path} {what} {READABLE}; rename text to .txt")
    return data, left_out


def chunks_of_rows(
    sources: Iterable[Source], text_column: str | None, rows_are_documents: bool = False
) -> Iterator[Chunk]:
    """All rows of all sources, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a
    time. Blank rows and ends of sources separate documents; with `rows_are_documents`, every row is
    a document."""
    document = 0
    for source in sources:
        document += 1
        chunk: Chunk = []
        size = 0
        for number, (text, problem) in enumerate(texts_and_problems(source, text_column), 1):
            if rows_are_documents or not text:
                document += 1
            chunk.append(Row(source.name, number, document, text, problem))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk = []
                size = 0
        if chunk:
            yield chunk


def texts_and_problems(source: Source, text_column: str | None = None) -> Iterator[tuple[str, str]]:
    """Yields for every row its stripped text, "" where it is missing or must not be used, and why
    it must not be used. InputError if the source is damaged or has no rows, or if it is unclear
    which column to read."""
    options = TableOptions(source.header, sheet=source.sheet)
    if source.reader in LISTS:
        text_column = None
    column = None
    for rows in read_chunks(source.name, options, FRAME_ROWS, reader=source.reader):
        columns = rows.frame.columns
        if column is None and len(columns):
            column = choose_column(columns, text_column, source.name)
        cells = rows.frame.get(column, pd.Series("", rows.frame.index))
        numbers = (rows.frame.index + 1).tolist()
        for number, cell, problem in zip(numbers, cells, rows.problems_of_rows, strict=True):
            text = _text_of(cell, f"{source.name}, row {number}")
            yield "" if problem else text, problem


def _text_of(cell: Any, where: str) -> str:
    """A cell as text, "" if there is none; InputError if it is something else."""
    if isinstance(cell, str):
        text = cell.strip()
        return "" if text in MISSING_TEXTS else text
    if as_text(cell) is None:
        return ""
    raise InputError(f"{where}: {cell!r} is not text; choose another column with text_column")
