"""Masked batches of a token budget, as a pure function of (corpus, settings, seed, step).

A step of the optimizer takes one batch of at most `tokens_per_batch` tokens. A batch is made of a few *groups*:

- The sequences of a group are of nearly equal length, so that there is little padding.
- The groups of a batch come from the whole range of lengths, so that its gradient is that of the corpus and not of
  its short or long sequences.
- Which sequences share a group, and which groups share a batch, is random and differs from epoch to epoch.

What a process can hold in memory at once is a *micro-batch*: groups are cut into them. Every process plans all batches
and takes its share, so that resuming needs one integer and no process can fall out of step.
"""

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


class MaskedBatches:
    """The micro-batches of every step, for one process of `world`.

    Args:
        source: the sequences.
        special: ids of BOS, EOS, padding and [MASK].
        tokens_per_batch: upper bound of the tokens of a step with BOS, EOS and padding, as fairseq's --max-tokens. A
            token counts once, however often it is repeated.
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
        self.tokens_per_micro_batch, self.rank, self.world = tokens_per_micro_batch, rank, world
        self.lengths = np.asarray(source.lengths, dtype=np.int64) + 2  # with BOS and EOS
        if not len(self.lengths):
            raise InputError("the corpus has no training sequences")
        longest = int(self.lengths.max())
        if longest > tokens_per_batch:
            sizes = f"{longest} tokens but a batch may have {tokens_per_batch}"
            raise InputError(f"the longest sequence has {sizes}; raise tokens_per_batch")
        wanted = max(tokens_per_batch // TOKENS_OF_GROUP, min(2, tokens_per_batch // TOKENS_OF_HALF))
        groups_per_batch = max(1, min(GROUPS, wanted, tokens_per_batch // longest))
        self.tokens_per_group = tokens_per_batch // groups_per_batch
        # Groups are the same cuts of every epoch's order, from the longest sequences to the shortest: what is left over
        # at the end is short.
        bounds = np.sort(self.lengths // LENGTH_STEP)[::-1] * LENGTH_STEP + LENGTH_STEP - 1
        starts, end = [], 0
        while end < len(bounds):
            starts.append(end)
            end += max(1, self.tokens_per_group // min(int(bounds[end]), longest))
            if len(bounds) - end < SMALLEST_GROUP:
                end = len(bounds)
        self._starts = np.array(starts)
        self.steps = -(-len(starts) // groups_per_batch)  # of an epoch
        self._epoch: tuple[int, list[list[np.ndarray]]] = (-1, [])  # the last one asked for
        full = len(starts) // self.steps * self.steps  # the groups after these are not in every batch
        groups = np.diff(self._starts, append=len(bounds))[:full].reshape(-1, self.steps)  # their sizes
        if groups.min(axis=1).sum() < world:
            raise InputError(f"a batch has fewer sequences than the {world} processes; raise tokens_per_batch")

    def epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """All batches of one epoch. A batch is a list of groups, a group an array of example numbers.

        Of the groups, sorted by length, the longest are a layer, the next are one, and so on. A batch has one group of
        each layer, chosen at random, except for the last batches, which may lack one.
        """
        if self._epoch[0] != epoch:
            key = mix(self.seed, epoch, Purpose.ORDER, np.arange(len(self.lengths)))
            groups = np.split(np.lexsort((key, -(self.lengths // LENGTH_STEP))), self._starts[1:])
            key = mix(self.seed, epoch, Purpose.BATCH_ORDER, np.arange(len(groups)))
            firsts = range(0, len(groups), self.steps)
            layers = [first + np.argsort(key[first : first + self.steps]) for first in firsts]
            batches = [[groups[layer[i]] for layer in layers if i < len(layer)] for i in range(self.steps)]
            self._epoch = epoch, batches
        return self._epoch[1]

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """(number, micro-batch) for every micro-batch of this process.

        The number, which seeds dropout, counts the micro-batches of all processes, so that the result does not depend
        on how they are spread.
        """
        epoch, number = divmod(step, self.steps)
        groups = self.epoch(epoch)[number]
        # A group may exceed its budget by a few sequences, which are no reason for one more micro-batch.
        tokens = max(min(len(group) * int(self.lengths[group].max()), self.tokens_per_group) for group in groups)
        cuts = -(-tokens * self.repeat // self.tokens_per_micro_batch)  # of every group
        while cuts * len(groups) % self.world:  # equally many micro-batches for all processes
            cuts += 1
        micro_batches = [group[cut::cuts] for group in groups for cut in range(min(cuts, len(group)))]
        if len(micro_batches) < self.world:
            micro_batches = [np.array([example]) for group in groups for example in group]
        settings = (self.special, self.seed, epoch, self.mask_ratio, self.repeat)
        mine = list(enumerate(micro_batches))[self.rank :: self.world]
        return [(number, masked_batch(self.source, examples, *settings)) for number, examples in mine]


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

    Of each sequence a share of `ratio` is masked, rounded up or down at random so that it is met on average. Which
    tokens depends on (seed, epoch, example) alone. BOS and EOS are never masked and do not count, not even between the
    documents of a packed sequence.

    With `repeat` every token, BOS and EOS too, stands there so many times, and every copy is masked by itself
    (Repeated MLM, paper, section 3.1).

    Returns:
        input_ids, attention_mask and labels, each [n, S]; labels are -100 where nothing was masked.
    """
    tokens, lengths = source.gather(examples)
    ids = np.pad(tokens, ((0, 0), (1, 1)), constant_values=special.pad)
    ids[:, 0] = special.bos
    ids[np.arange(len(ids)), lengths + 1] = special.eos
    ids = np.repeat(ids, repeat, axis=1)
    attention = np.arange(ids.shape[1]) < (lengths[:, None] + 2) * repeat
    free = attention & ~np.isin(ids, (special.bos, special.eos))
    available = free.sum(1)
    draw = uniform(mix(seed, epoch, Purpose.MASK_COUNT, examples))
    count = np.minimum(np.floor(ratio * available + draw).astype(np.int64), available)
    position = np.arange(ids.shape[1]) - repeat  # the first token after BOS is number 0
    key = mix(seed, epoch, Purpose.MASK_POSITIONS, examples[:, None], position)
    key[~free] = np.iinfo(np.uint64).max
    rank = np.argsort(np.argsort(key, axis=1, kind="stable"), axis=1, kind="stable")
    masked = rank < count[:, None]
    return {
        "input_ids": torch.from_numpy(np.where(masked, special.mask, ids)),
        "attention_mask": torch.from_numpy(attention.astype(np.int64)),
        "labels": torch.from_numpy(np.where(masked, ids, IGNORED)),
    }
