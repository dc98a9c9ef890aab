"""Turns rows into examples, a chunk at a time: checks, tokenizes and hashes them."""

import hashlib
import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, contradiction, molecule_problem, standardize
from exlm.data.corpus import EXAMPLE, SPECIALS
from exlm.data.sources import Chunk, Row
from exlm.data.tokenization import MARKED, SMILES_PATTERN, splits_smiles
from exlm.errors import InputError, check_at_least, check_choices
from exlm.randomness import random_bits, uniform

# Problems of rows, as they are called in manifests and in the column `reason` of skipped.csv
TOO_LONG = "too_long"
UNKNOWN = "unknown_token"
NOT_REVERSIBLE = "not_reversible"
UNPARSABLE = "unparsable"
UNREADABLE = "unreadable"  # there is no text

OnInvalid = Literal["error", "skip", "keep"]
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
            ends of files separate documents.
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
    # How many rows, by what was done with them; invalid rows, by their problem; words, by the word
    counts: dict[str, Counter[str]]


def count_and_parse(
    molecules_only: bool, form: Standardize, chunk: Chunk
) -> tuple[Counter[str], np.ndarray | None]:
    """How often each token occurs in a chunk's standardized SMILES, or with `molecules_only` in
    those of molecules; and which rows are known to be molecules, [rows] bool, so that
    `RowTokenizer` does not parse them again, which takes most of the time; None if it must."""
    is_counted = [not molecules_only or molecule_problem(row.text) is None for row in chunk]
    counts = Counter[str]()
    for row in compress(chunk, is_counted):
        counts.update(re.findall(SMILES_PATTERN, standardize(row.text, form)))
    # Without `molecules_only` nothing was parsed, and a row that is rewritten is parsed again.
    are_known = molecules_only and form == "none"
    return counts, np.array(is_counted) if are_known else None


class Problem(NamedTuple):
    """Why a row is invalid."""

    name: str  # such as TOO_LONG
    detail: str


class JudgedRow(NamedTuple):
    """A row as a tokenizer reads it, and the first problem that it has."""

    row: Row
    text: str  # the row's text, standardized
    token_ids: list[int]
    unknown_words: list[str]  # words that have no tokens
    spelled_words: list[str]  # words that are spelled, because they are not in the vocabulary
    problem: Problem | None
    is_kept: bool


