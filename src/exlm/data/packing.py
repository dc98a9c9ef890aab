"""Joins the rows of documents to examples of one length."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from exlm.data.corpus import CORPUS_PARTS, EXAMPLE
from exlm.data.examples import InvalidRow, TokenizedChunk

NOTHING = np.empty(0, np.uint32)


def pack(
    chunks: Iterable[TokenizedChunk], length: int, separator: int | None
) -> Iterator[TokenizedChunk]:
    """Every chunk with full examples in place of its rows, then a chunk with the last examples.

    The rows of a document are joined and cut into examples of `length` tokens, special tokens not
    counted. No token is dropped, so the last example of a part may be shorter. If the first row of
    a document is held out, so is all of it. `separator` is the token between documents joined into
    one stream, or None if no example has tokens of two."""
    leftovers = [NOTHING for _ in CORPUS_PARTS]  # token ids of each part that are in no example yet
    has_document = [False for _ in CORPUS_PARTS]
    document = 0
    part = 0
    for chunk in chunks:
        examples: list[list[np.ndarray]] = [[] for _ in CORPUS_PARTS]
        for number, part_of_row, token_ids in _documents(chunk):
            if number != document:
                document = number
                part = part_of_row
                chunk.counts["documents"] += 1
                if separator is None:
                    examples[part].append(leftovers[part])
                    leftovers[part] = NOTHING
                elif has_document[part]:
                    token_ids = np.insert(token_ids, 0, separator)
            has_document[part] = True
            stream = np.concatenate([leftovers[part], token_ids])
            *full, leftovers[part] = np.split(stream, range(length, len(stream) + 1, length))
            examples[part] += full
        yield _packed(examples, chunk.invalid, chunk.counts)
    yield _packed([[leftover] for leftover in leftovers], [], Counter())


def _documents(chunk: TokenizedChunk) -> Iterator[tuple[int, int, np.ndarray]]:
    """Number, part of the first row, and token ids of each document in a chunk."""
    lengths = chunk.examples["length"].astype(np.int64)
    first_rows = np.flatnonzero(np.diff(chunk.examples["document"], prepend=0))
    starts = (np.cumsum(lengths) - lengths)[first_rows]
    documents = np.split(chunk.token_ids, starts)[1:]
    for row, token_ids in zip(chunk.examples[first_rows], documents, strict=True):
        if len(token_ids):
            yield row["document"], row["part"], token_ids


def _packed(
    examples_by_part: list[list[np.ndarray]],
    invalid: list[InvalidRow],
    counts: Counter[str],
) -> TokenizedChunk:
    """A chunk of these examples, without the empty ones."""
    pairs = [
        (part, token_ids)
        for part, examples_of_part in enumerate(examples_by_part)
        for token_ids in examples_of_part
        if len(token_ids)
    ]
    examples = np.zeros(len(pairs), EXAMPLE)
    examples["part"] = [part for part, _ in pairs]
    examples["length"] = [len(token_ids) for _, token_ids in pairs]
    all_ids = np.concatenate([NOTHING, *(token_ids for _, token_ids in pairs)])
    return TokenizedChunk(all_ids, examples, invalid, counts)
