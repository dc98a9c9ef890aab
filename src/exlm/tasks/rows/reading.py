"""Reads the texts of tables for a model: whether they are molecules, their tokens, and what is
wrong with each row."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice, repeat
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from exlm.data.chemistry import (
    FIRST_TEXTS,
    Standardize,
    are_molecules,
    comparable,
    contradiction,
    molecule_problem,
    standardize,
)
from exlm.data.files import note_once
from exlm.data.rows import OnInvalid, describe_unknown_words
from exlm.data.tabular import TableOptions
from exlm.data.tokenization import alphabet_name
from exlm.errors import InputError, check_choices, note
from exlm.tasks.encoders.inference import Tokens
from exlm.tasks.encoders.loading import kept_task
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.texts import first_of_each

LEAST_SAMPLE = 10  # texts that must be there to say that they are not what a model knows


@dataclass(frozen=True)
class ReadOptions:
    """How to read the texts of a table.

    Attributes:
        text_column: column of the SMILES or text; where absent that of the training, or one with a
            usual name.
        molecules: whether the texts are SMILES; where absent the model knows, and for older models
            the texts decide.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of an .xlsx file; the first where absent.
        on_invalid: rows that cannot be used get a reason in the column `problem` and nothing else
            (`skip`). With `error`, the first of them stops the command, and so does a text that is
            cut, has tokens that are not known, or marks / and \\ that contradict each other. With
            `keep`, molecules that RDKit cannot parse are used too.
        device: auto, cpu, cuda or one of several (cuda:1)."""

    text_column: str | None = None
    molecules: bool | None = None
    header: bool = True
    sheet: str | None = None
    on_invalid: OnInvalid = "skip"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_choices(self)

    @property
    def table_options(self) -> TableOptions:
        """How a file is read that is a table."""
        return TableOptions(self.header, sheet=self.sheet)


def remembered(config: PreTrainedConfig) -> SavedTask:
    """What a pre-trained or a fine-tuned model remembers of the texts of its training:
    `molecules` (None in models of earlier versions), `standardize` and, if it is fine-tuned, the
    columns."""
    of_pretraining = {
        "molecules": getattr(config, "molecules", None),
        "standardize": getattr(config, "standardize", None) or "none",
    }
    return SavedTask.from_json(of_pretraining | (kept_task(config) or {}))


def decide_molecules(
    texts: Sequence[str], model_knows: bool | None, user_says: bool | None, path: str
) -> bool:
    """Whether the texts of the file `path` are molecules: as the user says, or as the model knows,
    or as they look. InputError if the model knows molecules and most texts are none; a note is
    printed if it is the other way round."""
    if user_says is not None:
        return user_says
    look_like_molecules = are_molecules(texts)
    if look_like_molecules and model_knows is False:
        note(f"the texts of {path} look like molecules, and the model was trained on other texts")
    if model_knows and not look_like_molecules and sum(map(bool, texts)) >= LEAST_SAMPLE:
        raise InputError(
            f"{path}: most texts are no molecules, and the model was trained on molecules; choose "
            "another text_column or another model (molecules=false uses them all the same)"
        )
    return look_like_molecules if model_knows is None else model_knows


class RowCheck(NamedTuple):
    """What a reader finds wrong with a row."""

    problem: str  # why the row cannot be used, "" if it can
    warning: str  # what is odd about a row that can be used, "" if nothing
    is_foreign: bool  # whether a letter outside the model's alphabet is the problem


class TableTokens(NamedTuple):
    """What a model reads of every row of a table."""

    examples: list[Tokens]  # [rows]
    # of labelled residues or words: [rows, units] the first token of each, -1 for none
    unit_starts: np.ndarray | None = None


@dataclass(frozen=True)
class TextReader:
    """Turns the texts of tables into tokens for one model.

    Over-long molecules are left out; unless `on_invalid` is `keep`, so is what RDKit cannot parse,
    and what has a letter that is not in the model's alphabet. Over-long text is cut. No other row
    is lost for the vocabulary. Warnings: not a molecule, cut text, unknown tokens, one text of a
    pair is empty, marks / and \\ that contradict each other."""

    tokenizer: PreTrainedTokenizerFast
    max_length: int  # the longest text, or pair of texts, in tokens
    molecules: bool  # whether the texts are SMILES
    standardize: Standardize = "none"  # how molecules are rewritten first
    on_invalid: OnInvalid = "skip"

    @cached_property
    def alphabet(self) -> str | None:
        """The name of the model's alphabet (`exlm.data.tokenization.ALPHABETS`), if it has one."""
        return alphabet_name(self.tokenizer.backend_tokenizer)

    def read(self, table: TextTable, path: str | None = None) -> tuple[TextTable, TableTokens]:
        """The table with what is wrong for the model, and the tokens of all its rows. InputError if
        most texts that begin a file are not of the model's alphabet; for rows of the file `path`
        also as `TextTable.check` says."""
        texts = table.texts
        pairs = table.pairs
        contradictions = [""] * len(texts)
        if self.molecules:
            # before they are standardized, which takes the marks away
            contradictions = first_of_each(
                map(contradiction, texts), map(contradiction, pairs or [""] * len(texts))
            )
            texts = [standardize(text, self.standardize) for text in texts]
            pairs = pairs and [standardize(text, self.standardize) for text in pairs]
        examples = tokenize(texts, self.tokenizer, pairs)
        checks = list(map(self._check_row, texts, pairs or repeat(None), examples))
        if table.begins_file:
            self._refuse_foreign(texts, checks)
        is_long = np.array([len(example["input_ids"]) > self.max_length for example in examples])
        is_cut = is_long & (not self.molecules)
        if is_cut.any():
            examples = tokenize(texts, self.tokenizer, pairs, self.max_length)
        unit_starts = None
        if table.unit_pattern:
            unit_starts = first_tokens(texts, self.tokenizer, table.unit_pattern, self.max_length)
        checked = replace(
            table,
            problems=first_of_each(table.problems, [check.problem for check in checks]),
            warnings=first_of_each([check.warning for check in checks], contradictions),
            is_cut=is_cut,
        )
        if path is not None:
            checked.check(path, self.on_invalid)
        return checked, TableTokens(examples, unit_starts)

    def _check_row(self, text: str, pair: str | None, example: Tokens) -> RowCheck:
        """The first problem of a row, in the order of this list, or else its first warning."""
        token_count = len(example["input_ids"])
        given_texts = [given for given in (text, pair) if given]
        too_long = unknown = no_molecule = ""
        if token_count > self.max_length:
            too_long = f"{token_count} tokens, the limit is {self.max_length}"
        if self.tokenizer.unk_token_id in example["input_ids"]:
            unknown = _first(describe_unknown_words(given, self.tokenizer) for given in given_texts)
        if self.molecules:
            no_molecule = _first(map(molecule_problem, given_texts))
        is_strict = self.on_invalid != "keep"
        is_foreign = bool(unknown and self.alphabet and is_strict)
        has_no_tokens = token_count == self.tokenizer.num_special_tokens_to_add(pair is not None)
        half_empty = pair is not None and len(given_texts) == 1
        problem = _first(
            [
                f"not a {self.alphabet}: {unknown}" if is_foreign else "",
                "there is nothing in it that the model reads" if text and has_no_tokens else "",
                too_long if self.molecules else "",
                no_molecule if is_strict else "",
            ]
        )
        warning = _first(
            [
                too_long,
                "one of the two texts is empty" if half_empty and not self.molecules else "",
                no_molecule,
                unknown,
            ]
        )
        return RowCheck(problem, "" if problem else warning, is_foreign)

    def _refuse_foreign(self, texts: Sequence[str], checks: Sequence[RowCheck]) -> None:
        """InputError if most of the `texts`, whose rows have these checks, are not of the model's
        alphabet."""
        foreign = [check.problem for check in checks if check.is_foreign]
        if len(foreign) >= LEAST_SAMPLE and len(foreign) > sum(map(bool, texts)) / 2:
            raise InputError(
                f"the model was trained on {self.alphabet}s, and most texts are none "
                f"({foreign[0]}); choose another text_column or another model "
                "(on_invalid=keep uses them all the same)"
            )


