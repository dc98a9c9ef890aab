"""Token-budget batches as a pure function of (lengths, budget, seed, step).

An update reads several pieces. Sequences of similar length share a piece, so that little is padding; an update takes
its pieces from the whole range of lengths, so that its gradient is that of the corpus and not of its short or long
sequences. Which sequences share a piece and which pieces an update is random and differs from epoch to epoch. Every
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

SMALLEST_PIECE = 8  # sequences; fewer join the piece before them, which then exceeds the budget by these
BUCKET = 4  # lengths are equal up to this many tokens within a piece: about 3% padding on molecules
MIXED = 4  # pieces of an update at least, if they have
TOKENS_OF_PIECE = 1024  # so many tokens: the work of a smaller one is mostly overhead


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
    """The batches of all epochs.

    Args:
        lengths: [examples] tokens per sequence, special tokens not counted.
        tokens_per_batch: upper bound of the tokens of an update with BOS, EOS and padding, as fairseq's --max-tokens.
        seed: of the order.
        pieces: of an update, each of similar lengths; fewer where the longest sequence needs more room.

    Raises:
        InputError: if the longest sequence does not fit the budget.
    """

    def __init__(self, lengths: np.ndarray, tokens_per_batch: int, seed: int, pieces: int = 1) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64) + 2
        self.seed = seed
        if not len(self.lengths):
            raise InputError("the corpus has no training sequences")
        if self.lengths.max() > tokens_per_batch:
            raise InputError(
                f"the longest sequence has {self.lengths.max()} tokens but a batch may have {tokens_per_batch}; "
                "raise tokens_per_batch"
            )
        self.pieces = min(pieces, tokens_per_batch // int(self.lengths.max()), len(self.lengths))
        self.budget = tokens_per_batch // self.pieces
        self._epoch: tuple[int, list[list[np.ndarray]]] | None = None
        self._starts = [0]

    def epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """All updates of one epoch: of each its pieces, arrays of example numbers."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._plan(epoch))
        return self._epoch[1]

    def batch(self, step: int) -> tuple[int, list[np.ndarray]]:
        """(epoch, pieces) of a step."""
        while step >= self._starts[-1]:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return epoch, self.epoch(epoch)[step - self._starts[epoch]]

    def _plan(self, epoch: int) -> list[list[np.ndarray]]:
        """Pieces from the longest to the shortest, in as many layers as an update has pieces: one of each is an
        update."""
        key = mix(self.seed, epoch, Purpose.ORDER, np.arange(len(self.lengths)))
        order = np.lexsort((key, -(self.lengths // BUCKET)))
        pieces = self._filled(list(self._cut(order)))
        updates = -(-len(pieces) // self.pieces)
        shuffle = mix(self.seed, epoch, Purpose.BATCH_ORDER, np.arange(len(pieces)))
        starts = range(0, len(pieces), updates)
        layers = [start + np.argsort(shuffle[start : start + updates]) for start in starts]
        return [[pieces[layer[i]] for layer in layers if i < len(layer)] for i in range(updates)]

    def _cut(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Cuts from the longest to the shortest, so that leftovers are short."""
        longest = np.minimum(self.lengths[order] // BUCKET * BUCKET + BUCKET - 1, self.lengths.max())
        start = 0
        while start < len(order):
            size = max(1, self.budget // int(longest[start]))
            if len(order) - start - size < SMALLEST_PIECE:
                size = len(order) - start
            yield order[start : start + size]
            start += size

    def _filled(self, pieces: list[np.ndarray]) -> list[np.ndarray]:
        """The largest pieces cut in two until every update has as many as the others, if they can be."""
        while len(pieces) % self.pieces:
            i = max(range(len(pieces)), key=lambda i: len(pieces[i]))
            if len(pieces[i]) < 2:
                break
            pieces[i : i + 1] = [pieces[i][::2], pieces[i][1::2]]
        return pieces


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

    A step's pieces have at most about `tokens_per_micro_batch` tokens each; there are several where they are not too
    small, of different lengths, and at least one per process. The budget of a step counts a token once, that of a piece
    its copies, so that repetition changes no more than how a step is cut. Process `rank` gets pieces rank, rank +
    world, ... Each comes with its number, which seeds dropout, so that the result does not depend on how they are
    spread.
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
        self.rank, self.world = rank, world
        small_enough = -(-tokens_per_batch * repeat // tokens_per_micro_batch)
        pieces = max(small_enough, min(MIXED, tokens_per_batch // TOKENS_OF_PIECE), 1)
        self.plan = BatchPlan(source.lengths, tokens_per_batch, seed, -(-pieces // world) * world)
        if min(len(update) for update in self.plan.epoch(0)) < world:
            raise InputError(f"a batch has fewer sequences than the {world} processes; raise tokens_per_batch")

    def __call__(self, step: int) -> list[tuple[int, dict[str, Tensor]]]:
        """(piece number, batch) for every piece of this process."""
        epoch, pieces = self.plan.batch(step)
        settings = (self.special, self.seed, epoch, self.ratio, self.repeat)
        return [(p, masked_batch(self.source, pieces[p], *settings)) for p in range(self.rank, len(pieces), self.world)]
