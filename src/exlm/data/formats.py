"""File formats. A reader yields a record for each row of a file, in constant memory."""

import csv
import io
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache
from itertools import chain, count, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.columns import check_different, listed, text_columns
from exlm.data.files import (
    COMPRESSIONS,
    LARGEST,
    LONGEST,
    STANDARD_INPUT,
    check_length,
    open_text,
    plain_suffix,
    read_errors,
    text_lines,
)
from exlm.errors import InputError, first_line, import_optional

LONGEST_SENTENCE = 100_000  # words
QUOTES_SAMPLE = 2**18  # characters of a file in which quotes around cells are looked for
SEPARATORS = ",;\t|"
# the columns of .conllu
CONLL_U = ["id", "tokens", "lemma", "tags", "xpos", "feats", "head", "deprel", "deps", "misc"]
CONLL_COMMENT = re.compile(r"#\s*(\w+\s*=|newdoc|newpar)")
ENTITY_TAG = re.compile(r"O|[BIESLU]-\S+")
# a cell between tabs that begins with a quote and has two in a row
DOUBLED_QUOTE = re.compile(r'(^|\t)"([^"]|"")*?""', re.MULTILINE)
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # one of two surrogates: JSON may have it
HALF_CHARACTER_FAULT = "it has half a character (a surrogate)"
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(
    r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?"
)

# Whether a table has a header line; or the columns of one that may lack this line.
Header = bool | tuple[str, ...]


class Record(NamedTuple):
    """A row of a file."""

    cells: dict[Any, Any]  # by the name of the column; empty if the line is blank
    fault: str = ""  # why the row should not be used


def format_of(path: str | Path) -> str | None:
    """The key of READERS that a file's name stands for, or None."""
    if str(path) == STANDARD_INPUT:
        return "txt"
    suffix = plain_suffix(path)
    if suffix in (".parquet", ".xlsx") and Path(path).suffix.lower() in COMPRESSIONS:
        return None
    return SUFFIXES.get(suffix)


def _lines(name: str, header: Header) -> Iterator[Record]:
    for line in text_lines(name):
        yield Record({"text": line.rstrip("\r\n")})


def _smi(name: str, header: Header) -> Iterator[Record]:
    for line in text_lines(name):
        smiles, title = [*line.strip().split(maxsplit=1), "", ""][:2]
        yield Record({"smiles": smiles, "name": title})


def _txt(name: str, header: Header) -> Iterator[Record]:
    """As .jsonl if the first line is a JSON object; as .smi if the first lines have molecules and
    names; as .conll if they end with the tags of named entities; as a table if the first line has a
    tab or the name of a text column, if all first lines have as many fields, or if `header` is set;
    lines otherwise."""
    first = (_first_lines(name) or [""])[0]
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(first), dict):
            return _jsonl(name, header)
    if header is not True:
        return _tsv(name, header)
    if _has_molecules_and_names(name):
        return _smi(name, header)
    if _has_tagged_words(name):
        return _conll(name, header)
    if "\t" in first or text_columns(re.split("[,;]", first)) or _has_fields(name):
        return _tsv(name, header)
    return _lines(name, header)


def _has_molecules_and_names(name: str) -> bool:
    """Whether the first lines of a file have molecules and, some of them, names behind these."""
    words = [line.split() for line in _first_lines(name)[:10] if line.strip()]
    # A word of up to three letters may be a molecule by accident.
    may_be_smi = any(len(line) > 1 for line in words) and any(len(line[0]) > 3 for line in words)
    return may_be_smi and all(molecule_problem(line[0]) is None for line in words)


def _has_tagged_words(name: str) -> bool:
    """Whether each of the first lines has a word and, at its end, the tag of a named entity."""
    lines = [
        line.split() for line in _first_lines(name) if not line.startswith(("#", "-DOCSTART-"))
    ]
    return len(lines) > 2 and all(
        len(line) > 1 and ENTITY_TAG.fullmatch(line[-1]) for line in lines
    )


def _has_fields(name: str) -> bool:
    """Whether the first lines of a file have equally many fields, two or more, between commas or
    semicolons without a space behind them, as in prose."""
    for separator in ",;":
        rows = list(csv.reader(_first_lines(name), delimiter=separator))
        widths = {len(row) for row in rows}
        if len(rows) > 1 and len(widths) == 1 and widths != {1}:
            return not any(cell.startswith(" ") for cell in rows[0])
    return False


def is_table(name: str) -> bool:
    """Whether a .txt file is a table: its first line has tabs and the name of a text column between
    them, or it has molecules and names. Prose may have a tab or a comma in its first line."""
    with read_errors(name):
        columns = (_first_lines(name) or [""])[0].split("\t")
        has_text_column = len(columns) > 1 and bool(text_columns(columns))
        return has_text_column or _has_molecules_and_names(name)


