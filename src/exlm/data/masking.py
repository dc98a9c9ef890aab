"""Masking as a pure function of (seed, epoch, example), so that resuming and re-sharding need no saved state."""

from enum import IntEnum

import numpy as np

IGNORED = -100


class Purpose(IntEnum):
    """Keeps draws for different uses independent."""

    MASK_POSITIONS = 1
    MASK_COUNT = 2
    ORDER = 3
    BATCH_ORDER = 4
    DROPOUT = 5


def mix(*parts: int | np.ndarray) -> np.ndarray:
    """Counter-based random bits: uint64 of the broadcast shape of `parts` (chained SplitMix64 finalisers)."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            state = state ^ np.asarray(part).astype(np.uint64)
            state = state + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(bits: np.ndarray) -> np.ndarray:
    """uint64 bits to float64 in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def choose_masked(
    lengths: np.ndarray, width: int, examples: np.ndarray, seed: int, epoch: int, ratio: float
) -> np.ndarray:
    """Which tokens to mask: per sequence a probabilistically rounded `ratio` of its tokens, uniformly chosen.

    Args:
        lengths: [n] tokens per sequence.
        width: padded length.
        examples: [n] identity of each sequence in its corpus.
        seed, epoch: as in training.
        ratio: expected share of masked tokens.

    Returns:
        [n, width] bool.
    """
    draw = uniform(mix(seed, epoch, Purpose.MASK_COUNT, examples))
    count = np.floor(ratio * lengths + draw).astype(np.int64)
    position = np.arange(width)
    key = mix(seed, epoch, Purpose.MASK_POSITIONS, examples[:, None], position)
    key[position >= lengths[:, None]] = np.iinfo(np.uint64).max
    rank = np.argsort(np.argsort(key, axis=1, kind="stable"), axis=1, kind="stable")
    return rank < np.minimum(count, lengths)[:, None]
