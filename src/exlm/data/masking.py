"""Masks tokens for masked language modelling. Seed, epoch and the number of an example alone decide
which of its tokens are masked."""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.data.corpus import SPECIALS
from exlm.errors import InputError
from exlm.ops.expansion import IGNORED
from exlm.randomness import Purpose, random_bits, uniform

# A share of masked tokens, or a range from which each sequence samples its own
MaskRatio = float | tuple[float, float]


def share_bounds(ratio: MaskRatio) -> tuple[float, float]:
    """The smallest and the largest share of masked tokens; InputError if they are no shares."""
    low, high = ratio if isinstance(ratio, tuple | list) else (ratio, ratio)
    if not 0 < low <= high < 1:
        raise InputError(
            f"mask_ratio is {ratio}; it must lie strictly between 0 and 1, "
            "or be a range of such numbers as [0.02, 0.6]"
        )
    return low, high


def mask_tokens(
    token_ids: np.ndarray,
    token_counts: np.ndarray,
    example_numbers: np.ndarray,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    epoch: int,
    ratio: MaskRatio,
    repeat: int = 1,
    masks: int | None = None,
) -> dict[str, Tensor]:
    """input_ids, attention_mask and labels, each [n, S], for masked language modelling; labels are
    -100 without a mask.

    `token_ids` [n, longest] are padded on the right and have no special tokens, `token_counts` [n]
    counts them, and `example_numbers` [n] say which examples of the data set they are. A share of
    `ratio` of each sequence's tokens is masked, on average, as seed, epoch and example alone
    decide; of a range, every sequence samples its share uniformly. `masks` asks for exactly so many
    masked tokens instead. BOS and EOS are added and never masked, not even between packed
    documents. Every token is repeated `repeat` times, each repeat masked on its own (Repeated MLM,
    section 3.1 of the paper)."""
    bos = tokenizer.bos_token_id
    eos = tokenizer.eos_token_id
    ids = np.pad(token_ids, ((0, 0), (1, 1)), constant_values=tokenizer.pad_token_id)
    ids[:, 0] = bos
    ids[np.arange(len(ids)), token_counts + 1] = eos
    ids = np.repeat(ids, repeat, axis=1)
    attention = np.arange(ids.shape[1]) < (token_counts[:, None] + SPECIALS) * repeat
    maskable = attention & ~np.isin(ids, (bos, eos))
    available = maskable.sum(1)
    if masks is None:
        count = _mask_counts(available, ratio, seed, epoch, example_numbers)
    else:
        count = np.full(len(ids), masks)
    position = np.arange(ids.shape[1]) - repeat  # the first token after BOS is number 0
    key = random_bits(Purpose.MASK_POSITIONS, seed, epoch, example_numbers[:, None], position)
    key[~maskable] = np.iinfo(np.uint64).max  # so these come last
    order = np.argsort(key, axis=1, kind="stable")
    mask_rank = np.argsort(order, axis=1, kind="stable")
    is_masked = mask_rank < np.minimum(count, available)[:, None]
    return {
        "input_ids": torch.from_numpy(np.where(is_masked, tokenizer.mask_token_id, ids)),
        "attention_mask": torch.from_numpy(attention.astype(np.int64)),
        "labels": torch.from_numpy(np.where(is_masked, ids, IGNORED)),
    }


def _mask_counts(
    available: np.ndarray, ratio: MaskRatio, seed: int, epoch: int, example_numbers: np.ndarray
) -> np.ndarray:
    """[n] int64, how many of the `available` tokens [n] of each sequence are masked: a share of
    `ratio` of them, rounded up or down at random, so that the mean is exact."""
    low, high = share_bounds(ratio)
    share_bits = random_bits(Purpose.MASK_SHARE, seed, epoch, example_numbers)
    share = low + (high - low) * uniform(share_bits)
    rounding = uniform(random_bits(Purpose.MASK_COUNT, seed, epoch, example_numbers))
    return np.floor(share * available + rounding).astype(np.int64)
