"""Packing: the rows of documents, one right after another, cut into examples of a fixed number of tokens.

Documents are held out whole, so that none is on both sides, and each side is packed by itself. Beyond the chunk at
hand, memory holds less than one example per side.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from .corpus_writer import is_held_out
from .encoding import EncodedChunk
from .workers import Chunk

Documents = Literal["none", "row", "blank"]
NOTHING = np.empty(0, np.uint32), np.empty(0, np.int64), np.empty((0, 2), np.uint64)  # tokens, lengths, digests
NO_DIGEST = np.zeros(2, np.uint64)


class Packer:
    """Turns encoded rows into encoded examples. No token is dropped: last pieces are examples, too, if shorter.

    Args:
        length: tokens per example, special tokens not counted.
        documents: `row`, every row is a document; `blank`, blank rows and ends of files separate documents.
        separator: token between documents in one unbroken stream; None if examples end with their documents.
        held_out, seed: share of documents, and the choice of them by their first rows, that become `valid`.

    Attributes:
        packed: how many documents had tokens.
    """

    def __init__(self, length: int, documents: Documents, separator: int | None, held_out: float, seed: int) -> None:
        self.packed = 0
        self._documents, self._held_out, self._seed = documents, held_out, seed
        self._sides = _Side(length, separator), _Side(length, separator)
        self._last = ("", 0)  # source and number of the last row
        self._seen = self._open = 0  # numbers of the last document, and of the last one that had tokens
        self._side = self._sides[0]  # of that document

    def __call__(self, encoded: Iterable[tuple[Chunk, EncodedChunk]]) -> Iterator[tuple[Chunk, EncodedChunk]]:
        """The chunks with examples in place of rows, then an empty chunk with the last examples."""
        for chunk, result in encoded:
            for document, tokens, digest in self._pieces(chunk, result):
                if document != self._open:
                    self._begin(document, digest)
                self._side.add(tokens)
            yield chunk, self._take(result)
        for side in self._sides:
            side.flush()
        yield Chunk("", [], [], 0), self._take(EncodedChunk(*NOTHING, [], Counter()))

    def _begin(self, document: int, digest: np.ndarray) -> None:
        self._open = document
        self._side = self._sides[int(is_held_out(digest[None], self._held_out, self._seed)[0])]
        self._side.begin(digest)
        self.packed += 1

    def _pieces(self, chunk: Chunk, result: EncodedChunk) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(document, tokens, digest of the first row) of each run of kept rows in one document."""
        kept = np.ones(len(chunk.rows), bool)
        kept[[p.position for p in result.problems if not p.kept]] = False
        document = self._number(chunk)[kept]
        first = np.flatnonzero(np.diff(document, prepend=0))
        begin = (np.cumsum(result.lengths) - result.lengths)[first]
        pieces = zip(document[first], np.split(result.tokens, begin[1:]), result.digests[first], strict=False)
        return ((int(number), tokens, digest) for number, tokens, digest in pieces if len(tokens))

    def _number(self, chunk: Chunk) -> np.ndarray:
        """[rows] which document each row belongs to, from 1. Chunks leave blank rows out: row numbers have gaps."""
        source, last = self._last
        steps = np.diff(chunk.rows, prepend=last if source == chunk.source else -1)
        numbers = self._seen + np.cumsum((steps != 1) | (self._documents == "row"))
        if chunk.rows:
            self._last, self._seen = (chunk.source, chunk.rows[-1]), int(numbers[-1])
        return numbers

    def _take(self, result: EncodedChunk) -> EncodedChunk:
        """`result` with all finished examples in place of its own."""
        done = [example for side in self._sides for example in side.done]
        for side in self._sides:
            side.done = []
        tokens, lengths, digests = (np.concatenate(parts) for parts in zip(NOTHING, *done, strict=True))
        return replace(result, tokens=tokens, lengths=lengths, digests=digests)


class _Side:
    """Examples of one side; `done` are blocks of tokens, [n] lengths and [n, 2] digests of the newest document."""

    def __init__(self, length: int, separator: int | None) -> None:
        self.length, self.separator = length, separator
        self.done: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._parts: list[np.ndarray] = []
        self._size = 0
        self._digest = NO_DIGEST

    def begin(self, digest: np.ndarray) -> None:
        """A new document."""
        if self.separator is None:
            self.flush()
        elif self._digest is not NO_DIGEST:
            self.add(np.array([self.separator], np.uint32))
        self._digest = digest

    def add(self, tokens: np.ndarray) -> None:
        self._parts.append(tokens)
        self._size += len(tokens)
        if self._size >= self.length:
            self._cut(self._size // self.length * self.length)

    def flush(self) -> None:
        """What is left becomes an example."""
        if self._size:
            self._cut(self._size)

    def _cut(self, size: int) -> None:
        tokens = np.concatenate(self._parts)
        starts = np.arange(0, size, self.length)
        lengths = np.minimum(size - starts, self.length)
        self.done.append((tokens[:size], lengths, np.tile(self._digest, (len(lengths), 1))))
        self._parts, self._size = [tokens[size:]], self._size - size
