"""File formats. A reader yields a record for each row of a file, in constant memory."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.columns import check_different, text_columns
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

LONGEST_SENTENCE = 100_000  # words
# the columns of .conllu
CONLL_U = ["id", "tokens", "lemma", "tags", "xpos", "feats", "head", "deprel", "deps", "misc"]
CONLL_COMMENT = re.compile(r"#\s*(\w+\s*=|newdoc|newpar)")
ENTITY_TAG = re.compile(r"O|[BIESLU]-\S+")
HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # one of two surrogates: JSON may have it
HALF_CHARACTER_FAULT = "it has half a character (a surrogate)"
# OWNER/NAME/CONFIG:SPLIT
HUB_NAME = re.compile(
    r"(?P<name>[\w-][\w.-]*(/[\w.-]+)?)(/(?P<config>[\w.-]+))?(:(?P<split>[\w.-]+))?"
)


def format_of(path: str | Path) -> str | None:
    """The key of READERS that a file's name stands for, or None."""
    if str(path) == STANDARD_INPUT:
        return "txt"
    suffix = plain_suffix(path)
    if suffix in (".parquet", ".xlsx") and Path(path).suffix.lower() in COMPRESSIONS:
        return None
    return SUFFIXES.get(suffix)


def _lines(name: str, options: TableOptions) -> Iterator[Record]:
    for line in text_lines(name):
        yield Record({"text": line.rstrip("\r\n")})


def _smi(name: str, options: TableOptions) -> Iterator[Record]:
    for line in text_lines(name):
        smiles, title = [*line.strip().split(maxsplit=1), "", ""][:2]
        yield Record({"smiles": smiles, "name": title})


def _txt(name: str, options: TableOptions) -> Iterator[Record]:
    """As .jsonl if the first line is a JSON object; as .fasta if the first lines are names behind >
    and sequences; as .smi if they have molecules and names; as .conll if they end with the tags of
    named entities; as a table if the first line has a tab or the name of a text column, if all
    first lines have as many fields, or if the options say what its header is; lines otherwise."""
    first = (first_lines(name) or [""])[0]
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(first), dict):
            return _jsonl(name, options)
    if options.columns_if_missing or not options.header:
        return read_tsv(name, options)
    if _has_sequences(name):
        return _fasta(name, options)
    if _has_molecules_and_names(name):
        return _smi(name, options)
    if _has_tagged_words(name):
        return _conll(name, options)
    has_text_column = bool(text_columns(re.split("[,;]", first))) and not _is_prose(first)
    if "\t" in first or has_text_column or _has_fields(name):
        return read_tsv(name, options)
    return _lines(name, options)


def _has_molecules_and_names(name: str) -> bool:
    """Whether the first lines of a file have molecules and, some of them, names behind these."""
    words = [line.split() for line in first_lines(name)[:10] if line.strip()]
    # A word of up to three letters may be a molecule by accident.
    may_be_smi = any(len(line) > 1 for line in words) and any(len(line[0]) > 3 for line in words)
    return may_be_smi and all(molecule_problem(line[0]) is None for line in words)


def _has_tagged_words(name: str) -> bool:
    """Whether each of the first lines has a word and, at its end, the tag of a named entity."""
    lines = [line.split() for line in first_lines(name) if not line.startswith(("#", "-DOCSTART-"))]
    return len(lines) > 2 and all(
        len(line) > 1 and ENTITY_TAG.fullmatch(line[-1]) for line in lines
    )


def _has_fields(name: str) -> bool:
    """Whether the first lines of a file have equally many fields, two or more, between commas or
    semicolons without a space behind them, as in prose."""
    for separator in ",;":
        rows = list(csv.reader(first_lines(name), delimiter=separator))
        widths = {len(row) for row in rows}
        if len(rows) > 1 and len(widths) == 1 and widths != {1}:
            return not any(cell.startswith(" ") for cell in rows[0])
    return False


def _is_prose(line: str) -> bool:
    """Whether commas are those of a sentence: spaces stand behind them, and three words between
    them."""
    return ", " in line and any(len(field.split()) > 2 for field in line.split(","))


def is_table(name: str) -> bool:
    """Whether a .txt file is a table: its first line has tabs and the name of a text column between
    them, or it has molecules or sequences and names. Prose may have a tab or a comma in its first
    line."""
    with read_errors(name):
        columns = (first_lines(name) or [""])[0].split("\t")
        has_text_column = len(columns) > 1 and bool(text_columns(columns))
        return has_text_column or _has_molecules_and_names(name) or _has_sequences(name)


def _has_sequences(name: str) -> bool:
    """Whether the first lines are those of a FASTA file."""
    lines = [line.strip() for line in first_lines(name) if not line.startswith((";", "#"))]
    names = [line for line in lines if line.startswith(">")]
    if not names or names[0] != lines[0] or len(names) == len(lines):
        return False
    return all(re.fullmatch(r"[A-Za-z*.-]*", line) for line in lines if line not in names)


def _jsonl(name: str, options: TableOptions) -> Iterator[Record]:
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


def _conll(name: str, options: TableOptions) -> Iterator[Record]:
    """Sentences between blank lines: a word in each line and behind it its labels, the last of them
    in the column `tags`. Lines before a sentence that begin with # are comments. Of CoNLL-U, with
    numbers before the words, `tags` are the parts of speech (UPOS)."""
    sentence: list[str] = []
    has_numbers = _has_numbered_tags(name)
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
            if has_numbers:  # the first tag counts, a nested one stands before it here
                rows = [[row[1], *row[3:], *row[2:3]] for row in rows if len(row) > 1]
            yield _sentence(rows)
        sentence = []


def _has_numbered_tags(name: str) -> bool:
    """Whether the first lines of a file have a running number, a word and the tag of an entity, as
    in GermEval, maybe with another tag behind."""
    number = 0
    for line in first_lines(name):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        number = 1 if fields[0] == "1" else number + 1
        if len(fields) not in (3, 4) or fields[0] != str(number):
            return False
        if not ENTITY_TAG.fullmatch(fields[2]):
            return False
    return number > 0


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


def _sdf(name: str, options: TableOptions) -> Iterator[Record]:
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


def _hub(name: str, options: TableOptions) -> Iterator[Record]:
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


# Each yields the records of the file of that name; options are for tables. `txt` is a list or a
# table, as its first lines say; `prepare` reads such a file as `lines` unless it `is_table`.
READERS: dict[str, Callable[[str, TableOptions], Iterator[Record]]] = {
    "smi": _smi, "txt": _txt, "csv": read_csv, "tsv": read_tsv, "jsonl": _jsonl,
    "parquet": _parquet, "fasta": _fasta, "conll": _conll, "sdf": _sdf, "xlsx": read_xlsx,
    "lines": _lines, "hub": _hub,
}  # fmt: skip
SUFFIXES = {f".{kind}": kind for kind in READERS if kind not in ("lines", "hub")}
SUFFIXES |= dict.fromkeys([".fa", ".faa", ".fas", ".fna", ".ffn", ".pep"], "fasta")
SUFFIXES |= {".conllu": "conll"}
_PACKED = f"those of text may be compressed: {', '.join(COMPRESSIONS)}"
READABLE = f"{', '.join(SUFFIXES)} file ({_PACKED})"  # for messages
