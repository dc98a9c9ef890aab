"""File formats. A reader yields a record for each row of a file, in constant memory: {name of a
column: cell}. The record of a blank line is empty. Under the key FAULT a record has the reason why
its row should not be used."""

import csv
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow.parquet
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.columns import text_columns
from exlm.data.files import (
    COMPRESSIONS,
    LARGEST,
    LONGEST,
    STANDARD_INPUT,
    bounded,
    open_text,
    plain_suffix,
    text_lines,
)
from exlm.errors import InputError, first_line, optional

FAULT = None  # no column has this name
SEPARATORS = ",;\t"
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(
    r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?"
)

Record = dict[Any, Any]
# whether a table has a header line, or its columns (unless its first line has these)
Header = bool | tuple[str, ...]
Pick = Callable[[list[str]], list[str]]  # which columns to read, out of those that a table has


def format_of(path: str | Path) -> str | None:
    """The key of READERS that a file's name stands for, or None."""
    if str(path) == STANDARD_INPUT:
        return "txt"
    suffix, compressed = plain_suffix(path), Path(path).suffix.lower() in COMPRESSIONS
    return None if compressed and suffix in (".parquet", ".xlsx") else SUFFIXES.get(suffix)


def _lines(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    yield from ({"text": line} for line in text_lines(name))


def _smi(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    for line in text_lines(name):
        yield dict(zip(("smiles", "name"), [*line.strip().split(maxsplit=1), ""], strict=False))


def _txt(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    """As .smi if the first lines have molecules and names; as a table if the first line has a tab
    or the name of a text column, or if `header` is given; lines otherwise."""
    first, *others = _first_lines(name)[:10] or [""]
    words = list(filter(None, map(str.split, (first, *others))))
    named = any(len(line) > 1 for line in words) and any(len(line[0]) > 3 for line in words)
    if header is True and named and all(molecule_problem(line[0]) is None for line in words):
        return _smi(name, header, pick)
    table = header is not True or "\t" in first or text_columns(re.split("[,;]", first))
    return (_tsv if table else _lines)(name, header, pick)


def _csv(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    return _records(_csv_rows(name, _separator(name, ",")), header, pick, may_be_short=True)


def _tsv(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    if _separator(name, "\t") != "\t":
        return _csv(name, header, pick)
    # Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    # inside a line.
    lines = (line.rstrip("\n").removesuffix("\r") for line in text_lines(name, newline="\n"))
    return _records(
        (line.split("\t") if line else [] for line in lines), header, pick, may_be_short=False
    )


def _separator(name: str, usual: str) -> str:
    """The separator of a table: the usual one, unless the first line lacks it and one other divides
    all lines alike."""
    lines = _first_lines(name)
    if not lines or usual in lines[0]:
        return usual
    fields = {mark: {len(row) for row in csv.reader(lines, delimiter=mark)} for mark in SEPARATORS}
    clear = [mark for mark, numbers in fields.items() if len(numbers) == 1 and max(numbers) > 1]
    return clear[0] if len(clear) == 1 else usual


def _first_lines(name: str) -> list[str]:
    """At most 20 lines of a file that are not empty."""
    with open_text(name) as file:
        return [line for line in re.split(r"\r\n|\r|\n", file.read(2**16))[:20] if line]


def _csv_rows(name: str, separator: str) -> Iterator[list[Any]]:
    rows = csv.reader(text_lines(name), delimiter=separator)
    for number in count():  # 0 is the header, where there is one
        limit = csv.field_size_limit(LONGEST)
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise InputError(
                f"{name}, row {number}: {error}; correct it, a quote may be open"
            ) from error
        finally:
            csv.field_size_limit(limit)  # other readers in this process have their own limit
        if row is None:
            return
        yield row


def _xlsx(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    """The first sheet of a workbook."""
    openpyxl = optional("openpyxl", "excel", f"reading {name}")
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it is larger than {LARGEST:,} bytes when it is unpacked")
        with closing(openpyxl.load_workbook(name, read_only=True, data_only=True)) as book:
            sheet = book.worksheets[0].iter_rows(max_row=2**20, values_only=True)  # as Excel
            rows = (
                ["" if cell is None else cell for cell in row] if any(row) else [] for row in sheet
            )
            yield from _records(rows, header, pick, may_be_short=True)
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error


def _records(
    rows: Iterator[list[Any]], header: Header, pick: Pick, may_be_short: bool
) -> Iterator[Record]:
    """Rows of cells as records. With `may_be_short`, missing cells at the end of a row are "", and
    no fault."""
    first = next(rows, None)
    if first is None:
        return
    named = header is True or (header is not False and bool(set(header) & set(first)))
    columns = [str(cell) or f"Unnamed: {i}" for i, cell in enumerate(first)]
    if not named:
        columns = list(header or (f"column {i}" for i in range(1, len(first) + 1)))  # type: ignore[arg-type]
        rows = chain([first], rows)
    places = [(column, columns.index(column)) for column in pick(columns)]
    for cells in rows:
        record: Record = (
            {column: cells[i] if i < len(cells) else "" for column, i in places} if cells else {}
        )
        if len(cells) > len(columns) or 0 < len(cells) < len(columns) and not may_be_short:
            record[FAULT] = f"{len(cells)} fields instead of {len(columns)}"
        yield record


def _jsonl(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    for row, line in enumerate(text_lines(name), 1):
        try:
            yield dict(json.loads(line) if line.strip() else {})
        except (ValueError, TypeError, RecursionError):
            text = f"{line[:80].strip()!r} is not a JSON object; every line must be one"
            raise InputError(f"{name}, row {row}: {text}") from None


def _parquet(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    with pyarrow.parquet.ParquetFile(name) as file:
        for batch in file.iter_batches(batch_size=4096, columns=pick(file.schema_arrow.names)):
            yield from batch.to_pylist()


def _fasta(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    title, text = None, ""
    for number, line in enumerate(map(str.strip, chain(text_lines(name), [">"])), 1):
        if line.startswith(">"):
            if title is not None:
                yield {"name": title, "sequence": text}
            title, text = line[1:].strip(), ""
        elif title is None and line:
            raise InputError(
                f"{name}, line {number}: a FASTA file begins with > and a name; this line does not"
            )
        else:
            text += line
            bounded(text, name, "a sequence")


def _sdf(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    """A structure's SMILES, its name (first line) and its properties. What RDKit cannot read has a
    fault."""
    text = ""
    for line in chain(text_lines(name), ["$$$$"]):
        if line.rstrip() != "$$$$":
            text += line.rstrip("\r\n") + "\n"
            bounded(text, name, "a structure")
            continue
        if text.strip():
            yield _structure(text[:-1])
        text = ""


def _structure(text: str) -> Record:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromMolBlock(text)
    smiles = "" if molecule is None else Chem.MolToSmiles(molecule)
    record: Record = {"smiles": smiles, "name": text.split("\n", 1)[0].strip()}
    for title, value in re.findall(r"^>[^<\n]*<([^>\n]+)>.*\n((?:.+\n?)*)", text, re.MULTILINE):
        record[f"property {title}" if title in record else title] = value.strip()
    if molecule is None:
        record[FAULT] = "RDKit cannot read this structure"
    return record


def _hub(name: str, header: Header, pick: Pick) -> Iterator[Record]:
    from datasets import load_dataset  # takes seconds to import, and only hub names need it

    found = HUB_NAME.fullmatch(name)
    assert found
    try:
        rows = load_dataset(
            found["name"], found["config"], split=found["split"] or "train", streaming=True
        )
        next(iter(rows), {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        kinds = f"neither a file here nor a Hugging Face data set that could be opened ({first_line(error)})"
        raise InputError(f"{name} is {kinds}; check the name and the network") from error
    yield from rows


READERS: dict[str, Callable[[str, Header, Pick], Iterator[Record]]] = {
    "smi": _smi, "txt": _txt, "csv": _csv, "tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet, "fasta": _fasta,
    "sdf": _sdf, "xlsx": _xlsx, "lines": _lines, "hub": _hub,
}  # fmt: skip
SUFFIXES = {f".{kind}": kind for kind in READERS if kind not in ("lines", "hub")} | {
    ".fa": "fasta",
    ".faa": "fasta",
}
# for messages
READABLE = (
    f"{', '.join(SUFFIXES)} file (those of text may be compressed: {', '.join(COMPRESSIONS)})"
)
