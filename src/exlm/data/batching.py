"""Makes masked batches of a limited number of tokens. Corpus, settings, seed and step alone
determine a batch.

A step of the optimizer takes one batch, which is made of a few *groups*. The sequences of a group
are of nearly equal length, so that there is little padding; the groups of a batch come from the
whole range of lengths. What shares a group and a batch is random and differs from epoch to epoch.
Groups are cut into *micro-batches*, of which a process holds one in memory at a time. Every process
plans all batches and takes its share, so a resumed run needs only one integer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from exlm.data.corpus import SPECIALS, Corpus
from exlm.errors import InputError
from exlm.ops.expansion import IGNORED
from exlm.randomness import Purpose, random_bits, uniform

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

# A share of masked tokens, or a range from which each sequence samples its own
MaskRatio = float | tuple[float, float]
# The batches of an epoch: a batch is a list of groups, a group an array of example numbers
Batches = list[list[np.ndarray]]


def share_bounds(ratio: MaskRatio) -> tuple[float, float]:
    """The smallest and the largest share of masked tokens; InputError if they are no shares."""
    low, high = ratio if isinstance(ratio, tuple | list) else (ratio, ratio)
    if not 0 < low <= high < 1:
        raise InputError(
            f"mask_ratio is {ratio}; it must lie strictly between 0 and 1, "
            "or be a range of such numbers as [0.02, 0.6]"
        )
    return low, high


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
        """The fewest sequences that a batch can have: those of the smallest group of every stratum
        that is full, since the groups after these are not in every batch."""
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
        """A batch's groups, each cut into equally many micro-batches: as many as the largest group
        needs with its padding. Groups that were joined (`without_padding`) may be more than one
        micro-batch, too, though all their tokens fit: with padding they are counted as a group of
        `tokens_per_group` where they have more."""
        lengths = self.plan.lengths
        whole = np.concatenate(groups)
        needed = int(lengths[whole].sum()) * self.repeat
        if self.without_padding and needed <= self.tokens_per_micro_batch:
            groups = [whole]
        tokens = max(len(group) * int(lengths[group].max()) for group in groups)
        # A group may exceed its budget by a few sequences, which are no reason for one more
        # micro-batch.
        tokens = min(tokens, self.plan.tokens_per_group)
        cuts = ceil(tokens * self.repeat / self.tokens_per_micro_batch)
        # Processes get equally many micro-batches, unless a group has fewer sequences than cuts.
        while cuts * len(groups) % self.world:
            cuts += 1
        micro_batches = []
        for group in groups:
            micro_batches += [group[cut::cuts] for cut in range(min(cuts, len(group)))]
        if len(micro_batches) < self.world:
            return [np.array([example]) for example in np.concatenate(groups)]
        return micro_batches


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
    bounds = np.sort(lengths // LENGTH_STEP)[::-1] * LENGTH_STEP + LENGTH_STEP - 1
    bounds = np.minimum(bounds, lengths.max())
    starts = []
    end = 0
    while end < len(bounds):
        starts.append(end)
        size = max(1, tokens_per_group // int(bounds[end]))
        end += size
        if len(bounds) - end < min(SMALLEST_GROUP, size):
            end = len(bounds)
    return np.array(starts)


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


class ExLMDataCollator(TrainerCallback):
    """Masks rows for pre-training with a Trainer: a share of `mask_ratio` of a row's tokens, or a
    share that each row samples from a range. Seed, epoch and the row's index alone decide which.

    Every row has `input_ids`, with or without BOS and EOS, and `index`, its number in the data set
    (`dataset.map(..., with_indices=True)`). Give the collator to the Trainer twice, as
    `data_collator` and in `callbacks`, where it learns the epoch; and set
    `remove_unused_columns=False`, or the Trainer takes the index away. The tokenizer has BOS, EOS,
    padding and [MASK], as one of `exlm.storage.tokenizers.load_tokenizer`."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, mask_ratio: MaskRatio = 0.15, seed: int = 0
    ) -> None:
        share_bounds(mask_ratio)
        self.tokenizer = tokenizer
        self.mask_ratio = mask_ratio
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self.epoch = 0

    @property
    def epoch(self) -> int:
        """The epoch whose masks are sampled; set it before an epoch begins if no Trainer does."""
        return int(self._epoch)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        # Workers of a DataLoader have copies of the collator, and persistent ones keep theirs from
        # epoch to epoch. In shared memory they all see the same number.
        self._epoch.share_memory_().fill_(epoch)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """input_ids, attention_mask, labels, each [rows, S]; labels -100 if unmasked. InputError
        without an index."""
        if not all("index" in row for row in rows):
            raise InputError(
                "a row has no index; add the column and set remove_unused_columns=False "
                "in the arguments"
            )
        texts = [self._without_ends(row["input_ids"]) for row in rows]
        token_counts = np.array([len(text) for text in texts])
        shape = (len(texts), token_counts.max(initial=0))
        token_ids = np.full(shape, self.tokenizer.pad_token_id, dtype=np.int64)
        for row, text in enumerate(texts):
            token_ids[row, : len(text)] = text
        index = np.array([row["index"] for row in rows], dtype=np.int64)
        return mask_tokens(
            token_ids, token_counts, index, self.tokenizer, self.seed, self.epoch, self.mask_ratio
        )

    def _without_ends(self, input_ids: Sequence[int]) -> list[int]:
        """The tokens of a row without BOS and EOS around them."""
        ids = list(input_ids)
        if ids[:1] == [self.tokenizer.bos_token_id]:
            ids = ids[1:]
        if ids[-1:] == [self.tokenizer.eos_token_id]:
            ids = ids[:-1]
        return ids

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer, also when it resumes in the middle of an epoch."""
        self.epoch = int(state.epoch or 0) - 1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer. It does not say which epoch begins: of streamed rows it knows no
        number of epochs."""
        self.epoch += 1
