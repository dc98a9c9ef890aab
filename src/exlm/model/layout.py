"""How the tokens of a batch reach the encoder: padded rows, or one packed row without any padding."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.expansion import Lattice, to_device


class Spans(NamedTuple):
    """Where each sequence of a packed row starts and ends.

    Attributes:
        offsets: [B + 1] int32, cumulative lengths.
        longest: the largest length.
    """

    offsets: Tensor
    longest: int


@dataclass(frozen=True)
class Layout:
    """R rows of L positions. Padded: a sequence per row. Packed: one row with the real tokens of all sequences.

    Attributes:
        input_ids: [R, L].
        position_ids: [R, L, 2].
        read: [R, N] the only positions of which the last layer computes anything; None for all.
        mask: [R, 1, 1, L] bool, true where attended; None where everything is.
        keys, queries: the spans of all positions and of those read; packed only.
        place: [B, N] where the hidden states of each sequence stand among those read; packed only.
    """

    input_ids: Tensor
    position_ids: Tensor
    read: Tensor | None
    mask: Tensor | None = None
    keys: Spans | None = None
    queries: Spans | None = None
    place: Tensor | None = None

    def to(self, device: torch.device) -> "Layout":
        return to_device(self, device)

    def unpack(self, hidden: Tensor) -> Tensor:
        """Hidden states read [R, N, D] as [B, N, D]; where a sequence has fewer, some other state is repeated."""
        return hidden if self.place is None else hidden[0][self.place]


def padded(lattice: Lattice, read: Tensor | None = None) -> Layout:
    """One sequence per row; `read [B, N]`."""
    mask = lattice.attention_mask
    # Only where asking costs nothing: on a GPU it would wait for all work before it.
    if mask.device.type == "cpu" and bool(mask.all()):
        return Layout(lattice.input_ids, lattice.position_ids, read)
    return Layout(lattice.input_ids, lattice.position_ids, read, mask[:, None, None, :])


def packed(lattice: Lattice, read: Tensor | None = None, count: Tensor | None = None) -> Layout:
    """All real tokens one behind the other; of `read [B, N]` the first `count [B]` of every sequence are real."""
    real = lattice.attention_mask.flatten().nonzero()[:, 0]
    keys = _spans(lattice.attention_mask.sum(1))
    if read is None or count is None:
        chosen, queries = lattice.attention_mask, keys
    else:
        chosen, queries = torch.arange(read.shape[1], device=read.device) < count[:, None], _spans(count)
        read = (read + keys.offsets[:-1, None])[chosen][None]
    place = (chosen.flatten().cumsum(0) - 1).clamp_(min=0).view_as(chosen)
    input_ids, position_ids = (x.flatten(0, 1)[real][None] for x in (lattice.input_ids, lattice.position_ids))
    return Layout(input_ids, position_ids, read, keys=keys, queries=queries, place=place)


def _spans(lengths: Tensor) -> Spans:
    return Spans(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


def gather_rows(hidden: Tensor, index: Tensor) -> Tensor:
    """hidden [B, L, ...] at index [B, N] -> [B, N, ...]."""
    first = torch.arange(len(hidden), device=hidden.device)[:, None] * hidden.shape[1]
    return hidden.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, index.shape)
