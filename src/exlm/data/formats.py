"""File formats. A reader yields a record for each row of a file, in constant memory."""

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from rdkit import Chem, rdBase

from exlm.data.columns import USUAL_NAMES, check_different, listed, text_columns
from exlm.data.conll import read_conll
from exlm.data.files import (
    COMPRESSIONS,
    LARGEST_FILE,
    STANDARD_INPUT,
    check_length,
    first_lines,
    note_once,
    plain_suffix,
    read_errors,
    text_lines,
)
from exlm.data.tabular import Record, TableOptions, read_csv, records_of
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


def reader_name(path: str | Path) -> str:
    """The format of a file: a key of READERS, or parquet. A .txt file and standard input are a
    table if their first line has a tab; else each line is a text. InputError if the ending of the
    name is unknown, or if the first line of a .txt file is that of a .fasta or .jsonl file."""
    file_format = format_of(path)
    if file_format is None:
        raise InputError(f"{path}: unknown file type; use a {READABLE}")
    if file_format != "txt":
        return file_format
    with read_errors(path):
        first_line_of_file = next(iter(first_lines(str(path))), "")
    for ending, start in ((".fasta", r">(?=\S)"), (".jsonl", r'\{\s*"')):
        if match := re.match(start, first_line_of_file):
            raise InputError(
                f"{path} begins with {match.group()}, as a {ending} file does; "
                f"give it a name that ends in {ending}"
            )
    return "tsv" if "\t" in first_line_of_file else "lines"


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


def _xlsx(name: str, options: TableOptions) -> Iterator[Record]:
    """The rows of a sheet of a workbook; one without cells is blank. InputError if there is no
    sheet of the name."""
    import_optional("openpyxl", "excel", f"reading {name}")
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise ValueError(f"it is larger than {LARGEST_FILE:,} bytes when it is unpacked")
        with pd.ExcelFile(name, "openpyxl") as book:
            sheet = options.sheet or str(book.sheet_names[0])
            if sheet not in book.sheet_names:
                raise InputError(f"{name}: no sheet {sheet!r}; it has: {listed(book.sheet_names)}")
            other_sheets = listed(book.sheet_names[1:])
            if options.sheet is None and other_sheets:
                note_once(
                    f"of {name}, the sheet {sheet!r} is read; --sheet reads one of the others: "
                    f"{other_sheets}"
                )
            cells = pd.read_excel(book, sheet, header=None, dtype=object, na_filter=False)
        frame = cells.where(cells.notna(), "")  # errors such as #N/A are missing cells
        with pd.ExcelFile(name, "openpyxl", engine_kwargs={"data_only": False}) as book:
            _check_formulas(name, frame, book.book[sheet])
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error
    rows = (row if any(cell != "" for cell in row) else [] for row in frame.values.tolist())
    yield from records_of(rows, options, name)


def _check_formulas(name: str, values: pd.DataFrame, sheet: Any) -> None:
    """InputError if a sheet has formulas and no values of them: only spreadsheet programs compute
    them."""
    height, width = values.shape
    formulas = [cell for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    inside = [cell for cell in formulas if cell.row <= height and cell.column <= width]
    if formulas and all(values.iat[cell.row - 1, cell.column - 1] == "" for cell in inside):
        raise InputError(
            f"{name} has formulas such as {formulas[0].value!r} without their values; "
            "open it in a spreadsheet program and save it again, or paste values over them"
        )


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
    "smi": _smi,
    "csv": read_csv,
    "tsv": partial(read_csv, usual="\t"),
    "jsonl": _jsonl,
    "fasta": _fasta,
    "conll": read_conll,
    "sdf": _sdf,
    "xlsx": _xlsx,
    "lines": _lines,
    "hub": _hub,
}
# The format that a file has, by the ending of its name
SUFFIXES = {
    f".{name}": name for name in ("smi", "txt", *READERS, "parquet") if name not in ("lines", "hub")
}
SUFFIXES |= dict.fromkeys([".fa", ".faa", ".fas", ".fna", ".ffn", ".pep"], "fasta")
SUFFIXES |= {".conllu": "conll"}
READABLE = (  # for messages
    f"{', '.join(SUFFIXES)} file (those of text may be compressed: {', '.join(COMPRESSIONS)})"
)
