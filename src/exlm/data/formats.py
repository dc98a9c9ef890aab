"""File formats. A reader yields a record for each row of a file, in constant memory."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.columns import USUAL_NAMES, check_different, listed, text_columns
from exlm.data.conll import are_tagged_words, read_conll
from exlm.data.files import (
    COMPRESSIONS,
    STANDARD_INPUT,
    check_length,
    first_lines,
    plain_suffix,
    read_errors,
    text_lines,
)
from exlm.data.tabular import Record, TableOptions, read_csv, read_tsv, read_xlsx
from exlm.errors import InputError, first_line, import_optional

HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # one of two surrogates: JSON may have it
HALF_CHARACTER_PROBLEM = "it has half a character (a surrogate)"
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(
    r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?"
)


def format_of(path: str | Path) -> str | None:
    """The format that a file's name stands for: a key of READERS, "txt" or None."""
    if str(path) == STANDARD_INPUT:
        return "txt"
    suffix = plain_suffix(path)
    if suffix in (".parquet", ".xlsx") and Path(path).suffix.lower() in COMPRESSIONS:
        return None
    return SUFFIXES.get(suffix)


def check_sheet(sheet: str | None, paths: Iterable[str | Path]) -> None:
    """InputError if a sheet is named, and none of the files is a workbook."""
    paths = list(paths)
    if sheet is not None and not any(format_of(path) == "xlsx" for path in paths):
        raise InputError(
            f"{listed(paths, 5)} has no sheets; leave out sheet, which is for .xlsx files"
        )


def reader_name(path: str | Path, options: TableOptions) -> str | None:
    """The key of READERS for a file, or None. Of a .txt file and of standard input, the first lines
    decide: objects of JSON, sequences and their names, molecules and their names, tagged words, or
    a table; else each line is a text."""
    file_format = format_of(path)
    if file_format != "txt":
        return file_format
    with read_errors(path):
        lines = first_lines(str(path))
    if options.columns_if_missing or not options.header:
        return "tsv"
    if lines and re.fullmatch(r"\s*\{.*\}\s*", lines[0]):
        return "jsonl"
    if _are_sequences(lines):
        return "fasta"
    if _are_molecules_with_names(lines):
        return "smi"
    if are_tagged_words(lines):
        return "conll"
    return "tsv" if _are_cells(lines) else "lines"


def _are_sequences(lines: list[str]) -> bool:
    """Whether lines are those of a FASTA file. Prose may begin with > as well."""
    lines = [line.strip() for line in lines if not line.startswith((";", "#"))]
    residues = [line for line in lines if not line.startswith(">")]
    begins_with_name = bool(residues) and lines[0] not in residues
    return begins_with_name and all(re.fullmatch(r"[A-Za-z*.-]*", line) for line in residues)


def _are_molecules_with_names(lines: list[str]) -> bool:
    """Whether each line has a molecule, and some have a name after it."""
    words_of_lines = [line.split() for line in lines[:10] if line.strip()]
    have_names = any(len(words) > 1 for words in words_of_lines)
    # A word of up to three letters may be a molecule by accident.
    are_long = any(len(words[0]) > 3 for words in words_of_lines)
    may_be_molecules = have_names and are_long
    return may_be_molecules and all(molecule_problem(words[0]) is None for words in words_of_lines)


def _are_cells(lines: list[str]) -> bool:
    """Whether lines are those of a table: the first has a usual name of a column of texts, or all
    have as many cells, two or more; of those between tabs, one other line is enough. In prose,
    spaces follow the commas, and a paragraph may begin with a tab."""
    for mark in "\t,;|":
        header, *others = list(csv.reader(lines, delimiter=mark)) or [[]]
        has_spaces = any(cell.startswith(" ") for cell in header)
        is_prose = has_spaces and any(len(cell.split()) > 2 for cell in header)
        if text_columns(header) and not is_prose:
            return True
        are_alike = [len(row) == len(header) > 1 for row in others]
        is_divided = any(are_alike) if mark == "\t" else bool(others) and all(are_alike)
        if is_divided and all(header) and not has_spaces:
            return True
    return False


def _lines(name: str, options: TableOptions) -> Iterator[Record]:
    for line in text_lines(name):
        yield Record({"text": line.rstrip("\r\n")})


def _smi(name: str, options: TableOptions) -> Iterator[Record]:
    for line in text_lines(name):
        words = line.strip().split(maxsplit=1)
        yield Record({"smiles": "".join(words[:1]), "name": "".join(words[1:])})


