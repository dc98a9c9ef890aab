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
        position_ids: [R, L, A].
        copy: [R, L] state index.
        read: [R, N] the only positions of which the last layer computes anything; None for all.
        mask: [R, 1, 1, L] bool, true where attended; None where everything is.
        keys, queries: the spans of all positions and of those read; packed only.
        unpacked: [B, N] where the hidden states of each sequence stand among those read; packed only.
        origin: [R, L] where each position was copied from, among all positions of the plain layout; late expansion
            only.
    """

    input_ids: Tensor
    position_ids: Tensor
    copy: Tensor
    read: Tensor | None
    mask: Tensor | None = None
    keys: Spans | None = None
    queries: Spans | None = None
    unpacked: Tensor | None = None
    origin: Tensor | None = None

    def to(self, device: torch.device) -> "Layout":
        return to_device(self, device)

    def unpack(self, hidden: Tensor) -> Tensor:
        """Hidden states read [R, N, D] as [B, N, D]; where a sequence has fewer, some other state is repeated."""
        return hidden if self.unpacked is None else hidden[0][self.unpacked]


def padded(lattice: Lattice, read: Tensor | None = None, count: Tensor | None = None) -> Layout:
    """One sequence per row; `read [B, N]`. `count` is what `packed` needs."""
    mask, origin = lattice.attention_mask, None
    if lattice.plain is not None:
        rows, width = lattice.plain.input_ids.shape
        origin = _plain_source(lattice, lattice.plain) + torch.arange(rows, device=mask.device)[:, None] * width
    # Only where asking costs nothing: on a GPU it would wait for all work before it.
    whole = mask.device.type == "cpu" and bool(mask.all())
    shown = None if whole else mask[:, None, None, :]
    return Layout(lattice.input_ids, lattice.position_ids, lattice.copy, read, shown, origin=origin)


def packed(lattice: Lattice, read: Tensor | None = None, count: Tensor | None = None) -> Layout:
    """All real tokens one behind the other; of `read [B, N]` the first `count [B]` of every sequence are real."""
    real = lattice.attention_mask.flatten().nonzero()[:, 0]
    keys = _spans(lattice.attention_mask.sum(1))
    if read is None or count is None:
        chosen, queries = lattice.attention_mask, keys
    else:
        chosen, queries = torch.arange(read.shape[1], device=read.device) < count[:, None], _spans(count)
        read = (read + keys.offsets[:-1, None])[chosen][None]
    tokens = (lattice.input_ids, lattice.position_ids, lattice.copy)
    ids, positions, copy = (x.flatten(0, 1)[real][None] for x in tokens)
    origin = None
    if lattice.plain is not None:
        source = _plain_source(lattice, lattice.plain)
        origin = _positions_among(lattice.plain.attention_mask).gather(1, source).flatten()[real][None]
    return Layout(
        ids, positions, copy, read, keys=keys, queries=queries, unpacked=_positions_among(chosen), origin=origin
    )


def _plain_source(lattice: Lattice, plain: Lattice) -> Tensor:
    """[B, L] where in the plain sequence, which starts at its first real token, each position was copied from."""
    return plain.first.gather(1, lattice.source).clamp(max=plain.input_ids.shape[1] - 1)


def _positions_among(chosen: Tensor) -> Tensor:
    """[B, S] where each true entry stands among all true entries."""
    return (chosen.flatten().cumsum(0) - 1).clamp_(min=0).view_as(chosen)


def _spans(lengths: Tensor) -> Spans:
    return Spans(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


def gather_rows(hidden: Tensor, index: Tensor) -> Tensor:
    """hidden [B, L, ...] at index [B, N] -> [B, N, ...]."""
    first = torch.arange(len(hidden), device=hidden.device)[:, None] * hidden.shape[1]
    return hidden.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, index.shape)
