"""Turns rows into examples, a chunk at a time. Several processes check, tokenise and hash rows;
`pack` joins rows."""

import gc
import hashlib
import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Set
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, islice
from threading import Thread
from typing import NamedTuple, TypeVar

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, molecule_problem, standardize
from exlm.data.corpus import EXAMPLE, SPLITS
from exlm.data.readers import Source, read_rows
from exlm.data.tokenization import MARKED, SMILES_PATTERN, splits_residues, splits_smiles
from exlm.randomness import mix, uniform

CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
SPECIALS = 2  # BOS and EOS, added around every sequence
TOO_LONG, UNKNOWN, NOT_REVERSIBLE, UNPARSABLE = (
    "too_long",
    "unknown_token",
    "not_reversible",
    "unparsable",
)
UNREADABLE = "unreadable"  # there is no text
NOTHING = np.empty(0, np.uint32)
Chunk = list["Row"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Row(NamedTuple):
    """A row of a source. The text is empty if the row is blank, or if its format could not be
    read."""

    source: str
    number: int  # from 1
    document: int
    text: str
    fault: str = ""  # why the row has no text, where that is known


@dataclass
class EncodedChunk:
    """The kept rows of a chunk, and what was found in the chunk."""

    tokens: np.ndarray  # [sum of lengths] uint32, row after row, without special tokens
    examples: np.ndarray  # [kept] EXAMPLE
    # lines of skipped.csv: file, row, value, reason, detail, action
    invalid: list[tuple[str, int, str, str, str, str]]
    # of rows, invalid rows, and unknown and spelled strings, as `Encoder` has them
    counts: dict[str, Counter[str]]


def read_chunks(
    sources: Iterable[Source], text_column: str | None, rows_are_documents: bool = False
) -> Iterator[Chunk]:
    """All rows of all sources, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a
    time. Blank rows and ends of sources separate documents; with `rows_are_documents`, every row is
    a document."""
    document = 0
    for source in sources:
        document += 1
        chunk, size = [], 0
        for number, (text, fault) in enumerate(read_rows(source, text_column), 1):
            document += rows_are_documents or not text
            chunk.append(Row(source.name, number, document, text, fault))
            size += len(text)
            if len(chunk) == CHUNK_ROWS or size >= CHUNK_CHARACTERS:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


def map_chunks(
    function: Callable[[Item], Result], chunks: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """The results of `function` for every chunk, in order, computed by `workers` processes (0 is
    one per core), which end when the generator is closed. At most a few chunks per worker are in
    memory at once."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    workers, chunks = workers or cores, iter(chunks)
    # With one worker, this process does all chunks. Otherwise it does the first chunk: there is
    # often no other.
    yield from map(function, islice(chunks, None if workers == 1 else 1))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, shared by all workers
    pending: deque[Future[Result]] = deque()
    # starts a process when it has work
    with ProcessPoolExecutor(workers, context, _prepare_worker) as executor:
        for chunk in chunks:
            pending.append(executor.submit(function, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _prepare_worker() -> None:  # it ends if its parent is killed: nobody would use or stop it
    Thread(
        target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True
    ).start()  # type: ignore
    # garbage collection would write to every page shared with the other processes, and so copy it
    gc.freeze()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the files


def count_smiles(
    molecules_only: bool, how: Standardize, chunk: Chunk
) -> tuple[Counter[str], bytes]:
    """How often each token occurs in a chunk's standardized SMILES, or with `molecules_only` in
    those of molecules; and for `Encoder` which rows these are, as bits: RDKit takes most of the
    time, and need not read a molecule twice."""
    chosen = [not molecules_only or molecule_problem(row.text) is None for row in chunk]
    texts = (standardize(row.text, how) for row in compress(chunk, chosen))
    counts = Counter(token for text in texts for token in re.findall(SMILES_PATTERN, text))
    return counts, np.packbits(chosen).tobytes() if molecules_only and how == "none" else b""


@dataclass(frozen=True)
class Encoder:
    """Turns a chunk, with the bits that `count_smiles` found for it or none, into tokens. Leaves
    out blank rows."""

    tokenizer_file: str  # a tokenizer.json
    unknown_id: int | None  # of the token for unknown text, if the tokenizer has one
    max_length: int  # tokens of a valid row, BOS and EOS included; longer rows are never kept
    # a valid row must be SMILES that RDKit reads, and its tokens must decode to the same text
    molecules: bool
    keep_invalid: bool  # whether invalid rows are kept, if they are not too long
    held_out: float  # share of the rows that become `valid`, chosen by their content
    seed: int  # seed of this choice
    standardize: Standardize = "none"  # how the SMILES are rewritten before all else

    def __call__(self, checked: tuple[Chunk, bytes]) -> EncodedChunk:
        chunk, bits = checked
        # b"" gives noise
        known = np.unpackbits(np.frombuffer(bits or b"\0", np.uint8), count=len(chunk)).tolist()
        tokenizer = _load(self.tokenizer_file)
        spelling = (
            {tokenizer.token_to_id(token) for token in MARKED}
            if splits_smiles(tokenizer)
            else set()
        )
        filled = [bool(row.text or row.fault) for row in chunk]
        rows = list(compress(chunk, filled))
        texts = [standardize(row.text, self.standardize) for row in rows]
        if splits_residues(tokenizer):  # equal proteins get equal texts, and so the same split
            texts = [tokenizer.normalizer.normalize_str(text) for text in texts]
        ids = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        decoded = (
            tokenizer.decode_batch(ids, skip_special_tokens=False)
            if self.molecules
            else [""] * len(ids)
        )
        kept, invalid = [], []
        count = Counter(rows=len(chunk), blank=len(chunk) - len(rows))
        counts = {
            "rows": count,
            "invalid": Counter[str](),
            "unknown": Counter[str](),
            "spelled": Counter[str](),
        }
        for row, text, tokens, restored, sure in zip(
            rows, texts, ids, decoded, compress(known, filled), strict=True
        ):
            unknown, spelled = [], []
            if self.unknown_id in tokens or not spelling.isdisjoint(tokens):
                # knows the words; slower than a batch
                found = tokenizer.encode(text, add_special_tokens=False)
                unknown, spelled = (
                    _words(found, text, odd) for odd in ({self.unknown_id}, spelling)
                )
            reason, detail = UNREADABLE, row.fault
            if text:
                reason, detail = self._problem(
                    text, len(tokens) + SPECIALS, restored, unknown, sure
                )
            keep = not reason or (self.keep_invalid and reason not in (TOO_LONG, UNREADABLE))
            if keep:
                kept.append((row.document, text, tokens))
                counts["spelled"].update(spelled)
            if keep or reason == UNKNOWN:
                counts["unknown"].update(unknown)
            if reason:
                action = "kept" if keep else "skipped"
                invalid.append((row.source, row.number, row.text, reason, detail, action))
                counts["invalid"][reason] += 1
                count["kept_invalid" if keep else "skipped"] += 1
        count.update(
            unknown_tokens=counts["unknown"].total(), spelled_pieces=counts["spelled"].total()
        )
        examples = np.zeros(len(kept), EXAMPLE)
        examples["length"] = [len(tokens) for _, _, tokens in kept]
        examples["document"] = [document for document, _, _ in kept]
        hashes = b"".join(
            hashlib.blake2b(text.encode(), digest_size=16).digest() for _, text, _ in kept
        )
        examples["high"], examples["low"] = np.frombuffer(hashes, "<u8").reshape(-1, 2).T
        # the same for equal texts
        examples["split"] = uniform(mix(self.seed, examples["high"])) < self.held_out
        joined = np.fromiter(chain.from_iterable(tokens for _, _, tokens in kept), np.uint32)
        return EncodedChunk(joined, examples, invalid, counts)

    def _problem(
        self, text: str, length: int, decoded: str, unknown: list[str], known: int
    ) -> tuple[str, str]:
        """(reason, detail) of the first thing that is wrong with a row; empty if nothing is."""
        if length > self.max_length:
            return TOO_LONG, f"{length} tokens, at most {self.max_length}"
        if self.molecules and not known and (error := molecule_problem(text)):
            return UNPARSABLE, error
        if unknown:
            return UNKNOWN, f"not in the vocabulary: {' '.join(dict.fromkeys(unknown))}"
        if self.molecules and decoded.strip() != text:
            return NOT_REVERSIBLE, f"decodes to {decoded.strip()}"
        return "", ""


def _words(found: Encoding, text: str, ids: Set[int | None]) -> list[str]:
    """Those words of `text` that contain a token of `ids`. A word is what the tokenizer splits off
    first."""
    words = dict.fromkeys(
        word for i, word in zip(found.ids, found.word_ids, strict=True) if i in ids
    )
    spans = [found.word_to_chars(word) for word in words if word is not None]
    return [text[slice(*span)] for span in spans if span]


def unknown_tokens(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """Says which words of a text have tokens outside the vocabulary; "" if none has."""
    found = tokenizer([text], add_special_tokens=False).encodings[0]
    words = dict.fromkeys(_words(found, text, {tokenizer.unk_token_id}))
    return f"not in the model's vocabulary: {' '.join(words)}" if words else ""


@lru_cache(maxsize=1)
def _load(file: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True  # a "<mask>" in the text is text
    return tokenizer


def pack(
    chunks: Iterable[EncodedChunk], length: int, separator: int | None
) -> Iterator[EncodedChunk]:
    """Packs rows: every chunk with full examples in place of its rows, then a chunk with the last
    examples.

    The rows of a document are joined and cut into examples of `length` tokens, special tokens not
    counted. No token is dropped, so the last example of a split may be shorter. If the first row of
    a document is held out, so is all of it. `separator` is the token between documents joined into
    one stream, or None if no example has tokens of two."""
    # tokens that are in no example yet: of training documents, and of held-out ones
    rest = [NOTHING, NOTHING]
    begun = [False, False]
    present, split = 0, 0  # number and split of the current document
    for chunk in chunks:
        examples: list[list[np.ndarray]] = [[], []]
        lengths, documents = chunk.examples["length"].astype(np.int64), chunk.examples["document"]
        # first row of each document in the chunk
        first = np.flatnonzero(np.diff(documents, prepend=0))
        texts = np.split(chunk.tokens, (np.cumsum(lengths) - lengths)[first])[1:]
        for row, tokens in zip(chunk.examples[first], texts, strict=True):
            if not len(tokens):
                continue
            if row["document"] != present:
                present, split = row["document"], row["split"]
                chunk.counts["rows"]["documents"] += 1
                if separator is None:
                    examples[split] += [rest[split]] if len(rest[split]) else []
                    rest[split] = NOTHING
                elif begun[split]:
                    tokens = np.insert(tokens, 0, separator)
                begun[split] = True
            tokens = np.concatenate([rest[split], tokens])
            *full, rest[split] = np.split(tokens, range(length, len(tokens) + 1, length))
            examples[split] += full
        yield _with_examples(chunk, *examples)
    last = ([tokens] if len(tokens) else [] for tokens in rest)
    yield _with_examples(replace(chunk, invalid=[], counts={}), *last)


def _with_examples(
    chunk: EncodedChunk, training: list[np.ndarray], held_out: list[np.ndarray]
) -> EncodedChunk:
    examples = np.zeros(len(training) + len(held_out), EXAMPLE)
    examples["length"] = [len(tokens) for tokens in training + held_out]
    examples["split"][len(training) :] = SPLITS.index("valid")
    return replace(chunk, tokens=np.concatenate([NOTHING, *training, *held_out]), examples=examples)
