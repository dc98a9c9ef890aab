"""Packing: the rows of documents, one right after another, cut into examples of a fixed number of tokens.

Documents are held out whole, so that none is in both splits, and each split is packed by itself. Beyond the chunk at
hand, memory holds less than one example per split.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from .encoding import EncodedChunk

Documents = Literal["none", "row", "blank"]
NOTHING = np.empty(0, np.uint32)


class Stream:
    """The documents of one split, cut into examples of `length` tokens.

    Args:
        separator: token between documents in one unbroken stream; None if examples end with their documents.

    Attributes:
        examples: the finished ones.
    """

    def __init__(self, length: int, separator: int | None) -> None:
        self.length, self.separator = length, separator
        self.examples: list[np.ndarray] = []
        self._rest = NOTHING  # tokens that are no example yet
        self._begun = False

    def add(self, tokens: np.ndarray, new_document: bool) -> None:
        """More tokens of the document at hand, or of a new one."""
        if new_document and self.separator is None:
            self.end()
        elif new_document and self._begun:
            tokens = np.insert(tokens, 0, self.separator)
        self._begun = True
        tokens = np.concatenate([self._rest, tokens])
        *examples, self._rest = np.split(tokens, range(self.length, len(tokens) + 1, self.length))
        self.examples += examples

    def end(self) -> None:
        """What is left becomes an example."""
        if len(self._rest):
            self.examples.append(self._rest)
            self._rest = NOTHING


def pack(chunks: Iterable[EncodedChunk], length: int, separator: int | None) -> Iterator[EncodedChunk]:
    """The chunks with examples in place of rows, then a chunk with the last examples.

    No token is dropped: the last example of a split may be shorter. Documents that have tokens are counted, too. The
    first row of a document decides whether the document is held out.

    Args:
        chunks: rows with the numbers of their documents.
        length: tokens per example, special tokens not counted.
        separator: see `Stream`.
    """
    stream, _ = splits = Stream(length, separator), Stream(length, separator)  # training, held out
    present = 0  # number of the document at hand
    for chunk in chunks:
        first = np.flatnonzero(np.diff(chunk.documents, prepend=0))  # row of each document in the chunk
        documents = np.split(chunk.tokens, (np.cumsum(chunk.lengths) - chunk.lengths)[first])[1:]
        for number, held_out, tokens in zip(chunk.documents[first], chunk.held_out[first], documents, strict=True):
            if not len(tokens):
                continue
            if number != present:
                stream = splits[int(held_out)]
                chunk.counts["rows"]["documents"] += 1
            stream.add(tokens, new_document=number != present)
            present = number
        yield _with_examples(chunk, splits)
    for split in splits:
        split.end()
    yield _with_examples(replace(chunk, invalid=[], counts={}), splits)


def _with_examples(chunk: EncodedChunk, splits: Iterable[Stream]) -> EncodedChunk:
    examples = [example for split in splits for example in split.examples]
    sizes = [len(split.examples) for split in splits]
    for split in splits:
        split.examples = []
    return replace(
        chunk,
        tokens=np.concatenate([NOTHING, *examples]),
        lengths=np.array([len(tokens) for tokens in examples], np.int64),
        digests=np.zeros((len(examples), 2), np.uint64),
        held_out=np.repeat([False, True], sizes),
    )
