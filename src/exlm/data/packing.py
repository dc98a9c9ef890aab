"""Joins the rows of documents to examples of one length."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from exlm.data.corpus import EXAMPLE, SPLITS
from exlm.data.rows import InvalidRow, TokenizedChunk

NOTHING = np.empty(0, np.uint32)


def pack(
    chunks: Iterable[TokenizedChunk], length: int, separator: int | None
) -> Iterator[TokenizedChunk]:
    """Every chunk with full examples in place of its rows, then a chunk with the last examples.

    The rows of a document are joined and cut into examples of `length` tokens, special tokens not
    counted. No token is dropped, so the last example of a split may be shorter. If the first row of
    a document is held out, so is all of it. `separator` is the token between documents joined into
    one stream, or None if no example has tokens of two."""
    leftovers = [NOTHING for _ in SPLITS]  # tokens of each split that are in no example yet
    has_document = [False for _ in SPLITS]
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
                    examples[split].append(leftovers[split])
                    leftovers[split] = NOTHING
                elif has_document[split]:
                    tokens = np.insert(tokens, 0, separator)
            has_document[split] = True
            stream = np.concatenate([leftovers[split], tokens])
            *full, leftovers[split] = np.split(stream, range(length, len(stream) + 1, length))
            examples[split] += full
        yield _packed(examples, chunk.invalid, chunk.counts)
    yield _packed([[leftover] for leftover in leftovers], [], {})


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
    """A chunk of these examples, without the empty ones."""
    pieces = [
        (split, tokens)
        for split, examples in enumerate(examples_by_split)
        for tokens in examples
        if len(tokens)
    ]
    examples = np.zeros(len(pieces), EXAMPLE)
    examples["length"] = [len(tokens) for _, tokens in pieces]
    examples["split"] = [split for split, _ in pieces]
    tokens = np.concatenate([NOTHING, *(tokens for _, tokens in pieces)])
    return TokenizedChunk(tokens, examples, invalid, counts)
