"""The reader of .conll and .conllu files: sentences between blank lines, a word in each line."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, takewhile

from exlm.data.formats import DataFile, Record
from exlm.data.open_files import first_lines, note_once, plain_suffix, text_lines
from exlm.errors import InputError

LONGEST_SENTENCE = 100_000  # words
# The columns of .conllu files
CONLL_U = ["id", "tokens", "lemma", "tags", "xpos", "feats", "head", "deprel", "deps", "misc"]
CONLL_COMMENT = re.compile(r"#\s*(\w+\s*=|(newdoc|newpar)(?!\S))")
SAMPLE_SIZE = 1000  # sentences that tell how many comments there are before each
TAG = r"(O|[BIESLU]-\S+)"
ENTITY_TAG = re.compile(TAG)
# The first lines of a sentence with a running number, a word and its tag, as in GermEval
NUMBERED_TAGS = re.compile(rf"^1\s\S+\s{TAG}([ \t].*)?\n2\s\S+\s{TAG}(\s|$)", re.MULTILINE)


def read_conll(file: DataFile) -> Iterator[Record]:
    """Sentences between blank lines: a word in each line and after it its labels, the last of them
    in the column `tags`. Lines before a sentence that begin with # are comments. Of CoNLL-U, with
    numbers before the words, `tags` are the parts of speech (UPOS)."""
    has_numbers = bool(NUMBERED_TAGS.search("\n".join(first_lines(file.name))))
    is_conll_u = plain_suffix(file.name) == ".conllu"
    comment_count = _count_comments(islice(_sentences(file.name), SAMPLE_SIZE))
    comments = []
    for fields in _sentences(file.name):
        first = min(comment_count, _count_unlabelled_marks(fields))
        comments += fields[:first]
        rows = fields[first:]
        if has_numbers:
            # The first tag becomes the last field, because it counts; a nested one follows it.
            rows = [[row[1], *row[3:], *row[2:3]] for row in rows if len(row) > 1]
        if rows:
            yield _sentence(rows, is_conll_u)
    if comments:
        note_once(
            f"{file.name}: {len(comments)} lines such as {' '.join(comments[0])!r}, with which "
            "sentences begin, are left out as comments; if their # is a word, write another mark"
        )


def _sentences(name: str) -> Iterator[list[list[str]]]:
    """The fields of the lines of every sentence, without the comments that any sentence tells."""
    for is_sentence, group in groupby(text_lines(name), _has_word):
        if not is_sentence:
            continue
        lines = list(islice(group, LONGEST_SENTENCE + 1))
        if len(lines) > LONGEST_SENTENCE:
            raise InputError(
                f"{name}: a sentence has more than {LONGEST_SENTENCE:,} lines; "
                "put a blank line between sentences"
            )
        yield _fields_of_words(lines)


def _count_comments(sentences: Iterable[list[list[str]]]) -> int:
    """How many first lines are comments that look like words, such as `# 12`: nine sentences of ten
    have them, and their last fields are not all labels of other words."""
    counts = []
    marks = set[str]()
    labels = set[str]()
    for rows in filter(None, sentences):
        count = _count_unlabelled_marks(rows)
        counts.append(count)
        marks.update(fields[-1] for fields in rows[:count])
        labels.update(fields[-1] for fields in rows[count:])
    return sorted(counts)[len(counts) // 10] if marks - labels else 0


def _count_unlabelled_marks(rows: list[list[str]]) -> int:
    """How many lines at the beginning of a sentence have # as a word, and no entity's tag."""
    words = takewhile(lambda row: row[0] == "#" and not ENTITY_TAG.fullmatch(row[-1]), rows)
    return len(list(words))


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


def _sentence(rows: list[list[str]], is_conll_u: bool) -> Record:
    """The record of a sentence, from the fields of its lines; its cells are lists. A file that
    `is_conll_u` by its name may have any number of columns."""
    width = len(rows[-1])
    if any(len(fields) != width for fields in rows):
        return Record({"tokens": [fields[0] for fields in rows]}, "lines of several widths")
    may_have_numbers = width > 1 and (is_conll_u or width == len(CONLL_U))
    names = ["tokens"]
    if may_have_numbers and all(re.fullmatch(r"\d+([-.]\d+)?", row[0]) for row in rows):
        # Ranges (1-2, of words that are written as one) and empty nodes (1.1) are left out.
        rows = [row for row in rows if row[0].isdecimal()]
        names = CONLL_U if width >= len(CONLL_U) else CONLL_U[:2]
    names = names + [f"column {i}" for i in range(len(names) + 1, width + 1)]
    if "tags" not in names and width > names.index("tokens") + 1:
        names[-1] = "tags"
    return Record({name: [fields[i] for fields in rows] for i, name in enumerate(names)})
