"""One record for each row of a file, in constant memory: a reader for each format."""

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pandas as pd
from rdkit import Chem, rdBase

from exlm.data.columns import BEST_TEXT_NAMES, check_different, find_usual_columns, listed
from exlm.data.conll import read_conll
from exlm.data.delimited import first_row, name_columns, read_delimited, records_of
from exlm.data.formats import HUB_NAME, DataFile, Record
from exlm.data.open_files import LARGEST_FILE, check_length, note_once, path_of, text_lines
from exlm.errors import InputError, first_line, import_optional

HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # one of two surrogates: JSON may have it
HALF_CHARACTER_PROBLEM = "it has half a character (a surrogate)"


def _lines(file: DataFile) -> Iterator[Record]:
    for line in text_lines(file.name):
        yield Record({"text": line.rstrip("\r\n")})


def _smi(file: DataFile) -> Iterator[Record]:
    for line in text_lines(file.name):
        fields = line.strip().split(maxsplit=1)
        yield Record({"smiles": "".join(fields[:1]), "name": "".join(fields[1:])})


def _jsonl(file: DataFile) -> Iterator[Record]:
    def with_different_names(cells: list[tuple[str, Any]]) -> dict[str, Any]:
        check_different([column for column, _ in cells], file.name)
        return dict(cells)

    decoder = json.JSONDecoder(object_pairs_hook=with_different_names)
    for row, line in enumerate(text_lines(file.name), 1):
        try:
            cells = decoder.decode(line) if line.strip() else {}
        except InputError:
            raise
        except (ValueError, RecursionError):
            cells = None
        if not isinstance(cells, dict):
            raise InputError(
                f"{file.name}, row {row}: {line[:80].strip()!r} is not a JSON object; "
                "every line must be one"
            )
        yield _with_whole_characters(cells) if "\\u" in line else Record(cells)


def _with_whole_characters(cells: dict[str, Any]) -> Record:
    """A row of JSON; one with half a character has a problem, because no file could hold that."""
    text = json.dumps(cells, ensure_ascii=False)
    if not HALF_CHARACTER.search(text):
        return Record(cells)
    return Record(json.loads(HALF_CHARACTER.sub("\ufffd", text)), HALF_CHARACTER_PROBLEM)


def _fasta(file: DataFile) -> Iterator[Record]:
    title = None
    sequence = ""
    # The added line ends the last sequence.
    for number, line in enumerate(chain(text_lines(file.name), [">"]), 1):
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
                f"{file.name}, line {number}: a FASTA file begins with > and a name; "
                "this line does not"
            )
        else:
            sequence += "".join(line.split())  # some are written in blocks of ten
            check_length(sequence, file.name, "a sequence")


def _sdf(file: DataFile) -> Iterator[Record]:
    """A structure's SMILES, its name (first line) and its properties. A property that is called as
    these, or as a usual column of texts, is the column `property NAME`: the structure is the text.
    What RDKit cannot read has a problem."""
    text = ""
    number = 0
    # The added line ends the last structure.
    for line in chain(text_lines(file.name), ["$$$$"]):
        if line.rstrip() != "$$$$":
            text += line.rstrip("\r\n") + "\n"
            check_length(text, file.name, "a structure")
            continue
        if text.strip():
            number += 1
            yield _structure(text[:-1], f"{file.name}, row {number}")
        text = ""


def _structure(text: str, where: str) -> Record:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromMolBlock(text)
    smiles = "" if molecule is None else Chem.MolToSmiles(molecule)
    columns = ["smiles", "name"]
    cells = [smiles, text.partition("\n")[0].strip()]
    for title, value in re.findall(r"^>[^<\n]*<([^>\n]+)>.*\n((?:.+\n?)*)", text, re.MULTILINE):
        is_taken = title == "name" or find_usual_columns([title], BEST_TEXT_NAMES)
        columns.append(f"property {title}" if is_taken else title)
        cells.append(value.strip())
        if columns.count(columns[-1]) > 1:
            raise InputError(
                f"{where} ({cells[1]!r}): two properties are called {title!r}; rename or remove one"
            )
    problem = "RDKit cannot read this structure" if molecule is None else ""
    return Record(dict(zip(columns, cells, strict=True)), problem)


