"""Makes masked batches of a limited number of tokens. Corpus, settings, seed and step alone
determine a batch.

A step of the optimizer takes one batch, which is made of a few *groups*. The sequences of a group
are of nearly equal length, so that there is little padding; the groups of a batch come from the
whole range of lengths. What shares a group and a batch is random and differs from epoch to epoch.
Groups are cut into *micro-batches*, of which a process holds one in memory at a time. Every process
plans all batches and takes its share, so a resumed run needs only one integer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.data.corpus import SPECIALS, Corpus
from exlm.data.masking import MaskRatio, mask_tokens
from exlm.errors import InputError
from exlm.randomness import Purpose, random_bits

# Sequences are sorted by length in steps of so many tokens: about 3% padding on molecules.
LENGTH_STEP = 4
# If fewer sequences are left at the end, and fewer than the group before them has, they join that
# group. So no group is much smaller than its budget allows, and none is twice as large.
SMALLEST_GROUP = 8
MOST_GROUPS = 4  # of a batch; each group has sequences of other lengths
# A group of a batch has at least so many tokens: half as many took 17 to 28% more time per token on
# a CPU. Two groups may have half as many, so that small batches mix lengths, too.
GROUP_TOKENS = 2048
HALF_GROUP_TOKENS = 1024

# The batches of an epoch: a batch is a list of groups, a group an array of example numbers
Batches = list[list[np.ndarray]]


def longest_first(
    lengths: Sequence[int] | np.ndarray, tokens_per_batch: int, few_shapes: bool = False
) -> Iterator[np.ndarray]:
    """Batches of sequences, the longest first, so that too little memory shows at once. For work
    that needs no plan.

    Yields the numbers [n] of the sequences of each batch. With padding, a batch has at most
    `tokens_per_batch` tokens, or one sequence. `lengths` count all that the model takes, such as
    repeats. With `few_shapes`, the sizes of the last batches are powers of two, because libraries
    keep a kernel for every shape that they meet."""
    lengths = np.asarray(lengths, dtype=np.int64)
    waiting = np.argsort(-lengths, kind="stable")
    while len(waiting):
        size = max(1, tokens_per_batch // int(lengths[waiting[0]]))
        if few_shapes:
            size = min(size, 2 ** (len(waiting).bit_length() - 1))
        yield waiting[:size]
        waiting = waiting[size:]


class BatchPlan:
    """How sequences of these `lengths` [examples], in tokens with BOS and EOS, are divided into
    `steps_per_epoch` batches of groups, anew in every epoch. A group has about `tokens_per_group`
    tokens, with padding. InputError if the longest sequence does not fit a batch."""

    def __init__(self, lengths: np.ndarray, tokens_per_batch: int, seed: int) -> None:
        longest = int(lengths.max())
        if longest > tokens_per_batch:
            raise InputError(
                f"the longest sequence has {longest} tokens but a batch may have "
                f"{tokens_per_batch}; raise tokens_per_batch"
            )
        groups_per_batch = _groups_per_batch(tokens_per_batch, longest)
        self.lengths = lengths
        self.seed = seed
        self.tokens_per_group = tokens_per_batch // groups_per_batch
        self.group_starts = _group_starts(lengths, self.tokens_per_group)
        self.steps_per_epoch = ceil(len(self.group_starts) / groups_per_batch)

    def batches(self, epoch: int) -> Batches:
        """All batches of one epoch, each with sequences of all lengths.

        Sequences sorted by length are cut into groups, and neighbouring groups form *strata* of
        `steps_per_epoch` groups. Every batch takes a random group of each stratum; the last one may
        have fewer groups, so that the last batches have one less."""
        key = random_bits(Purpose.ORDER, self.seed, epoch, np.arange(len(self.lengths)))
        order = np.lexsort((key, -(self.lengths // LENGTH_STEP)))
        groups = np.split(order, self.group_starts[1:])
        group_key = random_bits(Purpose.BATCH_ORDER, self.seed, epoch, np.arange(len(groups)))
        batches: Batches = [[] for _ in range(self.steps_per_epoch)]
        for first in range(0, len(groups), self.steps_per_epoch):
            stratum = first + np.argsort(group_key[first : first + self.steps_per_epoch])
            for batch, group in zip(batches, stratum, strict=False):
                batch.append(groups[group])
        return batches

    def smallest_batch(self) -> int:
        """The fewest sequences that a batch can have: the smallest group of every full stratum. A
        last stratum that is not full gives no group to some batches."""
        sizes = np.diff(self.group_starts, append=len(self.lengths))
        steps = self.steps_per_epoch
        full_strata = sizes[: len(sizes) // steps * steps].reshape(-1, steps)
        return int(full_strata.min(axis=1).sum())


@dataclass(eq=False)
class MaskedBatches:
    """The micro-batches of every step, for one process of `world`. InputError if the longest
    sequence does not fit a batch, or a batch has fewer sequences than processes."""

    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase  # tells the ids of BOS, EOS, padding and [MASK]
    # Most tokens of a step. BOS, EOS and padding count, as in fairseq's --max-tokens; repeats do
    # not. Only the step with an epoch's shortest group may have more: at most SMALLEST_GROUP - 1
    # sequences, and less than the tokens of a group.
    tokens_per_batch: int
    # About so many tokens, repeats included, are in memory at once. This and `repeat` do not change
    # a step's sequences.
    tokens_per_micro_batch: int
    mask_ratio: MaskRatio  # see `mask_tokens`
    seed: int  # seed of the order and the masks
    rank: int = 0  # number of this process, which gets the micro-batches rank, rank + world, ...
    world: int = 1  # number of processes
    repeat: int = 1  # see `mask_tokens`
    # Whether the model leaves padding out. Then the groups of a batch whose tokens all fit in
    # memory are joined before they are cut.
    without_padding: bool = False
    plan: BatchPlan = field(init=False)

    def __post_init__(self) -> None:
        lengths = np.asarray(self.corpus.token_counts, dtype=np.int64) + SPECIALS
        self.plan = BatchPlan(lengths, self.tokens_per_batch, self.seed)
        if self.plan.smallest_batch() < self.world:
            raise InputError(
                f"a batch has fewer sequences than the {self.world} processes; "
                "raise tokens_per_batch"
            )
        # The plan of one epoch is kept, because most steps need that of the step before.
        self.batches_of_epoch = lru_cache(maxsize=1)(self.plan.batches)

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """(number, micro-batch) for every micro-batch of this process. The number seeds dropout. It
        counts the micro-batches of all processes, so that the result does not depend on which
        process gets which micro-batch."""
        epoch, batch_in_epoch = divmod(step, self.plan.steps_per_epoch)
        micro_batches = self._micro_batches(self.batches_of_epoch(epoch)[batch_in_epoch])
        result = []
        for number in range(self.rank, len(micro_batches), self.world):
            example_numbers = micro_batches[number]
            token_ids, token_counts = self.corpus.gather(example_numbers)
            micro_batch = mask_tokens(
                token_ids=token_ids,
                token_counts=token_counts,
                example_numbers=example_numbers,
                tokenizer=self.tokenizer,
                seed=self.seed,
                epoch=epoch,
                ratio=self.mask_ratio,
                repeat=self.repeat,
            )
            result.append((number, micro_batch))
        return result

    def _micro_batches(self, groups: list[np.ndarray]) -> list[np.ndarray]:
        """A batch's groups, each cut into `_micro_batches_per_group` micro-batches. If these are
        fewer than the processes, every sequence is a micro-batch."""
        all_examples = np.concatenate(groups)
        token_count = int(self.plan.lengths[all_examples].sum()) * self.repeat
        if self.without_padding and token_count <= self.tokens_per_micro_batch:
            groups = [all_examples]
        per_group = self._micro_batches_per_group(groups)
        micro_batches = []
        for group in groups:
            micro_batches += [group[i::per_group] for i in range(min(per_group, len(group)))]
        if len(micro_batches) < self.world:
            return [np.array([example]) for example in all_examples]
        return micro_batches

    def _micro_batches_per_group(self, groups: list[np.ndarray]) -> int:
        """As many as the largest group needs with its padding, or a few more, so that all processes
        get equally many. A group may exceed its budget by a few sequences, which are no reason for
        one more; so joined groups count as one group, too."""
        lengths = self.plan.lengths
        largest = max(len(group) * int(lengths[group].max()) for group in groups)
        tokens = min(largest, self.plan.tokens_per_group) * self.repeat
        per_group = ceil(tokens / self.tokens_per_micro_batch)
        while per_group * len(groups) % self.world:
            per_group += 1
        return per_group


def _groups_per_batch(tokens_per_batch: int, longest: int) -> int:
    """How many groups a batch has: 2 from 2,048 tokens on, 3 from 6,144, 4 from 8,192, else 1; but
    no more than can hold the `longest` sequence, in tokens."""
    groups = min(MOST_GROUPS, tokens_per_batch // GROUP_TOKENS)
    if groups < 2:
        groups = min(2, tokens_per_batch // HALF_GROUP_TOKENS)
    return max(1, min(groups, tokens_per_batch // longest))


def _group_starts(lengths: np.ndarray, tokens_per_group: int) -> np.ndarray:
    """[groups] where each group begins in an order from the longest sequences to the shortest. The
    order of every epoch is cut at the same places, so the sequences left over at the end are
    short."""
    # Within a step of LENGTH_STEP tokens the order is random, so its greatest length counts.
    longest = np.sort(lengths // LENGTH_STEP)[::-1] * LENGTH_STEP + LENGTH_STEP - 1
    longest = np.minimum(longest, lengths.max())
    starts = []
    end = 0
    while end < len(lengths):
        starts.append(end)
        size = max(1, tokens_per_group // int(longest[end]))
        end += size
        if len(lengths) - end < min(SMALLEST_GROUP, size):
            end = len(lengths)
    return np.array(starts)
