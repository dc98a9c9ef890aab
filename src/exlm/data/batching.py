"""Masked batches of a token budget, as a pure function of (corpus, settings, seed, step).

A step of the optimizer takes one batch of at most `tokens_per_batch` tokens. A batch is made of a few *groups*:

- The sequences of a group are of nearly equal length, so that there is little padding.
- The groups of a batch come from the whole range of lengths, so that its gradient is that of the corpus and not of
  its short or long sequences.
- Which sequences share a group, and which groups share a batch, is random and differs from epoch to epoch.

What a process can hold in memory at once is a *micro-batch*: groups are cut into them. Every process computes the same
plan and takes its share, so that resuming needs one integer and no process can fall out of step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..errors import InputError
from ..randomness import Purpose, mix, uniform
from .corpus import Corpus

IGNORED = -100  # label of tokens that were not masked, as in PyTorch's cross entropy
LENGTH_STEP = 4  # lengths of a group are equal up to this many tokens: about 3% padding on molecules
SMALLEST_GROUP = 8  # sequences; fewer at the end join the group before them, which then exceeds its budget
GROUPS = 4  # of a batch at most, each of other lengths
TOKENS_OF_GROUP = 2048  # on a CPU, groups half as large took 17 to 28% more time for the same tokens (2 x 128)
TOKENS_OF_HALF = 1024  # smaller batches still have two groups if each has this many tokens, so that lengths mix


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that batches are made with."""

    bos: int
    eos: int
    pad: int
    mask: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "SpecialTokens":
        return cls(tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)


