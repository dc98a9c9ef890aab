"""Finds the files that an input stands for, and reads their texts one row at a time, in constant
memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exlm.data.columns import choose_column
from exlm.data.files import STANDARD_INPUT, unreadable
from exlm.data.formats import FAULT, HUB_NAME, READABLE, READERS, format_of
from exlm.errors import InputError

ONE_TEXT = ("lines", "smi", "fasta")  # formats that have one column of texts
NOT_DATA = ("readme", "license", "licence", "copying", "notice", "changelog")


@dataclass(frozen=True)
class Source:
    """One file, standard input, or one split of a Hugging Face data set."""

    name: str  # as given, or the path inside a given directory
    reader: str  # key of READERS
    bytes: int | None  # size on disk; None for the hub and for standard input
    header: bool = True  # whether a table has a header line


def find_sources(inputs: list[str], header: bool = True) -> tuple[list[Source], int]:
    """The sources behind `inputs` (files, directories, hub names, `-`) in order, and how many files
    were left out. A .txt file has a text on each line. InputError if an input does not exist or has
    nothing that can be read."""
    sources: list[Source] = []
    left_out = 0
    for name in inputs:
        path = Path(name)
        hub = not path.exists() and not format_of(path) and HUB_NAME.fullmatch(name)
        if hub or name == STANDARD_INPUT:
            sources.append(Source(name, "hub" if hub else "txt", None, header))
            continue
        files, unwanted = (sorted(path.iterdir()), NOT_DATA) if path.is_dir() else ([path], ())
        data = [
            f
            for f in files
            if f.is_file() and format_of(f) and not f.name.lower().startswith(unwanted)
        ]
        if not data:
            raise InputError(
                f"the input {name} does not exist or has no {READABLE}; check its path and its name"
            )
        readers = [str(format_of(file)).replace("txt", "lines") for file in data]
        sources += [
            Source(str(f), r, f.stat().st_size, header) for f, r in zip(data, readers, strict=True)
        ]
        left_out += len(files) - len(data)
    return sources, left_out


def read_rows(source: Source, text_column: str | None = None) -> Iterator[tuple[str, str]]:
    """The text of every row without white space around it, "" where it is missing, and why it is
    missing, if known. InputError if the source is damaged or has no rows, or if it is unclear which
    column to read."""
    row, column = 0, None
    wanted = None if source.reader in ONE_TEXT else text_column

    def pick(columns: list[str]) -> list[str]:
        return [choose_column(columns, wanted, source.name)]

    with unreadable(source.name):
        for row, record in enumerate(READERS[source.reader](source.name, source.header, pick), 1):
            fault = record.pop(FAULT, "")
            if column is None and record:
                [column] = pick(list(record))
            value = record.get(column)
            try:
                text = "" if value is None else value.strip()
                text.encode()
            except (AttributeError, UnicodeError):  # no string, or lone surrogates
                found = f"{source.name}, row {row}: {value!r} is not text"
                raise InputError(f"{found}; choose another column with text_column") from None
            yield text, fault
    if not row:
        raise InputError(f"{source.name} has no rows; remove it from the inputs")
