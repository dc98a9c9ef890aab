"""Masking as a pure function of (seed, epoch, example), so that resuming and re-sharding need no saved state."""

import numpy as np

from ..randomness import Purpose, mix, uniform

IGNORED = -100


def choose_masked(
    lengths: np.ndarray,
    width: int,
    examples: np.ndarray,
    seed: int,
    epoch: int,
    ratio: float,
    fixed: np.ndarray | None = None,
) -> np.ndarray:
    """Which tokens to mask: per sequence a probabilistically rounded `ratio` of its tokens, uniformly chosen.

    Args:
        lengths: [n] tokens per sequence.
        width: padded length.
        examples: [n] identity of each sequence in its corpus.
        seed, epoch: as in training.
        ratio: expected share of masked tokens.
        fixed: [n, width] bool, tokens that are never masked and do not count, as BOS and EOS between documents.

    Returns:
        [n, width] bool.
    """
    position = np.arange(width)
    free = position < lengths[:, None]
    if fixed is not None:
        free &= ~fixed
        lengths = free.sum(1)
    draw = uniform(mix(seed, epoch, Purpose.MASK_COUNT, examples))
    count = np.floor(ratio * lengths + draw).astype(np.int64)
    key = mix(seed, epoch, Purpose.MASK_POSITIONS, examples[:, None], position)
    key[~free] = np.iinfo(np.uint64).max
    rank = np.argsort(np.argsort(key, axis=1, kind="stable"), axis=1, kind="stable")
    return rank < np.minimum(count, lengths)[:, None]
