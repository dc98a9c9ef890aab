"""Packing: the rows of documents, one right after another, cut into examples of a fixed number of tokens.

Documents are held out whole, so that none is in both splits, and each split is packed by itself. Beyond the chunk at
hand, memory holds less than one example per split.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from .corpus import EXAMPLE, SPLITS
from .encoding import EncodedChunk

Documents = Literal["none", "row", "blank"]
NOTHING = np.empty(0, np.uint32)


def pack(chunks: Iterable[EncodedChunk], length: int, separator: int | None) -> Iterator[EncodedChunk]:
    """The chunks with examples in place of rows, then a chunk with the last examples.

    No token is dropped: the last example of a split may be shorter. Documents that have tokens are counted, too. The
    first row of a document decides whether the document is held out.

    Args:
        chunks: rows with the numbers of their documents.
        length: tokens per example, special tokens not counted.
        separator: token between documents in one unbroken stream; None if examples end with their documents.
    """
    rest = [NOTHING, NOTHING]  # of the training and of the held-out documents: tokens that are no example yet
    begun = [False, False]
    present, split = 0, 0  # number and split of the document at hand
    for chunk in chunks:
        examples: list[list[np.ndarray]] = [[], []]
        lengths, documents = chunk.examples["length"].astype(np.int64), chunk.examples["document"]
        first = np.flatnonzero(np.diff(documents, prepend=0))  # row of each document in the chunk
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


def _with_examples(chunk: EncodedChunk, training: list[np.ndarray], held_out: list[np.ndarray]) -> EncodedChunk:
    examples = np.zeros(len(training) + len(held_out), EXAMPLE)
    examples["length"] = [len(tokens) for tokens in training + held_out]
    examples["split"][len(training) :] = SPLITS.index("valid")
    return replace(chunk, tokens=np.concatenate([NOTHING, *training, *held_out]), examples=examples)
