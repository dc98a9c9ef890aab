"""The inputs of `prepare`: finds their files, and reads the texts of these in constant memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.cell_texts import clean_text, is_missing, text_to_read
from exlm.data.columns import choose_column
from exlm.data.formats import READABLE, DataFile, check_no_table, data_files, format_of, is_hub_name
from exlm.data.frames import read_frames
from exlm.data.open_files import is_standard_input
from exlm.errors import InputError
from exlm.storage.manifest import MANIFEST, has_checksums

ROWS_IN_MEMORY = 1000  # the most rows of a table at a time
CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
ONE_COLUMN_FORMATS = ("lines", "smi", "fasta")  # formats that have one column of texts


class InputRow(NamedTuple):
    """A row of an input. The text is empty if the row is blank, or if it must not be used."""

    file: str
    number: int  # from 1
    document: int
    text: str
    problem: str = ""  # why the row must not be used


Chunk = list[InputRow]


def find_files(
    inputs: list[str], header: bool = True, sheet: str | None = None
) -> tuple[list[DataFile], list[str]]:
    """The files behind `inputs` (files, directories, hub names, standard input) in order, and the
    files of directories whose format is not read. InputError if an input does not exist or has
    nothing that can be read."""
    names: list[str] = []
    left_out: list[str] = []
    for name in inputs:
        if is_standard_input(name) or is_hub_name(name):
            names.append(name)
        else:
            readable, others = _files_of(Path(name))
            names += readable
            left_out += others
    return data_files(names, header, sheet, from_hub=True), left_out


def _files_of(path: Path) -> tuple[list[str], list[str]]:
    """The files of a directory and its subfolders, or the one file `path`: those that can be read,
    and those whose format is not read. InputError if none can be read. Hidden files (.name) and
    the folders that `exlm` wrote are no data."""
    if not path.exists():
        raise InputError(f"the input {path} does not exist; check its path and its name")
    ours = {file.parent for file in path.rglob(MANIFEST) if has_checksums(file.parent)} - {path}
    readable: list[str] = []
    left_out: list[str] = []
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        is_hidden = any(name.startswith(".") for name in file.relative_to(path).parts)
        if file.is_file() and not is_hidden and ours.isdisjoint(file.parents):
            names = readable if format_of(file) else left_out
            names.append(str(file))
    if not readable:
        what = "has no" if path.is_dir() else "is no"
        raise InputError(f"the input {path} {what} {READABLE}; rename text to .txt")
    return readable, left_out


def chunks_of_rows(
    files: Iterable[DataFile], text_column: str | None, rows_are_documents: bool = False
) -> Iterator[Chunk]:
    """All rows of all files, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a
    time. Blank rows and ends of files separate documents; with `rows_are_documents`, every row is a
    document."""
    document = 0
    for file in files:
        document += 1
        chunk: Chunk = []
        size = 0
        for number, (text, problem) in enumerate(texts_and_problems(file, text_column), 1):
            if rows_are_documents or not text:
                document += 1
            chunk.append(InputRow(file.name, number, document, text, problem))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk = []
                size = 0
        if chunk:
            yield chunk


def texts_and_problems(file: DataFile, text_column: str | None = None) -> Iterator[tuple[str, str]]:
    """Yields (text, problem) for every row. The text is "" if it is missing or has a problem, which
    says why it must not be used. InputError if the file is damaged or has no rows, or if it is
    unclear which column to read."""
    if file.format in ONE_COLUMN_FORMATS:
        check_no_table(file.name, text_column or "")
        text_column = None
    column = None
    for rows in read_frames(file, ROWS_IN_MEMORY):
        columns = rows.frame.columns
        if column is None and len(columns):
            column = choose_column(rows.frame, text_column, file.name)
        cells = rows.frame.get(column, pd.Series("", rows.frame.index))
        numbers = (rows.frame.index + 1).tolist()
        for number, cell, problem in zip(numbers, cells, rows.problems_of_rows, strict=True):
            text = _text_of(cell, f"{file.name}, row {number}")
            yield "" if problem else text, problem


def _text_of(cell: Any, where: str) -> str:
    """The text of a cell, "" if there is none. InputError if it is neither a text nor a list of
    words, nor missing."""
    words = cell if isinstance(cell, list) else [cell]
    if not is_missing(cell) and not all(isinstance(word, str) for word in words):
        raise InputError(f"{where}: {cell!r} is not text; choose another column with text_column")
    return clean_text(text_to_read(cell))