def _csv(name: str, header: Header) -> Iterator[Record]:
    return _separated(name, header, _separator(name, ","))


def _separated(name: str, header: Header, separator: str) -> Iterator[Record]:
    rows = _csv_rows(name, separator)
    if _named_separator(_first_lines(name)):
        next(rows)
    return _records(rows, header, name, may_be_short=True)


def _tsv(name: str, header: Header) -> Iterator[Record]:
    separator = _separator(name, "\t")
    # Columns are given for files of GLUE, in which quotes are part of the text.
    may_have_quotes = isinstance(header, bool)
    if separator != "\t" or (may_have_quotes and _has_quoted_cells(name)):
        return _separated(name, header, separator)
    return _records(_tsv_rows(name), header, name, may_be_short=False)


def _has_quoted_cells(name: str) -> bool:
    """Whether quotes enclose cells between tabs, as R and pandas write them: every cell of the
    first 256 KiB that begins with a quote also ends with one, and the first cell does, or a quote
    inside is doubled. In other files quotes are part of the text."""
    with open_text(name) as file:
        sample = file.read(QUOTES_SAMPLE)
    if not (sample.startswith('"') or DOUBLED_QUOTE.search(sample)):
        return False
    try:
        for _ in csv.reader(io.StringIO(sample, newline=""), delimiter="\t", strict=True):
            pass
    except csv.Error as error:
        is_cut = len(sample) == QUOTES_SAMPLE
        return is_cut and "end of data" in str(error)
    return True


def _separator(name: str, usual: str) -> str:
    """The separator of a table: the one that its first line names, or the only one that divides all
    lines alike, or, if the first line lacks the usual one, the only one that divides most lines
    alike; else the usual one."""
    lines = _first_lines(name)
    if named := _named_separator(lines):
        return named
    candidates = [mark for mark in SEPARATORS if _divides(lines, mark, least_share=1)]
    if not candidates and lines and usual not in lines[0]:
        candidates = [mark for mark in SEPARATORS if _divides(lines, mark, least_share=0.51)]
    return candidates[0] if len(candidates) == 1 else usual


def _divides(lines: list[str], mark: str, least_share: float) -> bool:
    """Whether a separator divides the first line, and divides no other into more fields and at
    least this share of them into as many."""
    first, *others = [len(row) for row in csv.reader(lines, delimiter=mark)] or [0]
    return (
        first > 1
        and max(others, default=0) <= first
        and others.count(first) >= least_share * len(others)
    )


def _named_separator(lines: list[str]) -> str | None:
    """The separator that Excel's first line names: `sep=;`."""
    match = re.fullmatch('"?sep=([,;\t])"?', lines[0]) if lines else None
    return match and match[1]


def _first_lines(name: str) -> list[str]:
    """Those of the first 20 lines of a file that are not empty, as far as they are whole within
    64 KiB; the first one may be cut."""
    with open_text(name) as file:
        first, *others = re.split(r"\r\n|\r|\n", file.read(2**16))
        if others and file.read(1):
            others.pop()
        return [line for line in [first, *others[:19]] if line]


def _csv_rows(name: str, separator: str) -> Iterator[list[str]]:
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


def _tsv_rows(name: str) -> Iterator[list[str]]:
    """Quotes are ordinary characters here, as in the files of GLUE, and so are carriage returns
    inside a line."""
    for line in text_lines(name, newline="\n"):
        line = line.rstrip("\n").removesuffix("\r")
        yield line.split("\t") if line else []


def _xlsx(name: str, header: Header, sheet: str | None = None) -> Iterator[Record]:
    """A sheet of a workbook, the first where none is named. InputError if there is none of the
    name."""
    openpyxl = import_optional("openpyxl", "excel", f"reading {name}")
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise ValueError(f"it is larger than {LARGEST:,} bytes when it is unpacked")
        with closing(openpyxl.load_workbook(name, read_only=True, data_only=True)) as book:
            sheets = {entry.title: entry for entry in book.worksheets}
            if sheet is not None and sheet not in sheets:
                raise InputError(f"{name}: no sheet {sheet!r}; it has: {listed(sheets)}")
            if sheet is None:
                sheet = next(iter(sheets))
                _name_sheet(name, sheet, listed(other for other in sheets if other != sheet))
            with closing(openpyxl.load_workbook(name, read_only=True)) as formulas:
                rows = _xlsx_rows(name, sheets[sheet], formulas[sheet])
                yield from _records(rows, header, name, may_be_short=True)
    except InputError:
        raise
    except Exception as error:  # the library raises anything
        raise InputError(
            f"{name} cannot be read: {first_line(error)}; save it again as .xlsx"
        ) from error


