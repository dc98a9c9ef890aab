"""From inputs to rows: finds the files that an input stands for, and reads their texts in constant
memory, with the readers of `formats.py`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from exlm.data.columns import MISSING_TEXTS, choose_column
from exlm.data.files import STANDARD_INPUT, read_errors
from exlm.data.formats import (
    HUB_NAME,
    READABLE,
    READERS,
    check_sheet,
    format_of,
    reader_name,
)
from exlm.data.tabular import AS_USUAL, Record, TableOptions
from exlm.errors import InputError
from exlm.storage.manifest import MANIFEST

CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
LISTS = ("lines", "smi", "fasta")  # formats that have one column of texts
NOT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")


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
    directories that were left out. InputError if an input does not exist or has nothing that can be
    read."""
    header = options.header
    sources: list[Source] = []
    left_out: list[str] = []
    for name in inputs:
        path = Path(name)
        if name == STANDARD_INPUT:
            sources.append(Source(name, str(reader_name(name, options)), None, header))
        elif not path.exists() and not format_of(path) and HUB_NAME.fullmatch(name):
            sources.append(Source(name, "hub", None, header))
        else:
            files, others = _data_files(path)
            for file in files:
                reader = str(reader_name(file, options))
                sheet = options.sheet if reader == "xlsx" else None
                sources.append(Source(str(file), reader, file.stat().st_size, header, sheet))
            left_out += map(str, others)
    check_sheet(options.sheet, [source.name for source in sources])
    return sources, left_out


def _data_files(path: Path) -> tuple[list[Path], list[Path]]:
    """The files of a directory and its subfolders that can be read, or the one file `path`, and the
    other files; InputError if none can be read. Hidden folders, and what `exlm` wrote, are no
    data."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    data = [file for file in files if format_of(file) and _is_data(file, path)]
    if path.is_file() and format_of(path):
        data = [path]
    if not data:
        if not path.exists():
            raise InputError(f"the input {path} does not exist; check its path and its name")
        what = "has no" if path.is_dir() else "is no"
        raise InputError(f"the input {path} {what} {READABLE}; rename text to .txt")
    return data, sorted(set(files) - set(data))


def _is_data(file: Path, directory: Path) -> bool:
    """Whether a file in an input directory may hold data, by its name and its folders."""
    *folders, _ = file.relative_to(directory).parents
    is_hidden = any(folder.name.startswith(".") for folder in folders)
    is_output = any((directory / folder / MANIFEST).exists() for folder in folders)
    return not (is_hidden or is_output or file.name.lower().startswith(NOT_DATA))


def read_chunks(
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
        for number, (text, record) in enumerate(read_rows(source, text_column), 1):
            if rows_are_documents or not text:
                document += 1
            chunk.append(Row(source.name, number, document, text, record.problem))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk = []
                size = 0
        if chunk:
            yield chunk


def read_rows(source: Source, text_column: str | None = None) -> Iterator[tuple[str, Record]]:
    """Yields for every row its stripped text, "" where it is missing or must not be used, and its
    record. InputError if the source is damaged or has no rows, or if it is unclear
    which column to read."""
    is_list = source.reader in LISTS
    number = 0
    column = None
    with read_errors(source.name):
        options = TableOptions(source.header, sheet=source.sheet)
        for number, record in enumerate(READERS[source.reader](source.name, options), 1):
            cells = record.cells
            if column is None and cells:
                column = choose_column(cells, None if is_list else text_column, source.name)
            text = _text(cells.get(column), f"{source.name}, row {number}")
            # `NA` may be two residues, but not in a table
            is_missing = not is_list and len(cells) > 1 and text in MISSING_TEXTS
            yield "" if is_missing or record.problem else text, record
    if not number:
        raise InputError(f"{source.name} has no rows; remove it from the inputs")


def _text(cell: object, where: str) -> str:
    """A cell as text, "" if there is none; InputError if it is something else."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise InputError(f"{where}: {cell!r} is not text; choose another column with text_column")
    return cell.strip()
