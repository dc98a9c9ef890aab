"""Corrupted semantics: the share of a sequence's tokens all of whose copies are masked (paper, section 3.1).

The appendix has every copy masked independently with probability p: a sequence of N tokens has p^r corrupted ones on
average, with variance p^r (1 - p^r) / N. Training masks a fixed number of copies per sequence instead, as most masked
language models do: then the expectation is slightly smaller and the variance much smaller.
"""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from exlm.data.batching import IGNORED


def corrupted(labels: Tensor, repeat: int) -> Tensor:
    """Which tokens have all their copies masked.

    Args:
        labels: [B, S r] original tokens where masked, -100 elsewhere; copies of a token stand together.
        repeat: r.

    Returns:
        [B, S] bool.
    """
    return (labels != IGNORED).unflatten(1, (-1, repeat)).all(2)


def shares(batches: Iterable[dict[str, Tensor]], repeat: int) -> tuple[np.ndarray, np.ndarray]:
    """Of every sequence in the batches: the share of corrupted tokens, and the number N of its tokens. Both [n]."""
    found: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for batch in batches:
        tokens = batch["attention_mask"].sum(1) // repeat - 2  # BOS and EOS are never masked
        found.append((corrupted(batch["labels"], repeat).sum(1) / tokens).double().numpy())
        counts.append(tokens.numpy())
    return np.concatenate(found), np.concatenate(counts)


def independent(p: float, repeat: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expectation and variance [n] of a sequence's share if every copy is masked by itself (the appendix's formula)."""
    share = np.full(len(tokens), p**repeat)
    return share, share * (1 - share) / tokens


def fixed_count(p: float, repeat: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same if p N r copies, rounded up or down at random, are masked: all choices of so many are equally likely."""
    copies, masked = tokens * repeat, p * tokens * repeat
    low = np.floor(masked)
    chance = masked - low  # of rounding up
    mean, square = np.zeros(len(tokens)), np.zeros(len(tokens))
    for count, weight in ((low, 1 - chance), (low + 1, chance)):
        one, two = _all_masked(count, copies, repeat), _all_masked(count, copies, 2 * repeat)
        mean += weight * one
        square += weight * (one + (tokens - 1) * two) / tokens
    return mean, np.maximum(square - mean**2, 0)


def _all_masked(count: np.ndarray, copies: np.ndarray, chosen: int) -> np.ndarray:
    """P(`chosen` given copies are all among the `count` masked of `copies`)."""
    result = np.ones(len(copies))
    for i in range(chosen):
        result = result * np.maximum(count - i, 0) / np.maximum(copies - i, 1)
    return result


def measure(batches: Iterable[dict[str, Tensor]], p: float, repeat: int) -> dict[str, float]:
    """Measured mean and standard deviation over sequences, beside what either way of masking predicts.

    A predicted deviation is that of a sequence drawn at random: sequences differ in length, too.
    """
    share, tokens = shares(batches, repeat)
    result = {"mean": share.mean(), "std": share.std(), "sequences": len(share), "tokens": int(tokens.sum())}
    for name, (mean, variance) in {
        "predicted": independent(p, repeat, tokens),
        "fixed_count": fixed_count(p, repeat, tokens),
    }.items():
        result |= {name: mean.mean(), f"{name}_std": np.sqrt(variance.mean() + mean.var())}
    return {name: float(value) for name, value in result.items()}
