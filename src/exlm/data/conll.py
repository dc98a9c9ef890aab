"""The reader of .conll and .conllu files: sentences between blank lines, a word in each line."""

import re
from collections.abc import Iterator
from itertools import groupby, islice

from exlm.data.formats import DataFile, Record
from exlm.data.open_files import first_lines, text_lines
from exlm.errors import InputError

LONGEST_SENTENCE = 100_000  # words
# The columns of .conllu files
CONLL_U = ["id", "tokens", "lemma", "tags", "xpos", "feats", "head", "deprel", "deps", "misc"]
CONLL_COMMENT = re.compile(r"#\s*(\w+\s*=|newdoc|newpar)")
TAG = r"(O|[BIESLU]-\S+)"
ENTITY_TAG = re.compile(TAG)
# The first lines of a sentence with a running number, a word and its tag, as in GermEval
NUMBERED_TAGS = re.compile(rf"^1\s\S+\s{TAG}([ \t].*)?\n2\s\S+\s{TAG}(\s|$)", re.MULTILINE)


def read_conll(file: DataFile) -> Iterator[Record]:
    """Sentences between blank lines: a word in each line and after it its labels, the last of them
    in the column `tags`. Lines before a sentence that begin with # are comments. Of CoNLL-U, with
    numbers before the words, `tags` are the parts of speech (UPOS)."""
    has_numbers = bool(NUMBERED_TAGS.search("\n".join(first_lines(file.name))))
    for is_sentence, group in groupby(text_lines(file.name), _has_word):
        if not is_sentence:
            continue
        lines = list(islice(group, LONGEST_SENTENCE + 1))
        if len(lines) > LONGEST_SENTENCE:
            raise InputError(
                f"{file.name}: a sentence has more than {LONGEST_SENTENCE:,} lines; "
                "put a blank line between sentences"
            )
        rows = _without_comments(lines)
        if has_numbers:
            # The first tag becomes the last field, because it counts; a nested one follows it.
            rows = [[row[1], *row[3:], *row[2:3]] for row in rows if len(row) > 1]
        if rows:
            yield _sentence(rows)


def _has_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _without_comments(lines: list[str]) -> list[list[str]]:
    """The fields of the lines of a sentence, from the first that is no comment."""
    separator = "\t" if any("\t" in line for line in lines) else None
    rows = [[field.strip() for field in line.split(separator)] for line in lines]
    for first, (line, fields) in enumerate(zip(lines, rows, strict=True)):
        # A word may be #, too; it is labelled as the last word of its sentence is.
        is_word = not line.startswith("#") or _are_labelled_alike(fields, rows[-1])
        if is_word and not CONLL_COMMENT.match(line):
            return rows[first:]
    return []


def _are_labelled_alike(fields: list[str], others: list[str]) -> bool:
    """Whether the fields of two words are as many, and the last is an entity's tag in both or in
    none."""
    is_tag = bool(ENTITY_TAG.fullmatch(fields[-1]))
    return len(fields) == len(others) and is_tag == bool(ENTITY_TAG.fullmatch(others[-1]))


def _sentence(rows: list[list[str]]) -> Record:
    """The record of a sentence, from the fields of its lines; its cells are lists."""
    width = len(rows[-1])
    if any(len(fields) != width for fields in rows):
        return Record({"tokens": [fields[0] for fields in rows]}, "lines of several widths")
    if width == len(CONLL_U) and all(re.fullmatch(r"\d+([-.]\d+)?", row[0]) for row in rows):
        # Ranges (1-2, of words that are written as one) and empty nodes (1.1) are left out.
        words = [row for row in rows if row[0].isdecimal()]
        return Record({name: [row[i] for row in words] for i, name in enumerate(CONLL_U)})
    names = ["tokens", *[f"column {i}" for i in range(2, width)], "tags"][:width]
    return Record({name: [fields[i] for fields in rows] for i, name in enumerate(names)})
