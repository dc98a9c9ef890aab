"""How the tokens of a batch reach the encoder: padded rows, or one packed row without any padding."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.expansion import Lattice, to_device


class Spans(NamedTuple):
    """The sequences of a packed row: cumulative lengths [B + 1] int32, and the largest length."""

    cu_seqlens: Tensor
    longest: int


@dataclass(frozen=True)
class Layout:
    """R rows of L positions. Padded: a sequence per row. Packed: one row with the real tokens of all sequences."""

    input_ids: Tensor  # [R, L]
    position_ids: Tensor  # [R, L, A]
    copy: Tensor  # [R, L] state index
    read: Tensor | None  # [R, N] the only positions that the last layer computes; None for all
    origin: Tensor | None = None  # [R, L] late expansion: where in the plain layout each was copied from
    mask: Tensor | None = None  # [R, 1, 1, L] bool, true where attended; None if everything is attended
    keys: Spans | None = None  # of all positions; packed only
    queries: Spans | None = None  # of the positions read; packed only
    unpacked: Tensor | None = None  # [B, N] index of each sequence's states among those read; packed only

    def unpack(self, hidden: Tensor) -> Tensor:
        """The hidden states read, [R, N, D], as [B, N, D]; sequences with fewer states are padded with other states."""
        return hidden if self.unpacked is None else hidden[0][self.unpacked]


def arrange(
    lattice: Lattice, device: torch.device, pack: bool, read: Tensor | None = None, count: Tensor | None = None
) -> Layout:
    """The layout of a batch on a device: packed, or with one sequence per row. `read [B, N]` are the positions to read,
    of which the first `count [B]` are real; without them all are read."""
    mask = lattice.attention_mask
    tokens: dict[str, Any] = {name: getattr(lattice, name) for name in ("input_ids", "position_ids", "copy")}
    if lattice.plain is not None:  # its rows start at the first real token of each sequence
        plain = lattice.plain.attention_mask
        source = lattice.plain.first.gather(1, lattice.source).clamp(max=plain.shape[1] - 1)
        tokens["origin"] = _positions_among(plain if pack else torch.ones_like(plain)).gather(1, source)
    if not pack:
        # Tested on the CPU only: to read the answer from a GPU would wait for all earlier work.
        whole = mask.device.type == "cpu" and not torch.compiler.is_exporting() and bool(mask.all())
        return to_device(Layout(**tokens, read=read, mask=None if whole else mask[:, None, None, :]), device)
    real = mask.flatten().nonzero()[:, 0]
    chosen, keys = mask, _spans(mask.sum(1))
    queries = keys
    if read is not None and count is not None:
        chosen, queries = torch.arange(read.shape[1], device=read.device) < count[:, None], _spans(count)
        read = (read + keys.cu_seqlens[:-1, None])[chosen][None]
    tokens = {name: x.flatten(0, 1)[real][None] for name, x in tokens.items()}
    layout = Layout(**tokens, read=read, keys=keys, queries=queries, unpacked=_positions_among(chosen))
    return to_device(layout, device)


def _positions_among(chosen: Tensor) -> Tensor:
    """[B, S] the index of each true entry among all true entries."""
    return (chosen.flatten().cumsum(0) - 1).clamp_(min=0).view_as(chosen)


def _spans(lengths: Tensor) -> Spans:
    return Spans(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int(), int(lengths.max()))


def at_tokens(hidden: Tensor, lattice: Lattice) -> Tensor:
    """hidden [B, L, D] of a lattice's positions -> [B, S, D]: the first state of every input token."""
    return gather_rows(hidden, lattice.first.clamp(max=hidden.shape[1] - 1).to(hidden.device))


def gather_rows(hidden: Tensor, index: Tensor) -> Tensor:
    """hidden [B, L, ...] at index [B, N] -> [B, N, ...]."""
    first = torch.arange(hidden.shape[0], device=hidden.device)[:, None] * hidden.shape[1]
    return hidden.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, index.shape)