def _rows_of_sheet(file: DataFile) -> Iterator[list[Any]]:
    """The rows of a sheet of a workbook. InputError if there is no sheet of the name."""
    import_optional("openpyxl", "excel", f"reading {file.name}")
    path = path_of(file.name)
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise ValueError(f"it is larger than {LARGEST_FILE:,} bytes when it is unpacked")
        with pd.ExcelFile(path, "openpyxl") as book:
            sheet = file.sheet or str(book.sheet_names[0])
            if sheet not in book.sheet_names:
                raise InputError(
                    f"{file.name}: no sheet {sheet!r}; it has: {listed(book.sheet_names)}"
                )
            other_sheets = listed(book.sheet_names[1:])
            if file.sheet is None and other_sheets:
                note_once(
                    f"of {file.name}, the sheet {sheet!r} is read; "
                    f"--sheet reads one of the others: {other_sheets}"
                )
            cells = pd.read_excel(book, sheet, header=None, dtype=object, na_filter=False)
        frame = cells.where(cells.notna(), "")  # errors such as #N/A are missing cells
        with pd.ExcelFile(path, "openpyxl", engine_kwargs={"data_only": False}) as book:
            _check_formulas(file.name, frame, book.book[sheet])
            _note_zeros(file.name, book.book[sheet])
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{file.name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error
    return iter(frame.values.tolist())


def _check_formulas(name: str, values: pd.DataFrame, sheet: Any) -> None:
    """InputError if a sheet has formulas and no values of them: only spreadsheet programs compute
    them."""
    height, width = values.shape
    formulas = [cell for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    inside = [cell for cell in formulas if cell.row <= height and cell.column <= width]
    if formulas and all(values.iat[cell.row - 1, cell.column - 1] == "" for cell in inside):
        raise InputError(
            f"{name} has formulas such as {formulas[0].value!r} without their values, the first in "
            f"cell {formulas[0].coordinate}; open it in a spreadsheet program and save it again, "
            "or paste values over them; make a text cell of a text that begins with ="
        )


def _note_zeros(name: str, sheet: Any) -> None:
    """Says if a format alone puts zeros in front of numbers, as 0000000 makes 0000579 of 579."""
    for cell in (cell for row in sheet.iter_rows() for cell in row):
        zeros = re.fullmatch("00+", cell.number_format or "")  # an empty cell may have no format
        if zeros and isinstance(cell.value, int) and len(str(cell.value)) < len(zeros[0]):
            note_once(
                f"{name} shows zeros in front of numbers, as in {cell.coordinate}, by the format "
                f"{cell.number_format}; they are no part of the numbers, which are read as "
                f"{cell.value}; make texts of the cells to keep the zeros"
            )
            return


def _hub(file: DataFile) -> Iterator[Record]:
    purpose = f"{file.name} is no file here; reading it as a Hugging Face data set"
    datasets = import_optional("datasets", "hub", purpose)
    match = HUB_NAME.fullmatch(file.name)
    assert match
    split = match["split"] or "train"
    try:
        rows = datasets.load_dataset(match["name"], match["config"], split=split, streaming=True)
        # The data set is opened only by its first row, and an error must show here.
        next(iter(rows), {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        raise InputError(
            f"{file.name} is neither a file here nor a Hugging Face data set that could be opened "
            f"({first_line(error)}); check the name and the network"
        ) from error
    yield from map(Record, rows)


# Each gives the rows of cells of a table; the first that is not blank names the columns.
ROW_READERS: dict[str, Callable[[DataFile], Iterator[list[Any]]]] = {
    "csv": read_delimited,
    "tsv": read_delimited,
    "xlsx": _rows_of_sheet,
}


def _table(file: DataFile) -> Iterator[Record]:
    yield from records_of(ROW_READERS[file.format](file), file)


def columns_without_names(file: DataFile) -> list[str]:
    """What the columns of a table are called here whose headings are empty in the file."""
    if file.format not in ROW_READERS or not file.has_names:
        return []
    headings = first_row(ROW_READERS[file.format](file))
    names = name_columns(headings)
    return [name for name, heading in zip(names, headings, strict=True) if not str(heading)]


# Each yields the records of a file. Parquet files have none: `frames.py` reads them as they are.
READERS: dict[str, Callable[[DataFile], Iterator[Record]]] = {
    "smi": _smi,
    **dict.fromkeys(ROW_READERS, _table),
    "jsonl": _jsonl,
    "fasta": _fasta,
    "conll": read_conll,
    "sdf": _sdf,
    "lines": _lines,
    "hub": _hub,
}
