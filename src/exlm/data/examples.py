"""Turns rows into examples, a chunk at a time: checks, tokenizes and hashes them."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from exlm.data.chemistry import Standardize, contradiction, is_reduced_mixture, molecule_problem
from exlm.data.corpus import EXAMPLE, SPECIALS
from exlm.data.inputs import Chunk, InputRow
from exlm.data.problems import (
    NOT_REVERSIBLE,
    TOO_LONG,
    UNREADABLE,
    OnInvalid,
    Problem,
    describe_unknown_tokens,
    row_problems,
)
from exlm.data.spelling import Spelling, as_tokenized
from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError, check_at_least, check_choices
from exlm.randomness import random_bits, uniform

Documents = Literal["none", "row", "blank"]


@dataclass(frozen=True)
class PrepareOptions:
    """The options of `prepare` on which the corpus depends, as its manifest has them; `prepare`
    describes `inputs` and `tokenizer`.

    Attributes:
        text_column: column of a table to read; by default that with a usual name (smiles, text,
            ...), or the only one.
        max_length: tokens per example, BOS and EOS included; longer rows are never kept, unless
            they are packed.
        held_out: share of the examples for validation, chosen by content: equal rows are in the
            same part, and so are rows that the tokenizer reads alike (wordpiece: without capitals
            and accents). Packed documents are held out whole, chosen by their first row.
        drop_duplicates: keep only the first of such rows.
        on_invalid: stop at the first invalid row, skip such rows (default), or keep them (default
            of packed rows).
        molecules: a row must be SMILES that RDKit reads, and its tokens must decode to the same
            text. By default on for SMILES tokenizers, off for bpe, wordpiece and packed rows; else
            the first rows decide.
        seed: seed of the choice of held-out examples.
        documents: with `none`, every row is an example; otherwise rows are packed into examples of
            max_length tokens. With `row`, every row is a document; with `blank`, blank rows and
            ends of files separate documents. Nothing is put between the rows of a document, so
            words at the ends of wrapped lines run together: unwrap such lines first.
        cross_documents: pack all documents into one stream with EOS between them; else no example
            has tokens of two.
        vocabulary_size: number of tokens of bpe and wordpiece, special tokens included.
        header: whether tables have a header line; without it, the columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of .xlsx files; the first where absent.
        standardize: rewrite molecules as RDKit's canonical SMILES (`canonical`), also without salts
            and charges (`parent`). A model that is trained on the corpus remembers it."""

    inputs: list[str]
    tokenizer: str
    text_column: str | None = None
    max_length: int = 512
    held_out: float = 0.01
    drop_duplicates: bool = False
    on_invalid: OnInvalid | None = None
    molecules: bool | None = None
    seed: int = 0
    documents: Documents = "none"
    cross_documents: bool = True
    vocabulary_size: int = 50265
    header: bool = True
    sheet: str | None = None
    standardize: Standardize = "none"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out is {self.held_out}; it must be at least 0 and less than 1")
        check_at_least(self, max_length=SPECIALS + 1)
        check_choices(self)
        if self.packed and self.drop_duplicates:
            raise InputError(
                "drop_duplicates compares rows, but these are packed; "
                "leave it out or use documents=none"
            )

    @property
    def spelling(self) -> Spelling:
        """How rows are spelled before a tokenizer gets them."""
        return Spelling(bool(self.molecules), self.standardize)

    @property
    def packed(self) -> bool:
        """Whether rows are joined into examples of one length."""
        return self.documents != "none"


class InvalidRow(NamedTuple):
    """A line of skipped.csv."""

    file: str
    row: int
    value: str
    reason: str
    detail: str
    action: str  # kept or skipped


@dataclass
class TokenizedChunk:
    """The kept rows of a chunk, and what else was in the chunk."""

    token_ids: np.ndarray  # [sum of lengths] uint32, row after row, without special tokens
    examples: np.ndarray  # [kept] EXAMPLE
    invalid: list[InvalidRow]
    counts: Counter[str]  # how many rows, by what was done with them


def count_tokens(options: PrepareOptions, chunk: Chunk) -> Counter[str]:
    """How often each token occurs in a chunk's standardized SMILES, or in those of molecules alone
    if other rows are left out."""
    molecules_only = options.molecules and options.on_invalid != "keep"
    counts = Counter[str]()
    for row in chunk:
        if not molecules_only or molecule_problem(row.text) is None:
            counts.update(re.findall(SMILES_PATTERN, options.spelling.as_read(row.text)))
    return counts


class KeptRow(NamedTuple):
    """A row that becomes an example."""

    row: InputRow
    text_as_read: str  # as the tokenizer gets it
    token_ids: list[int]  # without special tokens


@dataclass(frozen=True)
class RowTokenizer:
    """Turns a chunk into tokens. Leaves out blank rows."""

    tokenizer_file: str  # a tokenizer.json
    unknown_id: int | None  # id of the token for unknown text, if the tokenizer has one
    options: PrepareOptions

    def __call__(self, chunk: Chunk) -> TokenizedChunk:
        rows = [row for row in chunk if row.text or row.problem]
        texts = [self.options.spelling.as_read(row.text) for row in rows]
        encodings = _load(self.tokenizer_file).encode_batch_fast(texts, add_special_tokens=False)
        kept = []
        invalid = []
        for row, text, encoding in zip(rows, texts, encodings, strict=True):
            problem = next(self._problems(row, text, encoding.ids), None)
            action = "kept"
            if problem is not None:
                can_be_kept = problem.name not in (TOO_LONG, UNREADABLE)
                if self.options.on_invalid != "keep" or not can_be_kept:
                    action = "skipped"
                invalid.append(
                    InvalidRow(row.file, row.number, row.text, problem.name, problem.detail, action)
                )
            if action == "kept":
                kept.append(KeptRow(row, text, encoding.ids))
        skipped = len(rows) - len(kept)
        counts = Counter(
            rows=len(chunk),
            blank=len(chunk) - len(rows),
            skipped=skipped,
            kept_invalid=len(invalid) - skipped,
        )
        counts.update(self._oddities(kept))
        token_ids = chain.from_iterable(kept_row.token_ids for kept_row in kept)
        return TokenizedChunk(
            token_ids=np.fromiter(token_ids, np.uint32),
            examples=self._examples(kept),
            invalid=invalid,
            counts=counts,
        )

    def _oddities(self, kept: list[KeptRow]) -> dict[str, int]:
        """How many of the kept rows have something odd, by what it is."""
        has_unknown = [self.unknown_id in kept_row.token_ids for kept_row in kept]
        if not self.options.molecules:
            return {"rows_with_unknown_tokens": sum(has_unknown)}
        molecules = [kept_row.row.text for kept_row in kept]
        is_reduced = [is_reduced_mixture(text, self.options.standardize) for text in molecules]
        return {
            "rows_with_unknown_tokens": sum(has_unknown),
            "contradictory_marks": sum(contradiction(text) != "" for text in molecules),
            "mixtures_reduced_to_one_organic_component": sum(is_reduced),
        }

    def _problems(self, row: InputRow, text: str, token_ids: list[int]) -> Iterator[Problem]:
        """All problems of a row whose text the tokenizer gets as `text`."""
        if not text:
            yield Problem(UNREADABLE, row.problem)
            return
        tokenizer = _load(self.tokenizer_file)
        unknown = ""
        if self.unknown_id in token_ids:
            # An encoding of one text knows its words; those of a batch do not, and are faster.
            encoding = tokenizer.encode(text, add_special_tokens=False)
            unknown = describe_unknown_tokens(encoding, text, self.unknown_id)
        max_length = math.inf if self.options.packed else self.options.max_length
        molecules = bool(self.options.molecules)
        yield from row_problems([text], len(token_ids) + SPECIALS, max_length, molecules, unknown)
        if molecules:
            decoded = tokenizer.decode(token_ids, skip_special_tokens=False).strip()
            if decoded != text:
                yield Problem(NOT_REVERSIBLE, f"decodes to {decoded}")

    def _examples(self, kept: list[KeptRow]) -> np.ndarray:
        """[kept] EXAMPLE, without offsets. Texts that the tokenizer reads alike, perhaps without
        capitals, are in the same part."""
        tokenizer = _load(self.tokenizer_file)
        texts = [as_tokenized(kept_row.text_as_read, tokenizer) for kept_row in kept]
        examples = np.zeros(len(kept), EXAMPLE)
        examples["length"] = [len(kept_row.token_ids) for kept_row in kept]
        examples["document"] = [kept_row.row.document for kept_row in kept]
        hashes = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        halves = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
        examples["high"], examples["low"] = halves.T
        # A purpose would change the bits, and so the parts that a seed gave to earlier corpora.
        bits = random_bits(self.options.seed, examples["high"])
        examples["part"] = uniform(bits) < self.options.held_out
        return examples


@lru_cache(maxsize=1)
def _load(file: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # a "<mask>" in the text is text
    return tokenizer
