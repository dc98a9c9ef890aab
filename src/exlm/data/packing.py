"""Joins the rows of documents to examples of one length."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from exlm.data.corpus import EXAMPLE, SPLITS
from exlm.data.rows import InvalidRow, TokenizedChunk

NOTHING = np.empty(0, np.uint32)


class Stream:
    """The documents of a split, joined.

    Attributes:
        leftover: tokens that are in no example yet.
        has_document: whether it has one."""

    def __init__(self) -> None:
        self.leftover = NOTHING
        self.has_document = False

    def append(self, tokens: np.ndarray, length: int) -> list[np.ndarray]:
        """Adds tokens of a document; returns the examples of `length` tokens that are now full."""
        waiting = np.concatenate([self.leftover, tokens])
        *full, self.leftover = np.split(waiting, range(length, len(waiting) + 1, length))
        self.has_document = True
        return full

    def end(self) -> list[np.ndarray]:
        """Returns what is left as the last example, if anything is."""
        examples = [self.leftover] if len(self.leftover) else []
        self.leftover = NOTHING
        return examples


def pack(
    chunks: Iterable[TokenizedChunk], length: int, separator: int | None
) -> Iterator[TokenizedChunk]:
    """Every chunk with full examples in place of its rows, then a chunk with the last examples.

    The rows of a document are joined and cut into examples of `length` tokens, special tokens not
    counted. No token is dropped, so the last example of a split may be shorter. If the first row of
    a document is held out, so is all of it. `separator` is the token between documents joined into
    one stream, or None if no example has tokens of two."""
    streams = [Stream() for _ in SPLITS]
    document = 0
    split = 0
    for chunk in chunks:
        examples: list[list[np.ndarray]] = [[] for _ in SPLITS]
        for number, split_of_row, tokens in _documents(chunk):
            if number != document:
                document = number
                split = split_of_row
                chunk.counts["rows"]["documents"] += 1
                if separator is None:
                    examples[split] += streams[split].end()
                elif streams[split].has_document:
                    tokens = np.insert(tokens, 0, separator)
            examples[split] += streams[split].append(tokens, length)
        yield _packed(examples, chunk.invalid, chunk.counts)
    yield _packed([stream.end() for stream in streams], [], {})


def _documents(chunk: TokenizedChunk) -> Iterator[tuple[int, int, np.ndarray]]:
    """Number, split of the first row, and tokens of each document in a chunk."""
    lengths = chunk.examples["length"].astype(np.int64)
    first_rows = np.flatnonzero(np.diff(chunk.examples["document"], prepend=0))
    starts = (np.cumsum(lengths) - lengths)[first_rows]
    documents = np.split(chunk.tokens, starts)[1:]
    for row, tokens in zip(chunk.examples[first_rows], documents, strict=True):
        if len(tokens):
            yield row["document"], row["split"], tokens


def _packed(
    examples_by_split: list[list[np.ndarray]],
    invalid: list[InvalidRow],
    counts: dict[str, Counter[str]],
) -> TokenizedChunk:
    training, held_out = examples_by_split
    examples = np.zeros(len(training) + len(held_out), EXAMPLE)
    examples["length"] = [len(tokens) for tokens in training + held_out]
    examples["split"][len(training) :] = SPLITS.index("valid")
    tokens = np.concatenate([NOTHING, *training, *held_out])
    return TokenizedChunk(tokens, examples, invalid, counts)
