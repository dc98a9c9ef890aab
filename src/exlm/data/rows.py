"""Turns rows into examples, a chunk at a time. Several processes check, tokenise and hash rows."""

import gc
import hashlib
import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from threading import Thread
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, molecule_problem, standardize
from exlm.data.corpus import EXAMPLE, SPECIALS
from exlm.data.sources import Source, read_rows
from exlm.data.tokenization import MARKED, SMILES_PATTERN, splits_smiles
from exlm.errors import InputError, check_at_least, check_choices
from exlm.randomness import draw, uniform

CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21

# Reasons why a row is invalid.
TOO_LONG = "too_long"
UNKNOWN = "unknown_token"
NOT_REVERSIBLE = "not_reversible"
UNPARSABLE = "unparsable"
UNREADABLE = "unreadable"  # there is no text

OnInvalid = Literal["error", "skip", "keep"]
Documents = Literal["none", "row", "blank"]
Chunk = list["Row"]
Item = TypeVar("Item")
Result = TypeVar("Result")


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
            same split, and so are rows that the tokenizer reads alike (wordpiece: without capitals
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


class Row(NamedTuple):
    """A row of a source. The text is empty if the row is blank, or if its format could not be
    read."""

    source: str
    number: int  # from 1
    document: int
    text: str
    fault: str = ""  # why the row has no text, where that is known


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

    tokens: np.ndarray  # [sum of lengths] uint32, row after row, without special tokens
    examples: np.ndarray  # [kept] EXAMPLE
    invalid: list[InvalidRow]
    counts: dict[str, Counter[str]]  # of rows, invalid rows, and unknown and spelled strings


def read_chunks(
    sources: Iterable[Source], text_column: str | None, rows_are_documents: bool = False
) -> Iterator[Chunk]:
    """All rows of all sources, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a
    time. Blank rows and ends of sources separate documents; with `rows_are_documents`, every row is
    a document."""
    document = 0
    for source in sources:
        document += 1
        chunk: Chunk = []
        size = 0
        for number, (text, fault) in enumerate(read_rows(source, text_column), 1):
            if rows_are_documents or not text:
                document += 1
            chunk.append(Row(source.name, number, document, text, fault))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk = []
                size = 0
        if chunk:
            yield chunk


def map_chunks(
    function: Callable[[Item], Result], chunks: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """The results of `function` for every chunk, in order, computed by `workers` processes (0 is
    one per core), which end when the generator is closed. At most a few chunks per worker are in
    memory at once."""
    if not workers:
        has_affinity = hasattr(os, "sched_getaffinity")
        workers = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    chunks = iter(chunks)
    if workers == 1:
        yield from map(function, chunks)
        return
    # This process does the first chunk itself: there is often no other.
    for first_chunk in islice(chunks, 1):
        yield function(first_chunk)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, shared by all workers
    pending: deque[Future[Result]] = deque()
    # The executor starts a process when it has work.
    with ProcessPoolExecutor(workers, context, _prepare_worker) as executor:
        for chunk in chunks:
            pending.append(executor.submit(function, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _prepare_worker() -> None:
    end_with_parent()
    # Garbage collection would write to every page shared with the other processes, and so copy it.
    gc.freeze()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the files


def end_with_parent() -> None:
    """From now on, this process ends if its parent is killed: nobody would use or stop it."""

    def wait() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def count_and_parse(
    molecules_only: bool, how: Standardize, chunk: Chunk
) -> tuple[Counter[str], np.ndarray | None]:
    """How often each token occurs in a chunk's standardized SMILES, or with `molecules_only` in
    those of molecules; and which rows are known to be molecules, [rows] bool, so that
    `RowTokenizer` does not parse them again, which takes most of the time; None if it must."""
    counts = Counter[str]()
    is_molecule = []
    for row in chunk:
        is_molecule.append(not molecules_only or molecule_problem(row.text) is None)
        if is_molecule[-1]:
            counts.update(re.findall(SMILES_PATTERN, standardize(row.text, how)))
    # Without `molecules_only` nothing was parsed, and a row that is rewritten is parsed again.
    if not molecules_only or how != "none":
        return counts, None
    return counts, np.array(is_molecule)


@dataclass(frozen=True)
class RowTokenizer:
    """Turns a chunk, and the known molecules of `count_and_parse` or None, into tokens. Leaves out
    blank rows."""

    tokenizer_file: str  # a tokenizer.json
    unknown_id: int | None  # of the token for unknown text, if the tokenizer has one
    options: PrepareOptions

    def __call__(self, chunk_and_molecules: tuple[Chunk, np.ndarray | None]) -> TokenizedChunk:
        chunk, known_molecules = chunk_and_molecules
        if known_molecules is None:
            known_molecules = np.zeros(len(chunk), bool)
        numbers = [number for number, row in enumerate(chunk) if row.text or row.fault]
        texts = [standardize(chunk[number].text, self.options.standardize) for number in numbers]
        encodings = _load(self.tokenizer_file).encode_batch_fast(texts, add_special_tokens=False)
        keep_invalid = self.options.on_invalid == "keep"
        kept: list[tuple[Row, str, list[int]]] = []
        invalid: list[InvalidRow] = []
        unknown = Counter[str]()
        spelled = Counter[str]()
        for number, text, encoding in zip(numbers, texts, encodings, strict=True):
            row, tokens = chunk[number], encoding.ids
            unknown_words, spelled_words = self._unusual_words(text, tokens)
            reason, detail = self._judge(
                row, text, tokens, unknown_words, is_known_molecule=known_molecules[number]
            )
            keep = not reason or (keep_invalid and reason not in (TOO_LONG, UNREADABLE))
            if keep:
                kept.append((row, text, tokens))
                spelled.update(spelled_words)
            if keep or reason == UNKNOWN:
                unknown.update(unknown_words)
            if reason:
                action = "kept" if keep else "skipped"
                invalid.append(InvalidRow(row.source, row.number, row.text, reason, detail, action))
        actions = Counter(row.action for row in invalid)
        rows = Counter(
            rows=len(chunk),
            blank=len(chunk) - len(numbers),
            skipped=actions["skipped"],
            kept_invalid=actions["kept"],
            unknown_tokens=unknown.total(),
            spelled_pieces=spelled.total(),
        )
        reasons = Counter(row.reason for row in invalid)
        counts = {"rows": rows, "invalid": reasons, "unknown": unknown, "spelled": spelled}
        tokens_of_chunk = np.fromiter(chain.from_iterable(ids for *_, ids in kept), np.uint32)
        return TokenizedChunk(tokens_of_chunk, self._examples(kept), invalid, counts)

    def _unusual_words(self, text: str, tokens: list[int]) -> tuple[list[str], list[str]]:
        """The words that are outside the vocabulary: those without tokens, and spelled ones."""
        spelling = _spelling_ids(self.tokenizer_file)
        if self.unknown_id not in tokens and spelling.isdisjoint(tokens):
            return [], []
        # This encoding knows the words, and takes longer than a batch.
        encoding = _load(self.tokenizer_file).encode(text, add_special_tokens=False)
        return _words(encoding, text, {self.unknown_id}), _words(encoding, text, spelling)

    def _judge(
        self,
        row: Row,
        text: str,
        tokens: list[int],
        unknown_words: list[str],
        is_known_molecule: bool,
    ) -> tuple[str, str]:
        """(reason, detail) of the first thing that is wrong with a row; empty if nothing is."""
        if not text:
            return UNREADABLE, row.fault
        length = len(tokens) + SPECIALS
        if length > self.options.max_length and not self.options.packed:
            return TOO_LONG, f"{length} tokens, at most {self.options.max_length}"
        must_parse = self.options.molecules and not is_known_molecule
        if must_parse and (error := molecule_problem(text)):
            return UNPARSABLE, error
        if unknown_words:
            return UNKNOWN, f"not in the vocabulary: {' '.join(dict.fromkeys(unknown_words))}"
        if self.options.molecules:
            decoded = _load(self.tokenizer_file).decode(tokens, skip_special_tokens=False).strip()
            if decoded != text:
                return NOT_REVERSIBLE, f"decodes to {decoded}"
        return "", ""

    def _examples(self, kept: list[tuple[Row, str, list[int]]]) -> np.ndarray:
        """[kept] EXAMPLE, without offsets. Texts that are equal for the tokenizer, as those that
        differ in capitals may be, are in the same split."""
        normalizer = _load(self.tokenizer_file).normalizer
        texts = [normalizer.normalize_str(text) if normalizer else text for _, text, _ in kept]
        examples = np.zeros(len(kept), EXAMPLE)
        examples["length"] = [len(tokens) for _, _, tokens in kept]
        examples["document"] = [row.document for row, _, _ in kept]
        hashes = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts]
        halves = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, 2)
        examples["high"], examples["low"] = halves.T
        # Without a purpose, because with one the same seed would divide earlier corpora otherwise.
        bits = draw(self.options.seed, examples["high"])
        examples["split"] = uniform(bits) < self.options.held_out
        return examples


def _words(encoding: Encoding, text: str, ids: Set[int | None]) -> list[str]:
    """Those words of `text` that contain a token of `ids`. A word is what the tokenizer splits off
    first."""
    pairs = zip(encoding.ids, encoding.word_ids, strict=True)
    words = dict.fromkeys(word for token, word in pairs if token in ids)
    spans = [encoding.word_to_chars(word) for word in words if word is not None]
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