def _first(messages: Iterable[str | None]) -> str:
    """The first message that says something, "" if none does."""
    return next(filter(None, messages), "")


def reader_for(
    first: TextTable,
    path: str,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    saved_task: SavedTask,
    standardize: Standardize | None,
    options: ReadOptions,
) -> TextReader:
    """What reads the input `path` for a model. The `first` rows decide whether texts are molecules;
    these are rewritten as `standardize` says, or else as in the model's training."""
    molecules = decide_molecules(first.texts, saved_task.molecules, options.molecules, path)
    standardize = standardize or saved_task.standardize
    if molecules and standardize == "none":
        note_spelling(first.texts, path)
    return TextReader(tokenizer, max_length, molecules, standardize, options.on_invalid)


def note_spelling(texts: Sequence[str], path: str) -> None:
    """Says how many of the first molecules of the file `path` are spelled otherwise than RDKit
    spells them, if many are: a model gives other vectors for other spellings."""
    sample = list(islice((text for text in texts if molecule_problem(text) is None), FIRST_TEXTS))
    others = sum(standardize(text, "canonical") != text for text in sample)
    if len(sample) < LEAST_SAMPLE or others < len(sample) / 10:
        return
    note_once(
        f"{others} of the first {len(sample)} molecules of {path} are spelled otherwise than RDKit "
        "spells them, and a model gives other numbers for other spellings; if it was trained on "
        "RDKit's, as those of the package, set standardize to canonical (--standardize canonical)"
    )