def _jsonl(name: str, options: TableOptions) -> Iterator[Record]:
    def with_different_names(cells: list[tuple[str, Any]]) -> dict[str, Any]:
        check_different([column for column, _ in cells], name)
        return dict(cells)

    decoder = json.JSONDecoder(object_pairs_hook=with_different_names)
    for row, line in enumerate(text_lines(name), 1):
        try:
            cells = dict(decoder.decode(line)) if line.strip() else {}
        except InputError:
            raise
        except (ValueError, TypeError, RecursionError):
            raise InputError(
                f"{name}, row {row}: {line[:80].strip()!r} is not a JSON object; "
                "every line must be one"
            ) from None
        yield _with_whole_characters(cells) if "\\u" in line else Record(cells)


def _with_whole_characters(cells: dict[str, Any]) -> Record:
    """A row of JSON; one with half a character has a problem, because no file could hold that."""
    text = json.dumps(cells, ensure_ascii=False)
    if not HALF_CHARACTER.search(text):
        return Record(cells)
    return Record(json.loads(HALF_CHARACTER.sub("\ufffd", text)), HALF_CHARACTER_PROBLEM)


def _parquet(name: str, options: TableOptions) -> Iterator[Record]:
    with pyarrow.parquet.ParquetFile(name) as file:
        check_different(file.schema_arrow.names, name)
        for batch in file.iter_batches(batch_size=4096):
            yield from map(Record, batch.to_pylist())


def _fasta(name: str, options: TableOptions) -> Iterator[Record]:
    title = None
    sequence = ""
    # The added line ends the last sequence.
    for number, line in enumerate(chain(text_lines(name), [">"]), 1):
        line = line.strip()
        if line.startswith((";", "#")):
            continue  # a comment
        if line.startswith(">"):
            if title is not None:
                yield Record({"name": title, "sequence": sequence})
            title = line[1:].strip()
            sequence = ""
        elif title is None and line:
            raise InputError(
                f"{name}, line {number}: a FASTA file begins with > and a name; this line does not"
            )
        else:
            sequence += "".join(line.split())  # some are written in blocks of ten
            check_length(sequence, name, "a sequence")


def _sdf(name: str, options: TableOptions) -> Iterator[Record]:
    """A structure's SMILES, its name (first line) and its properties. A property that is called as
    these, or as a usual column of texts, is the column `property NAME`: the structure is the text.
    What RDKit cannot read has a problem."""
    text = ""
    # The added line ends the last structure.
    for line in chain(text_lines(name), ["$$$$"]):
        if line.rstrip() != "$$$$":
            text += line.rstrip("\r\n") + "\n"
            check_length(text, name, "a structure")
            continue
        if text.strip():
            yield _structure(text[:-1], name)
        text = ""


def _structure(text: str, name: str) -> Record:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromMolBlock(text)
    smiles = "" if molecule is None else Chem.MolToSmiles(molecule)
    columns = ["smiles", "name"]
    cells = [smiles, text.split("\n", 1)[0].strip()]
    for title, value in re.findall(r"^>[^<\n]*<([^>\n]+)>.*\n((?:.+\n?)*)", text, re.MULTILINE):
        is_taken = title == "name" or text_columns([title], USUAL_NAMES)
        columns.append(f"property {title}" if is_taken else title)
        cells.append(value.strip())
    check_different(columns, name)
    problem = "RDKit cannot read this structure" if molecule is None else ""
    return Record(dict(zip(columns, cells, strict=True)), problem)


def _hub(name: str, options: TableOptions) -> Iterator[Record]:
    purpose = f"{name} is no file here; reading it as a Hugging Face data set"
    datasets = import_optional("datasets", "hub", purpose)
    match = HUB_NAME.fullmatch(name)
    assert match
    split = match["split"] or "train"
    try:
        rows = datasets.load_dataset(match["name"], match["config"], split=split, streaming=True)
        # The data set is opened only by its first row, and an error must show here.
        next(iter(rows), {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        raise InputError(
            f"{name} is neither a file here nor a Hugging Face data set that could be opened "
            f"({first_line(error)}); check the name and the network"
        ) from error
    yield from map(Record, rows)


# Each yields the records of the file of that name; options are for tables.
READERS: dict[str, Callable[[str, TableOptions], Iterator[Record]]] = {
    "smi": _smi, "csv": read_csv, "tsv": read_tsv, "jsonl": _jsonl,
    "parquet": _parquet, "fasta": _fasta, "conll": read_conll, "sdf": _sdf, "xlsx": read_xlsx,
    "lines": _lines, "hub": _hub,
}  # fmt: skip
# The format that a file has, by the ending of its name
SUFFIXES = {f".{name}": name for name in ("smi", "txt", *READERS) if name not in ("lines", "hub")}
SUFFIXES |= dict.fromkeys([".fa", ".faa", ".fas", ".fna", ".ffn", ".pep"], "fasta")
SUFFIXES |= {".conllu": "conll"}
READABLE = (  # for messages
    f"{', '.join(SUFFIXES)} file (those of text may be compressed: {', '.join(COMPRESSIONS)})"
)
