"""Token-budget batches as a pure function of (lengths, budget, seed, step).

An update reads several parts. Sequences of similar length share a part, so that little is padding; an update takes its
parts from the whole range of lengths, so that its gradient is that of the corpus and not of its short or long
sequences. Which sequences share a part and which parts an update is random and differs from epoch to epoch. Every
process computes the same plan and takes its share, so that resuming needs one integer and no process can fall out of
step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..randomness import Purpose, mix
from .masking import IGNORED, choose_masked

SMALLEST_PART = 8  # sequences; fewer join the part before them, which then exceeds the budget by these
BUCKET = 4  # lengths are equal up to this many tokens within a part: about 3% padding on molecules
PARTS = 4  # of an update, each of other lengths; fewer where a part would have less than
TOKENS_OF_PART = 1024  # so many tokens: the work of a smaller one is mostly overhead


class SequenceSource(Protocol):
    """What batching needs of a corpus."""

    lengths: np.ndarray

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class SpecialTokens:
    bos: int
    eos: int
    pad: int
    mask: int

    @classmethod
    def of(cls, tokenizer) -> "SpecialTokens":  # type: ignore[no-untyped-def]
        return cls(tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id)


class BatchPlan:
    """The batches of all epochs. Of a corpus of few parts, updates may be smaller than the budget.

    Args:
        lengths: [examples] tokens per sequence, special tokens not counted.
        tokens_per_batch: upper bound of the tokens of an update with BOS, EOS and padding, as fairseq's --max-tokens.
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
        self.parts = max(1, min(PARTS, tokens_per_batch // max(TOKENS_OF_PART, longest)))
        self.budget = tokens_per_batch // self.parts
        self._epoch: tuple[int, list[list[np.ndarray]]] | None = None
        self._starts = [0]

    def epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """All updates of one epoch: of each its parts, arrays of example numbers."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._plan(epoch))
        return self._epoch[1]

    def smallest_update(self) -> int:
        """Sequences that every update of every epoch has: the sizes of parts do not change, only which meet."""
        updates = self.epoch(0)
        whole = min(map(len, updates))
        return sum(min(len(update[layer]) for update in updates) for layer in range(whole))

    def batch(self, step: int) -> tuple[int, list[np.ndarray]]:
        """(epoch, parts) of a step."""
        while step >= self._starts[-1]:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return epoch, self.epoch(epoch)[step - self._starts[epoch]]

    def _plan(self, epoch: int) -> list[list[np.ndarray]]:
        """Parts from the longest to the shortest, in as many layers as an update has parts: one of each is an
        update."""
        key = mix(self.seed, epoch, Purpose.ORDER, np.arange(len(self.lengths)))
        parts = list(self._cut(np.lexsort((key, -(self.lengths // BUCKET)))))
        updates = -(-len(parts) // self.parts)
        key = mix(self.seed, epoch, Purpose.BATCH_ORDER, np.arange(len(parts)))
        layers = [start + np.argsort(key[start : start + updates]) for start in range(0, len(parts), updates)]
        return [[parts[layer[i]] for layer in layers if i < len(layer)] for i in range(updates)]

    def _cut(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Cuts from the longest to the shortest, so that leftovers are short."""
        longest = np.minimum(self.lengths[order] // BUCKET * BUCKET + BUCKET - 1, self.lengths.max())
        start = 0
        while start < len(order):
            size = max(1, self.budget // int(longest[start]))
            if len(order) - start - size < SMALLEST_PART:
                size = len(order) - start
            yield order[start : start + size]
            start += size


def masked_batch(
    source: SequenceSource,
    examples: np.ndarray,
    special: SpecialTokens,
    seed: int,
    epoch: int,
    ratio: float,
    repeat: int = 1,
) -> dict[str, Tensor]:
    """One batch for masked language modelling: BOS and EOS added, chosen tokens replaced by [MASK].

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


class MaskedBatches:
    """The micro-batches of every step, for one process of `world`.

    The parts of a step are cut into equal pieces of about `tokens_per_micro_batch` tokens, together at least one for
    each process. The budget of a step counts a token once, that of a piece its copies, so that neither repetition nor
    memory changes a step's sequences; process `rank` gets pieces rank, rank + world, ... Each piece comes with its
    number, which seeds dropout, so that the result does not depend on how pieces are spread over processes.
    """

    def __init__(
        self,
        source: SequenceSource,
        special: SpecialTokens,
        tokens_per_batch: int,
        tokens_per_micro_batch: int,
        mask_ratio: float,
        seed: int,
        rank: int = 0,
        world: int = 1,
        repeat: int = 1,
    ) -> None:
        self.source, self.special, self.ratio, self.seed, self.repeat = source, special, mask_ratio, seed, repeat
        self.plan = BatchPlan(source.lengths, tokens_per_batch, seed)
        self.micro, self.rank, self.world = tokens_per_micro_batch, rank, world
        if self.plan.smallest_update() < world:
            raise InputError(f"a batch has fewer sequences than the {world} processes; raise tokens_per_batch")

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """(piece number, batch) for every piece of this process."""
        epoch, parts = self.plan.batch(step)
        pieces = list(enumerate(self._pieces(parts)))[self.rank :: self.world]
        settings = (self.special, self.seed, epoch, self.ratio, self.repeat)
        return [(number, masked_batch(self.source, examples, *settings)) for number, examples in pieces]

    def _pieces(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Small enough, and equally many for all processes as far as there are sequences."""
        tokens = max(min(len(part) * int(self.plan.lengths[part].max()), self.plan.budget) for part in parts)
        each = -(-tokens * self.repeat // self.micro)  # leftovers do not call for another piece
        while each * len(parts) % self.world:
            each += 1
        pieces = [part[p::each] for part in parts for p in range(min(each, len(part)))]
        return pieces if len(pieces) >= self.world else [np.array([i]) for part in parts for i in part]