def spelling_of(
    tokenizer: PreTrainedTokenizerFast | None,
    molecules: bool = False,
    standardize: Standardize = "none",
) -> Callable[[str], str]:
    """A function from a text to the spelling by which equal texts are recognised: molecules as they
    are standardised, at least as canonical SMILES; other texts `composed` and as the tokenizer, if
    there is one, normalizes them: proteins in capitals and without a * at the end, others perhaps
    in small letters."""
    if molecules:
        return partial(comparable, form=standardize)
    normalizer = tokenizer and tokenizer.backend_tokenizer.normalizer
    if normalizer is None:
        return composed
    return lambda text: composed(normalizer.normalize_str(text))


def composed(text: str) -> str:
    """The text with its accents encoded in one of several ways (NFC)."""
    return normalize("NFC", text)


def tokenize(
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[str] | None = None,
    max_length: int | None = None,
) -> list[Tokens]:
    """Tokens, with special tokens, of every text or pair. If there are over `max_length`, the
    longer text is cut."""
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
    """The first token of every unit, counted from the first token of the text, -1 where a text has
    none, or where the text was cut: [rows, units], at most `max_length` units."""
    spans_of_rows = [[match.span() for match in re.finditer(unit_pattern, text)] for text in texts]
    most_units = min(max(map(len, spans_of_rows)), max_length)
    first = np.full((len(texts), most_units), -1)
    encoding = tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True)
    for row, offsets in enumerate(encoding["offset_mapping"]):
        unit_of_character = np.full(len(texts[row]), -1)
        for number, (start, end) in enumerate(spans_of_rows[row][:most_units]):
            unit_of_character[start:end] = number
        for token, (start, end) in reversed(list(enumerate(offsets))):
            # Special tokens have no characters. The last character decides: a token may begin with
            # a space.
            if end > start and unit_of_character[end - 1] >= 0:
                first[row, unit_of_character[end - 1]] = token
    return first
