"""States Expansion: every masked token becomes k positions of the encoder's input (paper, section 4.2).

tokens       <s>   C    [M]        C   </s>
expanded     <s>   C    [M] [M]    C   </s>        k = 2, boundary states 1
word i        0    1     2   2     3    4
state c       0    0     1   2     0    0
lattice       0          1   2          3          states, in order
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

IGNORED = -100

Record = TypeVar("Record")


def to_device(record: Record, device: torch.device) -> Record:
    """A dataclass with all its tensors on `device`; copies to a GPU do not wait for it."""

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.device.type == "cpu" and device.type == "cuda":
                return value.contiguous().pin_memory().to(device, non_blocking=True)
            return value.to(device)
        return type(value)(*map(move, value)) if isinstance(value, tuple) else value

    return replace(record, **{f.name: move(getattr(record, f.name)) for f in fields(record)})  # type: ignore[arg-type,type-var]


@dataclass(frozen=True)
class Lattice:
    """The expanded input and the states among its positions.

    Sizes depend on the data. `expand` therefore runs best on the host, where asking for them costs nothing, and
    `to` brings the result to the device.

    Attributes:
        input_ids: [B, L] expanded token ids, padded on the right.
        attention_mask: [B, L] bool, true on real positions.
        position_ids: [B, L, A] coordinates on the axes of the rotary positions: word and state, or the place alone.
        copy: [B, L] state index: 0 on ordinary tokens, 1..k on expanded ones.
        source: [B, L] the input token each position was copied from.
        first: [B, S] where the first copy of each input token stands in the expanded sequence.
        state_index: [B, N] positions of the lattice states in the expanded sequence (0 on padding).
        num_states: [B] number of states of each sequence.
        ordinal: [B, N] the target that each state was made for: 0 for BOS, 1..m for the masks, m + 1 for EOS.
        targets: [B, T] the tokens the states must emit: BOS, masked tokens from left to right, EOS.
        num_targets: [B] number of targets of each sequence.
        target_index: [B, T] the input position of each target (0 on padding).
        target_is_mask: [B, T] bool, the targets that are masked tokens: all but BOS, EOS and padding.
        plain: the same input without any copies, for layers before a late expansion.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    copy: Tensor
    source: Tensor
    first: Tensor
    state_index: Tensor
    num_states: Tensor
    ordinal: Tensor
    targets: Tensor
    num_targets: Tensor
    target_index: Tensor
    target_is_mask: Tensor
    plain: "Lattice | None" = None

    def to(self, device: torch.device) -> "Lattice":
        """On a device, for the heads: without `plain`, which the encoder alone reads."""
        return to_device(replace(self, plain=None), device)

    @property
    def state_copy(self) -> Tensor:
        """[B, N] which copy of its mask each state is, from 1; 0 for BOS and EOS."""
        of_mask = self.target_is_mask.gather(1, self.ordinal)
        return self.copy.gather(1, self.state_index) * of_mask


def boundaries(attention_mask: Tensor) -> Tensor:
    """[B, S] bool, true on the first and the last real token of each sequence (BOS and EOS)."""
    mask = attention_mask.bool()
    order = mask.cumsum(1)
    return mask & ((order == 1) | (order == order[:, -1:]))


def compact(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of the true entries of `chosen [B, S]`, packed to the left.

    Returns:
        index [B, max count] (0 on padding) and count [B].
    """
    count = chosen.sum(1)
    index = torch.argsort((~chosen).to(torch.int8), dim=1, stable=True)[:, : max(int(count.max()), 1)]
    valid = torch.arange(index.shape[1], device=chosen.device) < count[:, None]
    return index.masked_fill(~valid, 0), count


def expand(
    input_ids: Tensor,
    attention_mask: Tensor,
    masked: Tensor,
    num_states: int,
    boundary_states: int,
    labels: Tensor | None = None,
    pad_token_id: int = 0,
    boundary_ids: tuple[int | None, ...] = (),
    rotary: Literal["2d", "1d"] = "2d",
) -> Lattice:
    """Copies every masked token `num_states` times, BOS and EOS `boundary_states` times, and lays out the lattice.

    BOS and EOS are the first and the last real token of a sequence, whatever they are: mask what stands between them.

    Args:
        input_ids: [B, S] token ids with [MASK] in place.
        attention_mask: [B, S] 1 on real tokens, 0 on padding.
        masked: [B, S] bool, tokens to expand. BOS and EOS are states in any case.
        num_states: k, copies per masked token.
        boundary_states: copies of BOS and of EOS: 1 (paper, appendix on the case study) or k (the authors' release).
        labels: [B, S] original tokens at the masked positions; the input's own tokens where absent.
        pad_token_id: fills the expanded sequence on the right.
        boundary_ids: tokens that are BOS or EOS wherever they stand, as in pairs and packed documents (release).
        rotary: `2d` gives each position its word and its state, `1d` its place in the expanded sequence.
    """
    real = attention_mask.bool()
    boundary = boundaries(real)
    for token in boundary_ids:
        boundary = boundary | (real & (input_ids == token))
    masked = masked & real
    boundary = boundary & ~masked | boundaries(real)
    copies = real.long()
    copies = torch.where(boundary, boundary_states, copies)
    copies = torch.where(masked, num_states, copies)

    ends = copies.cumsum(1)
    length = max(int(ends[:, -1].max()), 1)
    place = torch.arange(length, device=input_ids.device).expand(len(input_ids), -1).contiguous()
    source = torch.searchsorted(ends, place, right=True).clamp_(max=input_ids.shape[1] - 1)
    attended = place < ends[:, -1:]
    expanded = (masked | (boundary & (boundary_states > 1))).gather(1, source) & attended
    copy = (place - (ends - copies).gather(1, source) + 1) * expanded
    word = (real.cumsum(1) - 1).clamp_(min=0).gather(1, source) * attended

    emitting = masked | boundary
    state_index, state_count = compact(emitting.gather(1, source) & attended)
    target_index, target_count = compact(emitting)
    answers = input_ids if labels is None else torch.where(labels == IGNORED, input_ids, labels)
    real_target = torch.arange(target_index.shape[1], device=input_ids.device) < target_count[:, None]
    return Lattice(
        input_ids=input_ids.gather(1, source).masked_fill(~attended, pad_token_id),
        attention_mask=attended,
        position_ids=place[..., None] if rotary == "1d" else torch.stack([word, copy], dim=-1),
        copy=copy,
        source=source,
        first=ends - copies,
        state_index=state_index,
        num_states=state_count,
        ordinal=(emitting.cumsum(1) - 1).clamp_(min=0).gather(1, source.gather(1, state_index)),
        targets=answers.gather(1, target_index),
        num_targets=target_count,
        target_index=target_index,
        target_is_mask=(masked & ~boundaries(real)).gather(1, target_index) & real_target,
    )
