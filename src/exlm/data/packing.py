"""Packing: the rows of documents, one right after another, cut into examples of a fixed number of tokens.

Documents are held out whole, so that none is in both splits, and each split is packed by itself. Beyond the chunk at
hand, memory holds less than one example per split.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from .corpus import is_held_out
from .encoding import EncodedChunk

Documents = Literal["none", "row", "blank"]
NOTHING = np.empty(0, np.uint32)
NO_DIGEST = np.zeros(2, np.uint64)


class Stream:
    """The documents of one split, cut into examples.

    Attributes:
        examples: of each finished example its tokens, and the digest of the newest document in it.
    """

    def __init__(self, length: int, separator: int | None) -> None:
        self.length, self.separator = length, separator
        self.examples: list[tuple[np.ndarray, np.ndarray]] = []
        self._rest = NOTHING  # tokens that are no example yet
        self._digest = NO_DIGEST

    def begin_document(self, digest: np.ndarray) -> None:
        """Separates what follows from the document before it."""
        if self.separator is None:
            self.end()
        elif self._digest is not NO_DIGEST:
            self.add(np.array([self.separator], np.uint32))
        self._digest = digest

    def add(self, tokens: np.ndarray) -> None:
        """More tokens of the document."""
        tokens = np.concatenate([self._rest, tokens])
        cuts = range(self.length, len(tokens) + 1, self.length)
        *examples, self._rest = np.split(tokens, cuts)
        self.examples += [(example, self._digest) for example in examples]

    def end(self) -> None:
        """What is left becomes an example."""
        if len(self._rest):
            self.examples.append((self._rest, self._digest))
            self._rest = NOTHING


def pack(
    chunks: Iterable[EncodedChunk], length: int, separator: int | None, held_out: float, seed: int
) -> Iterator[EncodedChunk]:
    """The chunks with examples in place of rows, then an empty chunk with the last examples.

    No token is dropped: the last example of a split may be shorter. Documents that have tokens are counted, too.

    Args:
        chunks: rows with the numbers of their documents.
        length: tokens per example, special tokens not counted.
        separator: token between documents in one unbroken stream; None if examples end with their documents.
        held_out, seed: share of documents, and the choice of them by their first rows, that become `valid`.
    """
    splits = Stream(length, separator), Stream(length, separator)
    present = 0  # number of the document at hand
    stream = splits[0]
    for chunk in chunks:
        first = np.flatnonzero(np.diff(chunk.documents, prepend=0))  # row of each document in the chunk
        documents = np.split(chunk.tokens, (np.cumsum(chunk.lengths) - chunk.lengths)[first])[1:]
        for number, digest, tokens in zip(chunk.documents[first], chunk.digests[first], documents, strict=True):
            if len(tokens) and number != present:
                present = number
                stream = splits[int(is_held_out(digest[None], held_out, seed)[0])]
                stream.begin_document(digest)
                chunk.counts["documents"] += 1
            stream.add(tokens)
        yield _with_examples(chunk, splits)
    for split in splits:
        split.end()
    nothing = EncodedChunk(NOTHING, np.empty(0, np.int64), np.empty((0, 2), np.uint64), np.empty(0, np.int64))
    yield _with_examples(nothing, splits)


def _with_examples(chunk: EncodedChunk, splits: Iterable[Stream]) -> EncodedChunk:
    examples = [example for split in splits for example in split.examples]
    for split in splits:
        split.examples = []
    return replace(
        chunk,
        tokens=np.concatenate([NOTHING, *(tokens for tokens, _ in examples)]),
        lengths=np.array([len(tokens) for tokens, _ in examples], np.int64),
        digests=np.array([digest for _, digest in examples], np.uint64).reshape(-1, 2),
    )
