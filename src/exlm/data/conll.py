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
        words = _fields_of_words(lines)
        if has_numbers:
            # number, word, tag, nested tag: the tag moves to the end, as the last field is read
            words = [[word[1], *word[3:], *word[2:3]] for word in words if len(word) > 1]
        if words:
            yield _sentence(words)


def _has_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("-DOCSTART-")


def _fields_of_words(lines: list[str]) -> list[list[str]]:
    """[words, fields] of the lines of a sentence, without the comments at its beginning."""
    separator = "\t" if any("\t" in line for line in lines) else None
    fields_of_lines = [[field.strip() for field in line.split(separator)] for line in lines]
    for first, (line, fields) in enumerate(zip(lines, fields_of_lines, strict=True)):
        # The word # is no comment: it is labelled as the last word of its sentence is.
        is_word = not line.startswith("#") or _are_labelled_alike(fields, fields_of_lines[-1])
        if is_word and not CONLL_COMMENT.match(line):
            return fields_of_lines[first:]
    return []


def _are_labelled_alike(fields: list[str], others: list[str]) -> bool:
    """Whether two words have as many fields, and an entity's tag at the end of both or of none."""
    is_tag = bool(ENTITY_TAG.fullmatch(fields[-1]))
    return len(fields) == len(others) and is_tag == bool(ENTITY_TAG.fullmatch(others[-1]))


def _sentence(words: list[list[str]]) -> Record:
    """The record of a sentence, from [words, fields]; its cells are lists."""
    width = len(words[-1])
    if any(len(word) != width for word in words):
        return Record({"tokens": [word[0] for word in words]}, "lines of several widths")
    names = ["tokens", *[f"column {i}" for i in range(2, width)], "tags"][:width]
    if width == len(CONLL_U) and all(re.fullmatch(r"\d+([-.]\d+)?", word[0]) for word in words):
        names = CONLL_U
        # Ranges (1-2, of words that are written as one) and empty nodes (1.1) are left out.
        words = [word for word in words if word[0].isdecimal()]
    return Record({name: [word[i] for word in words] for i, name in enumerate(names)})