class BatchPlan:
    """The batches of all epochs. The last batches of an epoch may be smaller than the budget.

    Args:
        lengths: [examples] tokens per sequence, special tokens not counted.
        tokens_per_batch: upper bound of the tokens of a batch with BOS, EOS and padding, as fairseq's --max-tokens.
        seed: of the order.

    Raises:
        InputError: if the longest sequence does not fit the budget.
    """

    def __init__(self, lengths: np.ndarray, tokens_per_batch: int, seed: int) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64) + 2
        self.seed = seed
        if not len(self.lengths):
            raise InputError("the corpus has no training sequences")
        longest = int(self.lengths.max())
        if longest > tokens_per_batch:
            raise InputError(
                f"the longest sequence has {longest} tokens but a batch may have {tokens_per_batch}; "
                "raise tokens_per_batch"
            )
        wanted = max(tokens_per_batch // TOKENS_OF_GROUP, min(2, tokens_per_batch // TOKENS_OF_HALF))
        self.groups_per_batch = max(1, min(GROUPS, wanted, tokens_per_batch // longest))
        self.tokens_per_group = tokens_per_batch // self.groups_per_batch
        self._epoch: tuple[int, list[list[np.ndarray]]] | None = None  # the last one asked for
        self._starts = [0]  # first step of each epoch so far

    def epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """All batches of one epoch. A batch is a list of groups, a group an array of example numbers."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._plan(epoch))
        return self._epoch[1]

    def batch(self, step: int) -> tuple[int, list[np.ndarray]]:
        """(epoch, groups) of a step."""
        while step >= self._starts[-1]:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return epoch, self.epoch(epoch)[step - self._starts[epoch]]

    def smallest_batch(self) -> int:
        """Sequences that every batch of every epoch has: the sizes of groups do not change, only which meet."""
        batches = self.epoch(0)
        groups = min(map(len, batches))
        return sum(min(len(batch[layer]) for batch in batches) for layer in range(groups))

    def _plan(self, epoch: int) -> list[list[np.ndarray]]:
        """Sorts sequences by length, cuts them into groups, and cuts the groups into layers: the longest, the next, and
        so on, as many layers as a batch has groups. A batch takes one group of each layer, at random.
        """
        key = mix(self.seed, epoch, Purpose.ORDER, np.arange(len(self.lengths)))
        groups = list(self._cut(np.lexsort((key, -(self.lengths // LENGTH_STEP)))))
        batches = -(-len(groups) // self.groups_per_batch)
        key = mix(self.seed, epoch, Purpose.BATCH_ORDER, np.arange(len(groups)))
        layers = [start + np.argsort(key[start : start + batches]) for start in range(0, len(groups), batches)]
        return [[groups[layer[i]] for layer in layers if i < len(layer)] for i in range(batches)]

    def _cut(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Groups of the examples in `order`, which is from the longest to the shortest: what is left over is short."""
        longest = np.minimum(self.lengths[order] // LENGTH_STEP * LENGTH_STEP + LENGTH_STEP - 1, self.lengths.max())
        start = 0
        while start < len(order):
            size = max(1, self.tokens_per_group // int(longest[start]))
            if len(order) - start - size < SMALLEST_GROUP:
                size = len(order) - start
            yield order[start : start + size]
            start += size


class MaskedBatches:
    """The micro-batches of every step, for one process of `world`.

    Args:
        source: the sequences.
        special: ids of BOS, EOS, padding and [MASK].
        tokens_per_batch: of a step (see BatchPlan), where a token counts once, however often it is repeated.
        tokens_per_micro_batch: about so many tokens, copies included, are in memory at once. Neither this nor `repeat`
            changes which sequences a step has.
        mask_ratio, repeat: see `masked_batch`.
        seed: of order and masks.
        rank, world: number of this process and of all. Process `rank` gets micro-batches rank, rank + world, ...

    Raises:
        InputError: if the longest sequence does not fit a batch, or a batch has fewer sequences than processes.
    """

    def __init__(
        self,
        source: Corpus,
        special: SpecialTokens,
        tokens_per_batch: int,
        tokens_per_micro_batch: int,
        mask_ratio: float,
        seed: int,
        rank: int = 0,
        world: int = 1,
        repeat: int = 1,
    ) -> None:
        self.source, self.special, self.mask_ratio, self.seed, self.repeat = source, special, mask_ratio, seed, repeat
        self.plan = BatchPlan(source.lengths, tokens_per_batch, seed)
        self.tokens_per_micro_batch, self.rank, self.world = tokens_per_micro_batch, rank, world
        if self.plan.smallest_batch() < world:
            raise InputError(f"a batch has fewer sequences than the {world} processes; raise tokens_per_batch")

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """(number, micro-batch) for every micro-batch of this process.

        The number, which seeds dropout, counts the micro-batches of all processes, so that the result does not depend
        on how they are spread.
        """
        epoch, groups = self.plan.batch(step)
        mine = list(enumerate(self._micro_batches(groups)))[self.rank :: self.world]
        settings = (self.special, self.seed, epoch, self.mask_ratio, self.repeat)
        return [(number, masked_batch(self.source, examples, *settings)) for number, examples in mine]

    def _micro_batches(self, groups: list[np.ndarray]) -> list[np.ndarray]:
        """The examples of every micro-batch: small enough, and equally many micro-batches for all processes as far as
        there are sequences.
        """
        lengths = self.plan.lengths
        # A group may exceed its budget by a few sequences, which are no reason for one more micro-batch.
        tokens = max(min(len(group) * int(lengths[group].max()), self.plan.tokens_per_group) for group in groups)
        cuts = -(-tokens * self.repeat // self.tokens_per_micro_batch)  # of every group
        while cuts * len(groups) % self.world:
            cuts += 1
        found = [group[cut::cuts] for group in groups for cut in range(min(cuts, len(group)))]
        return found if len(found) >= self.world else [np.array([i]) for group in groups for i in group]


def masked_batch(
    source: Corpus,
    examples: np.ndarray,
    special: SpecialTokens,
    seed: int,
    epoch: int,
    ratio: float,
    repeat: int = 1,
) -> dict[str, Tensor]:
    """Sequences for masked language modelling: BOS and EOS added, chosen tokens replaced by [MASK].

    With `repeat` every token stands there so many times, and every copy is masked by itself (Repeated MLM, paper,
    section 3.1). BOS and EOS have copies too, so that a task can repeat whatever it reads in the same way. BOS and EOS
    are never masked, not even between the documents of a packed sequence.

    Returns:
        input_ids, attention_mask and labels, each [n, S]; labels are -100 where nothing was masked.
    """
    tokens, lengths = source.gather(examples)
    tokens, lengths = np.repeat(tokens, repeat, axis=1), lengths * repeat
    fixed = np.isin(tokens, (special.bos, special.eos))
    masked = choose_masked(lengths, tokens.shape[1], examples, seed, epoch, ratio, fixed)
    ids = np.full((len(tokens), tokens.shape[1] + 2 * repeat), special.pad, dtype=np.int64)
    labels = np.full_like(ids, IGNORED)
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    ids[:, :repeat] = special.bos
    ids[:, repeat:-repeat] = np.where(inside, np.where(masked, special.mask, tokens), special.pad)
    np.put_along_axis(ids, lengths[:, None] + repeat + np.arange(repeat), special.eos, axis=1)
    labels[:, repeat:-repeat] = np.where(masked, tokens, IGNORED)
    attention = np.arange(ids.shape[1]) < lengths[:, None] + 2 * repeat
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(attention.astype(np.int64)),
        "labels": torch.from_numpy(labels),
    }


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