@cache  # a command may read a file several times
def _name_sheet(name: str, sheet: str, others: str) -> None:
    if others:
        print(
            f"note: of {name}, the sheet {sheet!r} is read; there are also: {others} (--sheet)",
            file=sys.stderr,
        )


def _xlsx_rows(name: str, sheet: Any, formulas: Any) -> Iterator[list[Any]]:
    """The rows of a sheet. A row without cells is blank; one with a label of 0 or False is not.
    `formulas` is the same sheet, read with formulas in place of their values. InputError if it has
    formulas and no values of them: only spreadsheet programs compute them."""
    limit = 2**20  # as many rows as Excel can have
    both = zip(
        sheet.iter_rows(max_row=limit, values_only=True),
        formulas.iter_rows(max_row=limit, values_only=True),
        strict=True,
    )
    formula = None
    has_values = False
    for row, contents in both:
        for value, content in zip(row, contents, strict=False):
            if value != content:
                formula = content
                has_values |= value is not None
        cells = ["" if cell is None else cell for cell in row]
        yield cells if any(cell != "" for cell in cells) else []
    if formula is not None and not has_values:
        raise InputError(
            f"{name} has formulas such as {formula!r} without their values; "
            "open it in a spreadsheet program and save it again, or paste values over them"
        )


def _records(
    rows: Iterator[list[Any]], header: Header, name: str, may_be_short: bool
) -> Iterator[Record]:
    """Rows of cells as records. With `may_be_short`, missing cells at the end of a row are "", and
    no fault."""
    first = next(rows, None)
    if first is None:
        return
    columns, first_is_data = _columns(first, header)
    check_different(columns, name)
    if first_is_data:
        rows = chain([first], rows)
    for cells in rows:
        if not cells:
            yield Record({})
            continue
        fault = ""
        if len(cells) > len(columns) or (len(cells) < len(columns) and not may_be_short):
            fault = f"{len(cells)} fields instead of {len(columns)}"
        yield Record(dict(zip_longest(columns, cells[: len(columns)], fillvalue="")), fault)


def _columns(first: list[Any], header: Header) -> tuple[list[str], bool]:
    """The names of a table's columns, and whether its first row is data already."""
    if header is False:
        return [f"column {i}" for i in range(1, len(first) + 1)], True
    if header is not True and set(header).isdisjoint(first):
        return list(header), True
    return [str(cell) or f"Unnamed: {i}" for i, cell in enumerate(first)], False


def _jsonl(name: str, header: Header) -> Iterator[Record]:
    for row, line in enumerate(text_lines(name), 1):
        try:
            cells = dict(json.loads(line)) if line.strip() else {}
        except (ValueError, TypeError, RecursionError):
            raise InputError(
                f"{name}, row {row}: {line[:80].strip()!r} is not a JSON object; "
                "every line must be one"
            ) from None
        yield _with_whole_characters(cells) if "\\u" in line else Record(cells)


def _with_whole_characters(cells: dict[str, Any]) -> Record:
    """A row of JSON, which has a fault if it holds half a character: no file could hold that."""
    text = json.dumps(cells, ensure_ascii=False)
    if not HALF_CHARACTER.search(text):
        return Record(cells)
    return Record(json.loads(HALF_CHARACTER.sub("\ufffd", text)), HALF_CHARACTER_FAULT)


def _parquet(name: str, header: Header) -> Iterator[Record]:
    with pyarrow.parquet.ParquetFile(name) as file:
        check_different(file.schema_arrow.names, name)
        for batch in file.iter_batches(batch_size=4096):
            yield from map(Record, batch.to_pylist())


def _fasta(name: str, header: Header) -> Iterator[Record]:
    title = None
    sequence = ""
    # The added line ends the last sequence.
    for number, line in enumerate(chain(text_lines(name), [">"]), 1):
        line = line.strip()
        if line.startswith(";"):
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
            sequence += line
            check_length(sequence, name, "a sequence")


def _conll(name: str, header: Header) -> Iterator[Record]:
    """Sentences between blank lines: a word in each line and behind it its labels, the last of them
    in the column `tags`. Lines before a sentence that begin with # are comments. Of CoNLL-U, with
    numbers before the words, `tags` are the parts of speech (UPOS)."""
    sentence: list[str] = []
    # The added line ends the last sentence.
    for line in chain(text_lines(name), [""]):
        if line.strip() and not line.startswith("-DOCSTART-"):
            sentence.append(line)
            if len(sentence) > LONGEST_SENTENCE:
                raise InputError(
                    f"{name}: a sentence has more than {LONGEST_SENTENCE:,} lines; "
                    "put a blank line between sentences"
                )
            continue
        if rows := _without_comments(sentence):
            yield _sentence(rows)
        sentence = []


