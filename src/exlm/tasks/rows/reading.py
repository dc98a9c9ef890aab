"""The texts of tables as a model reads them: whether they are molecules, their tokens, and what is
wrong with each row."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.data.cell_texts import split_units
from exlm.data.chemistry import (
    SAMPLE_SIZE,
    Standardize,
    are_molecules,
    contradiction,
    molecule_problem,
    standardize,
)
from exlm.data.columns import listed
from exlm.data.formats import DataFile, data_files
from exlm.data.open_files import note_once
from exlm.data.problems import (
    HAS_UNREAD_UNITS,
    TOO_LONG,
    UNKNOWN,
    UNPARSABLE,
    OnInvalid,
    describe_special_tokens,
    describe_unknown_words,
    row_problems,
)
from exlm.data.spelling import Spelling, check_form
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError, check_choices
from exlm.storage.models import longest_text
from exlm.tasks.encoders.inference import Tokens
from exlm.tasks.encoders.saved_task import TextSettings
from exlm.tasks.rows.table import Table, TextTable
from exlm.tasks.rows.texts import first_of_each

SHORTEST_LENGTH = 3  # of texts in tokens: one between two special ones
UNREAD = -2  # in place of the first token of a unit that the tokenizer reads as nothing


@dataclass(frozen=True)
class ReadOptions:
    """How to read the texts of a table.

    Attributes:
        text_column: column of the SMILES or text; where absent that of the training, or one with a
            usual name.
        molecules: whether the texts are SMILES; where absent the model knows, or else the texts
            decide.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        on_invalid: rows that cannot be used get a reason in the column `problem` and nothing else
            (`skip`). With `error`, the first of them stops the command, and so does a text that is
            cut, has tokens that are not known, special tokens such as </s>, marks / and \\ that
            contradict each other, or labelled words that are read as nothing. With `keep`,
            molecules that RDKit cannot parse are used too.
        device: auto, cpu, cuda or one of several (cuda:1)."""

    text_column: str | None = None
    molecules: bool | None = None
    header: bool = True
    sheet: str | None = None
    on_invalid: OnInvalid = "skip"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_choices(self)

    def file(self, name: str) -> DataFile:
        """The file of this name, as it is to be read."""
        return data_files([name], self.header, self.sheet)[0]


def decide_molecules(
    texts: Sequence[str], user_says: bool | None, model_knows: bool | None
) -> bool:
    """Whether texts are molecules, as the user says, else the model, else the look of the first
    texts."""
    if user_says is not None:
        return user_says
    return are_molecules(texts) if model_knows is None else model_knows


class TableTokens(NamedTuple):
    """What a model reads of every row of a table."""

    examples: list[Tokens]  # [rows]
    # of labelled residues or words: [rows, units] as `first_tokens` finds them
    unit_starts: np.ndarray | None = None


@dataclass(frozen=True)
class TextReader:
    """Turns the texts of tables into tokens for one model.

    Rows cannot be used if a molecule is too long or, unless `on_invalid` is `keep`, if RDKit cannot
    parse it or a letter is not in the model's alphabet; and, if units have labels, if two of them
    share a token. Otherwise these are warnings, as are cut text, unknown tokens, special tokens
    that are written in a text, one empty text of a pair, marks / and \\ that contradict each other,
    and units that the tokenizer reads as nothing."""

    tokenizer: PreTrainedTokenizerFast
    max_length: int  # the longest text, or pair of texts, in tokens
    molecules: bool  # whether the texts are SMILES
    standardize: Standardize = "none"  # how molecules are rewritten first
    on_invalid: OnInvalid = "skip"
    unit_pattern: str = ""  # a regular expression for residues or words, if these have labels

    @cached_property
    def problems_that_exclude(self) -> set[str]:
        """The problems for which a row is left out. With other problems it has a warning."""
        names = {TOO_LONG} if self.molecules else set[str]()
        if self.on_invalid != "keep":
            names.add(UNPARSABLE)
            if alphabet_name(self.tokenizer.backend_tokenizer) is not None:
                names.add(UNKNOWN)
        return names

    def read(self, table: Table, path: str | None = None) -> tuple[Table, TableTokens]:
        """The table with what is wrong for the model, and the tokens of all its rows. With the
        `path` of the file, InputError as `TextTable.check` says."""
        texts = table.texts
        pairs = table.pairs
        contradictions = [""] * len(texts)
        if self.molecules:
            # of the texts as they are: `as_read` takes the marks away
            contradictions = first_of_each(
                map(contradiction, texts), map(contradiction, pairs or [""] * len(texts))
            )
        spelling = Spelling(self.molecules, self.standardize)
        texts = list(map(spelling.as_read, texts))
        pairs = pairs and list(map(spelling.as_read, pairs))
        examples = tokenize(texts, self.tokenizer, pairs)
        judgements = map(self._judge_row, texts, pairs or repeat(None), examples)
        problems, warnings = map(list, zip(*judgements, strict=True))
        is_long = np.array([len(example["input_ids"]) > self.max_length for example in examples])
        is_cut = is_long & (not self.molecules)
        if is_cut.any():
            examples = tokenize(texts, self.tokenizer, pairs, self.max_length)
        unit_starts = None
        if self.unit_pattern:
            unit_starts = first_tokens(texts, self.tokenizer, self.unit_pattern, self.max_length)
            units = [split_units(text, self.unit_pattern) for text in texts]
            problems = first_of_each(problems, map(describe_shared_tokens, units, unit_starts))
            unread = map(describe_unread_units, units, unit_starts)
            both = zip(warnings, unread, strict=True)
            warnings = ["; ".join(filter(None, of_row)) for of_row in both]
        checked = replace(
            table,
            problems=first_of_each(table.problems, problems),
            warnings=first_of_each(warnings, contradictions),
            is_cut=is_cut,
        )
        if path is not None:
            checked.check(path, self.on_invalid)
        return checked, TableTokens(examples, unit_starts)

    def _judge_row(self, text: str, pair: str | None, example: Tokens) -> tuple[str, str]:
        """Why a row cannot be used, or what is odd about a usable row; "" for nothing."""
        token_ids = example["input_ids"]
        texts = [one_text for one_text in (text, pair) if one_text]
        unknown = ""
        if self.tokenizer.unk_token_id in token_ids:
            descriptions = [describe_unknown_words(one_text, self.tokenizer) for one_text in texts]
            unknown = next(filter(None, descriptions), "")
        problems = []
        warnings = [describe_special_tokens(one_text, self.tokenizer) for one_text in texts]
        if texts and len(token_ids) == self.tokenizer.num_special_tokens_to_add(pair is not None):
            problems.append("there is nothing in it that the model reads")
        if pair is not None and len(texts) == 1 and not self.molecules:
            warnings.append("one of the two texts is empty")
        for name, detail in row_problems(
            texts, len(token_ids), self.max_length, self.molecules, unknown
        ):
            if name in self.problems_that_exclude:
                problems.append(detail)
            else:
                warnings.append(detail)
        if problems:
            return problems[0], ""
        return "", next(filter(None, warnings), "")


def reader_for(
    first_rows: TextTable,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int | None,
    text_settings: TextSettings,
    standardize: Standardize | None,
    options: ReadOptions,
) -> TextReader:
    """What reads the table with these `first_rows` for a model, which decides where `standardize`
    or `max_length` is None. InputError for a `max_length` below SHORTEST_LENGTH, and for a
    `standardize` of texts that are no molecules."""
    if max_length is None:
        max_length = longest_text(tokenizer)
    if max_length < SHORTEST_LENGTH:
        raise InputError(
            f"max_length is {max_length}; give at least {SHORTEST_LENGTH}, or leave it out"
        )
    molecules = decide_molecules(first_rows.texts, options.molecules, text_settings.molecules)
    form = standardize or (text_settings.standardize if molecules else "none")
    check_form(form, molecules)
    return TextReader(tokenizer, max_length, molecules, form, options.on_invalid)


def note_spelling(texts: Sequence[str], path: str) -> bool:
    """Says how many of the first molecules of the file `path` are spelled otherwise than RDKit
    spells them, if many are: a model gives other vectors for other spellings. Returns whether many
    are."""
    molecules = (text for text in texts if molecule_problem(text) is None)
    sample = list(islice(molecules, SAMPLE_SIZE))
    others = sum(standardize(text, "canonical") != text for text in sample)
    if others < max(1, len(sample) / 10):
        return False
    note_once(
        f"{others} of the first {len(sample)} molecules of {path} are spelled otherwise than RDKit "
        "spells them, and a model gives other numbers for other spellings; if it was trained on "
        "RDKit's, as those of the package, set standardize to canonical (--standardize canonical)"
    )
    return True


def tokenize(
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[str] | None = None,
    max_length: int | None = None,
) -> list[Tokens]:
    """The tokens, special ones included, of every text or pair, cut to a `max_length`."""
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    columns = tokenizer(
        texts, pairs, truncation=max_length is not None, max_length=max_length, verbose=False
    )
    return [
        {name: np.array(columns[name][row], dtype=np.int32) for name in names}
        for row in range(len(texts))
    ]


def first_tokens(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, unit_pattern: str, max_length: int
) -> np.ndarray:
    """[rows, units] the first token of every unit, counted from the first token of the text; UNREAD
    where the tokenizer reads a unit as nothing, -1 where a text has no such unit or was cut. At
    most `max_length` units."""
    spans_of_rows = [[match.span() for match in re.finditer(unit_pattern, text)] for text in texts]
    most_units = min(max(map(len, spans_of_rows)), max_length)
    first = np.full((len(texts), most_units), -1)
    encoding = tokenizer(texts, truncation=True, max_length=max_length)
    for row, spans in enumerate(spans_of_rows):
        for number, (start, end) in enumerate(spans[:most_units]):
            tokens = [encoding.char_to_token(row, place) for place in range(start, end)]
            first[row, number] = next((token for token in tokens if token is not None), UNREAD)
        if encoding.encodings[row].overflowing:
            first_behind_cut = np.argmax(first[row]) + 1
            first[row, first_behind_cut:] = -1
    return first


def describe_shared_tokens(units: list[str], starts: np.ndarray) -> str:
    """Says which units of a text share a token, in which their labels cannot be told apart; "" if
    none do. `starts` [units] are those of `first_tokens`."""
    units_by_token = dict[int, list[str]]()
    for unit, start in zip(units, starts.tolist(), strict=False):
        units_by_token.setdefault(start, []).append(unit)
    for start, sharing in units_by_token.items():
        if start >= 0 and len(sharing) > 1:
            return (
                f"{listed(map(repr, sharing), 5)} share a token, so they cannot have labels of "
                "their own; divide texts into words as the tokenizer does (with spaces, or in "
                "lists), or use a tokenizer that reads single characters, as wordpiece does of "
                "Chinese"
            )
    return ""


def describe_unread_units(units: list[str], starts: np.ndarray) -> str:
    """Says which units of a text the tokenizer reads as nothing; "" if it reads all."""
    unread = [
        f"{unit!a} (residue or word {number})"
        for number, (unit, start) in enumerate(zip(units, starts, strict=False), start=1)
        if start == UNREAD
    ]
    return f"{HAS_UNREAD_UNITS}: {listed(unread, 5)}" if unread else ""
