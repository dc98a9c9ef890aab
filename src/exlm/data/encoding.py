"""From rows to tokens, one chunk of rows at a time: checks, tokens and content hashes, in several processes."""

import gc
import hashlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Tokenizer

from ..randomness import mix, uniform
from .chemistry import rdkit_problem
from .corpus import EXAMPLE
from .readers import Source, read_rows
from .tokenization import count_smiles_tokens, spelling_ids

CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
SPECIALS = 2  # BOS and EOS, added around every sequence
TOO_LONG, UNKNOWN, NOT_REVERSIBLE, UNPARSABLE = "too_long", "unknown_token", "not_reversible", "unparsable"
SKIPPED_COLUMNS = ("file", "row", "value", "reason", "detail", "action")  # of skipped.csv; action is kept or skipped
Result = TypeVar("Result")


class Row(NamedTuple):
    """A row of a source, an empty text if it is blank."""

    source: str
    number: int  # from 1
    document: int
    text: str


Chunk = list[Row]


@dataclass
class EncodedChunk:
    """The kept rows of a chunk and what was found.

    Attributes:
        tokens: [sum of lengths] uint32, row after row, without special tokens.
        examples: [kept] EXAMPLE.
        invalid: lines of skipped.csv, see SKIPPED_COLUMNS.
        counts: how often what occurred: kinds of rows ("rows"), reasons ("invalid"), strings of kept and skipped rows
            that became <unk> ("unknown"), and SMILES tokens of kept rows that were spelled ("spelled").
    """

    tokens: np.ndarray
    examples: np.ndarray
    invalid: list[tuple[str, int, str, str, str, str]]
    counts: dict[str, Counter[str]]