def _without_comments(lines: list[str]) -> list[list[str]]:
    """The fields of the lines of a sentence, from the first that is no comment."""
    separator = "\t" if any("\t" in line for line in lines) else None
    rows = [[field.strip() for field in line.split(separator)] for line in lines]
    for first, (line, fields) in enumerate(zip(lines, rows, strict=True)):
        # A word may be #, with as many labels as the others, and such labels.
        are_tags = [bool(ENTITY_TAG.fullmatch(labels[-1])) for labels in (fields, rows[-1])]
        is_like_others = len(fields) == len(rows[-1]) and are_tags[0] == are_tags[1]
        is_word = is_like_others and not CONLL_COMMENT.match(line)
        if is_word or not line.startswith("#"):
            return rows[first:]
    return []


def _sentence(rows: list[list[str]]) -> Record:
    width = len(rows[-1])
    if any(len(fields) != width for fields in rows):
        return Record({"tokens": [fields[0] for fields in rows]}, "lines of several widths")
    if width == len(CONLL_U) and all(re.fullmatch(r"\d+([-.]\d+)?", row[0]) for row in rows):
        # without ranges (1-2, of words that are written as one) and empty nodes (1.1)
        words = [row for row in rows if row[0].isdecimal()]
        return Record({name: [row[i] for row in words] for i, name in enumerate(CONLL_U)})
    names = ["tokens", *[f"column {i}" for i in range(2, width)], "tags"][:width]
    return Record({name: [fields[i] for fields in rows] for i, name in enumerate(names)})


def _sdf(name: str, header: Header) -> Iterator[Record]:
    """A structure's SMILES, its name (first line) and its properties. What RDKit cannot read has a
    fault."""
    text = ""
    # The added line ends the last structure.
    for line in chain(text_lines(name), ["$$$$"]):
        if line.rstrip() != "$$$$":
            text += line.rstrip("\r\n") + "\n"
            check_length(text, name, "a structure")
            continue
        if text.strip():
            yield _structure(text[:-1])
        text = ""


def _structure(text: str) -> Record:
    with rdBase.BlockLogs():
        molecule = Chem.MolFromMolBlock(text)
    smiles = "" if molecule is None else Chem.MolToSmiles(molecule)
    cells = {"smiles": smiles, "name": text.split("\n", 1)[0].strip()}
    for title, value in re.findall(r"^>[^<\n]*<([^>\n]+)>.*\n((?:.+\n?)*)", text, re.MULTILINE):
        cells[f"property {title}" if title in cells else title] = value.strip()
    return Record(cells, "RDKit cannot read this structure" if molecule is None else "")


def _hub(name: str, header: Header) -> Iterator[Record]:
    purpose = f"{name} is no file here; reading it as a Hugging Face data set"
    datasets = import_optional("datasets", "hub", purpose)
    parts = HUB_NAME.fullmatch(name)
    assert parts
    data_set, config, split = parts["name"], parts["config"], parts["split"] or "train"
    try:
        rows = datasets.load_dataset(data_set, config, split=split, streaming=True)
        # It is opened only now, and an error must show here.
        next(iter(rows), {})
    except Exception as error:  # the hub client raises anything from ConnectionError to ValueError
        raise InputError(
            f"{name} is neither a file here nor a Hugging Face data set that could be opened "
            f"({first_line(error)}); check the name and the network"
        ) from error
    yield from map(Record, rows)


# Each yields the records of the file of that name. `header` is for tables; the other readers
# ignore it. That of .xlsx takes the name of a sheet, too. `txt` is a list or a table, as
# its first lines say; `prepare` reads such a file as `lines`.
READERS: dict[str, Callable[..., Iterator[Record]]] = {
    "smi": _smi, "txt": _txt, "csv": _csv, "tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet,
    "fasta": _fasta, "conll": _conll, "sdf": _sdf, "xlsx": _xlsx, "lines": _lines, "hub": _hub,
}  # fmt: skip
SUFFIXES = {f".{kind}": kind for kind in READERS if kind not in ("lines", "hub")}
SUFFIXES |= {".fa": "fasta", ".faa": "fasta", ".conllu": "conll"}
_PACKED = f"those of text may be compressed: {', '.join(COMPRESSIONS)}"
READABLE = f"{', '.join(SUFFIXES)} file ({_PACKED})"  # for messages