@dataclass(frozen=True)
class RowTokenizer:
    """Turns a chunk, and the known molecules of `count_and_parse` or None, into tokens. Leaves out
    blank rows."""

    tokenizer_file: str  # a tokenizer.json
    unknown_id: int | None  # id of the token for unknown text, if the tokenizer has one
    options: PrepareOptions

    def __call__(self, chunk_and_molecules: tuple[Chunk, np.ndarray | None]) -> TokenizedChunk:
        chunk, known_molecules = chunk_and_molecules
        if known_molecules is None:
            known_molecules = np.zeros(len(chunk), bool)
        judged_rows = self._judged_rows(chunk, known_molecules)
        kept = [judged for judged in judged_rows if judged.is_kept]
        problems = [judged.problem.name for judged in judged_rows if judged.problem]
        unknown = Counter[str]()
        for judged in judged_rows:
            if judged.is_kept or (judged.problem and judged.problem.name == UNKNOWN):
                unknown.update(judged.unknown_words)
        spelled = Counter(chain.from_iterable(judged.spelled_words for judged in kept))
        rows = Counter(
            rows=len(chunk),
            blank=len(chunk) - len(judged_rows),
            skipped=len(judged_rows) - len(kept),
            kept_invalid=sum(judged.problem is not None for judged in kept),
            # The key is that of earlier manifests; it counts words.
            unknown_tokens=unknown.total(),
            spelled_pieces=spelled.total(),
        )
        if self.options.molecules:
            contradictions = [contradiction(judged.row.text) for judged in kept]
            rows["contradictory_marks"] = sum(map(bool, contradictions))
        token_ids = chain.from_iterable(judged.token_ids for judged in kept)
        return TokenizedChunk(
            token_ids=np.fromiter(token_ids, np.uint32),
            examples=self._examples(kept),
            invalid=_invalid_rows(judged_rows),
            counts={
                "rows": rows,
                "invalid": Counter(problems),
                "unknown": unknown,
                "spelled": spelled,
            },
        )

    def _judged_rows(self, chunk: Chunk, known_molecules: np.ndarray) -> list[JudgedRow]:
        """Those rows of a chunk that are not blank."""
        numbers = [number for number, row in enumerate(chunk) if row.text or row.problem]
        texts = [standardize(chunk[number].text, self.options.standardize) for number in numbers]
        encodings = _load(self.tokenizer_file).encode_batch_fast(texts, add_special_tokens=False)
        judged_rows = []
        for number, text, encoding in zip(numbers, texts, encodings, strict=True):
            row = chunk[number]
            unknown_words, spelled_words = self._unusual_words(text, encoding.ids)
            is_known_molecule = bool(known_molecules[number])
            problem = self._problem(row, text, encoding.ids, unknown_words, is_known_molecule)
            judged = JudgedRow(
                row=row,
                text=text,
                token_ids=encoding.ids,
                unknown_words=unknown_words,
                spelled_words=spelled_words,
                problem=problem,
                is_kept=problem is None or self._may_keep(problem),
            )
            judged_rows.append(judged)
        return judged_rows

    def _may_keep(self, problem: Problem) -> bool:
        is_usable = problem.name not in (TOO_LONG, UNREADABLE)
        return self.options.on_invalid == "keep" and is_usable

    def _unusual_words(self, text: str, token_ids: list[int]) -> tuple[list[str], list[str]]:
        """The words that are outside the vocabulary: those without tokens, and spelled ones."""
        spelling = _spelling_ids(self.tokenizer_file)
        if self.unknown_id not in token_ids and spelling.isdisjoint(token_ids):
            return [], []
        # An encoding of one text knows its words; those of a batch do not, and are faster.
        encoding = _load(self.tokenizer_file).encode(text, add_special_tokens=False)
        return _words(encoding, text, {self.unknown_id}), _words(encoding, text, spelling)

    def _problem(
        self,
        row: Row,
        text: str,
        token_ids: list[int],
        unknown_words: list[str],
        is_known_molecule: bool,
    ) -> Problem | None:
        """The first problem of a row, None if it has none."""
        if not text:
            return Problem(UNREADABLE, row.problem)
        length = len(token_ids) + SPECIALS
        if length > self.options.max_length and not self.options.packed:
            return Problem(TOO_LONG, f"{length} tokens, at most {self.options.max_length}")
        if self.options.molecules and not is_known_molecule:
            problem = molecule_problem(text)
            if problem is not None:
                return Problem(UNPARSABLE, problem)
        if unknown_words:
            different_words = " ".join(dict.fromkeys(unknown_words))
            return Problem(UNKNOWN, f"not in the vocabulary: {different_words}")
        if self.options.molecules:
            tokenizer = _load(self.tokenizer_file)
            decoded = tokenizer.decode(token_ids, skip_special_tokens=False).strip()
            if decoded != text:
                return Problem(NOT_REVERSIBLE, f"decodes to {decoded}")
        return None

    def _examples(self, kept: list[JudgedRow]) -> np.ndarray:
        """[kept] EXAMPLE, without offsets. Texts that are equal for the tokenizer, as those that
        differ in capitals may be, are in the same part."""
        normalizer = _load(self.tokenizer_file).normalizer
        texts = [normalizer.normalize_str(row.text) if normalizer else row.text for row in kept]
        examples = np.zeros(len(kept), EXAMPLE)
        examples["length"] = [len(judged.token_ids) for judged in kept]
        examples["document"] = [judged.row.document for judged in kept]
        hashes = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        halves = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
        examples["high"], examples["low"] = halves.T
        # Without a purpose, because with one the same seed would divide earlier corpora otherwise.
        bits = random_bits(self.options.seed, examples["high"])
        examples["part"] = uniform(bits) < self.options.held_out
        return examples


def _invalid_rows(judged_rows: list[JudgedRow]) -> list[InvalidRow]:
    """The lines of skipped.csv for those rows that have a problem."""
    return [
        InvalidRow(
            file=judged.row.source_name,
            row=judged.row.number,
            value=judged.row.text,
            reason=judged.problem.name,
            detail=judged.problem.detail,
            action="kept" if judged.is_kept else "skipped",
        )
        for judged in judged_rows
        if judged.problem
    ]


def _words(encoding: Encoding, text: str, token_ids: Set[int | None]) -> list[str]:
    """Those words of `text` that contain a token of `token_ids`. A word is what the tokenizer
    splits off first."""
    pairs = zip(encoding.ids, encoding.word_ids, strict=True)
    numbers = dict.fromkeys(number for token_id, number in pairs if token_id in token_ids)
    spans = [encoding.word_to_chars(number) for number in numbers if number is not None]
    return [text[slice(*span)] for span in spans if span]


def describe_unknown_words(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """Says which words of a text have tokens outside the vocabulary; "" if none has."""
    encoding = tokenizer([text], add_special_tokens=False).encodings[0]
    words = dict.fromkeys(_words(encoding, text, {tokenizer.unk_token_id}))
    visible = [word if word.isprintable() and word.strip() else repr(word) for word in words]
    return f"not in the model's vocabulary: {' '.join(visible)}" if words else ""


@lru_cache(maxsize=1)
def _load(file: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # a "<mask>" in the text is text
    return tokenizer


@lru_cache(maxsize=1)
def _spelling_ids(file: str) -> frozenset[int | None]:
    """The tokens that spell what is outside the vocabulary of a SMILES tokenizer."""
    tokenizer = _load(file)
    return frozenset(map(tokenizer.token_to_id, MARKED if splits_smiles(tokenizer) else ()))
