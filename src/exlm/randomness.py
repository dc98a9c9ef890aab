"""Random numbers of training, each a pure function of its purpose, the seed, and counters such as
the epoch and the example.

The purpose comes first, so that the numbers for two purposes differ even where their seeds and
counters are the same."""

from enum import IntEnum

import numpy as np

# The version of all random numbers: a run begun with another version cannot go on exactly.
# Checkpoints keep it as `random streams`.
RANDOM_NUMBERS_VERSION = 2


class Purpose(IntEnum):
    """What random numbers are for; those for different purposes are independent."""

    MASK_POSITIONS = 1
    MASK_COUNT = 2
    ORDER = 3
    BATCH_ORDER = 4
    DROPOUT = 5
    HELD_OUT = 6
    TRAIN_ROWS = 7
    MASK_SHARE = 8
    SAMPLED_FILLING = 9


def random_bits(*keys: int | np.ndarray) -> np.ndarray:
    """Random bits: uint64 of the broadcast shape of `keys`, which are a Purpose, a seed, and
    counters such as an epoch and the numbers of examples (chained SplitMix64 finalisers)."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = state ^ np.asarray(key).astype(np.uint64)
            state = state + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(bits: np.ndarray) -> np.ndarray:
    """uint64 bits to float64 in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53