def read_chunks(sources: Iterable[Source], column: str | None, rows_are_documents: bool = False) -> Iterator[Chunk]:
    """All rows of all sources, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a time.

    Blank rows and ends of sources separate documents; with `rows_are_documents`, every row is one.
    """
    document = 0
    for source in sources:
        document += 1
        chunk, size = [], 0
        for number, text in enumerate(read_rows(source, column), 1):
            document += rows_are_documents or not text
            chunk.append(Row(source.name, number, document, text))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def map_chunks(
    function: Callable[[Chunk], Result], chunks: Iterable[Chunk], workers: int
) -> Generator[Result, None, None]:
    """The results of `function` for every chunk, in order, computed by `workers` processes (0 is one per core).

    At most a few chunks per worker are in memory at once. Closing the generator ends the processes.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers, chunks = workers or cores, iter(chunks)
    # One worker is this process, which also does the first chunk: there is often no other.
    yield from map(function, islice(chunks, None if workers == 1 else 1))
    available = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in available else "spawn")
    context.set_forkserver_preload([__name__])  # imported once, shared by all workers
    executor = ProcessPoolExecutor(workers, context, _prepare_worker)  # starts a process when it has work
    pending: deque[Future[Result]] = deque()
    try:
        for chunk in chunks:
            pending.append(executor.submit(function, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    gc.freeze()  # a collection would write to, and so copy, every page shared with the other processes
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the files


def count_smiles(molecules_only: bool, chunk: Chunk) -> Counter[str]:
    """SMILES tokens of the rows; with `molecules_only`, of those that RDKit reads."""
    return count_smiles_tokens(r.text for r in chunk if not molecules_only or rdkit_problem(r.text) is None)


@dataclass(frozen=True)
class Encoder:
    """Turns the rows of a chunk into tokens, and leaves out blank rows, and invalid ones unless they are to be kept."""

    tokenizer_file: str  # a tokenizer.json
    unknown_id: int | None  # of the token for unknown text, if the tokenizer has one
    max_length: int  # tokens of a valid row, BOS and EOS included; longer rows are never kept
    molecules: bool  # a valid row must be SMILES that RDKit reads and that decodes to itself
    keep_invalid: bool  # other invalid rows
    held_out: float  # share of the rows that become `valid`, chosen by their content
    seed: int  # of this choice

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        tokenizer = _load(self.tokenizer_file)
        spelling = spelling_ids(tokenizer)
        rows = [row for row in chunk if row.text]
        ids = [e.ids for e in tokenizer.encode_batch_fast([row.text for row in rows], add_special_tokens=False)]
        decoded = tokenizer.decode_batch(ids, skip_special_tokens=False) if self.molecules else [""] * len(ids)
        kept, invalid = [], []
        count = Counter(rows=len(chunk), blank=len(chunk) - len(rows))
        counts = {"rows": count, "invalid": Counter[str](), "unknown": Counter[str](), "spelled": Counter[str]()}
        for row, tokens, restored in zip(rows, ids, decoded, strict=True):
            unknown, spelled = _odd_strings(tokenizer, row.text, tokens, self.unknown_id, spelling)
            reason, detail = self._problem(row.text, len(tokens) + SPECIALS, restored, unknown)
            keep = not reason or (self.keep_invalid and reason != TOO_LONG)
            if keep:
                kept.append((row, tokens))
                counts["spelled"].update(spelled)
            if keep or reason == UNKNOWN:
                counts["unknown"].update(unknown)
            if reason:
                action = "kept" if keep else "skipped"
                invalid.append((row.source, row.number, row.text, reason, detail, action))
                counts["invalid"][reason] += 1
                count["kept_invalid" if keep else "skipped"] += 1
        count.update(unknown_tokens=counts["unknown"].total(), spelled_pieces=counts["spelled"].total())
        examples = np.zeros(len(kept), EXAMPLE)
        examples["length"] = [len(tokens) for _, tokens in kept]
        examples["document"] = [row.document for row, _ in kept]
        hashes = b"".join(hashlib.blake2b(row.text.encode(), digest_size=16).digest() for row, _ in kept)
        examples["high"], examples["low"] = np.frombuffer(hashes, "<u8").reshape(-1, 2).T
        examples["split"] = uniform(mix(self.seed, examples["high"])) < self.held_out  # the same for equal texts
        joined = np.fromiter(chain.from_iterable(tokens for _, tokens in kept), np.uint32)
        return EncodedChunk(joined, examples, invalid, counts)

    def _problem(self, text: str, length: int, decoded: str, unknown: list[str]) -> tuple[str, str]:
        """(reason, detail) of the first thing that is wrong with a row; empty if nothing is."""
        if length > self.max_length:
            return TOO_LONG, f"{length} tokens, at most {self.max_length}"
        if self.molecules and (error := rdkit_problem(text)):
            return UNPARSABLE, error
        if unknown:
            return UNKNOWN, f"not in the vocabulary: {' '.join(dict.fromkeys(unknown))}"
        if self.molecules and decoded.strip() != text:
            return NOT_REVERSIBLE, f"decodes to {decoded.strip()}"
        return "", ""


def _odd_strings(
    tokenizer: Tokenizer, text: str, tokens: list[int], unknown_id: int | None, spelling: Set[int]
) -> tuple[list[str], list[str]]:
    """What of `text` became `<unk>`, and the SMILES tokens that the vocabulary has only character by character."""
    if unknown_id not in tokens and spelling.isdisjoint(tokens):
        return [], []
    found = tokenizer.encode(text, add_special_tokens=False)  # with offsets, which a batch is faster without
    unknown = [text[start:end] for i, (start, end) in zip(found.ids, found.offsets, strict=True) if i == unknown_id]
    words = dict.fromkeys(word for i, word in zip(found.ids, found.word_ids, strict=True) if i in spelling)
    spans = [found.word_to_chars(word) for word in words if word is not None]
    return unknown, [text[slice(*span)] for span in spans if span]


@lru_cache(maxsize=1)
def _load(file: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # a "<mask>" in the text is text
    return tokenizer
