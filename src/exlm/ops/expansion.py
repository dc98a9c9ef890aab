"""States Expansion: every masked token becomes k positions of the encoder's input, the paper's
expanded sequence X' (section 4.2).

tokens            <s>   C    [M]        C   </s>
expanded          <s>   C    [M] [M]    C   </s>        k = 2, boundary states 1
token position     0    1     2   2     3    4
copy index         0    0     1   2     0    0
lattice            0          1   2          3          states, in order"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

IGNORED = -100  # label of tokens that do not count, as in PyTorch's cross entropy


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. A copy from the CPU to a GPU does not wait for the GPU."""
    is_copied_to_gpu = tensor.device.type == "cpu" and device.type == "cuda"
    if is_copied_to_gpu and not tensor.requires_grad:
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def tensors_to(structure: Any, device: torch.device) -> Any:
    """A dataclass with the tensors of its fields on a device, also those in a NamedTuple, but not
    those in another dataclass."""
    values = {field.name: getattr(structure, field.name) for field in fields(structure)}
    on_device = tree_map_only(Tensor, lambda tensor: to_device(tensor, device), values)
    return replace(structure, **on_device)


@dataclass(frozen=True, kw_only=True)
class EncoderInput:
    """What the encoder reads: the tokens of B sequences, of which a lattice has copied those that
    are masked. Padded to L positions, and on any device."""

    input_ids: Tensor  # [B, L]
    attention_mask: Tensor  # [B, L] bool, true on real positions
    # [B, L, 2] token position and copy index, which is 0 on ordinary tokens and 1..k on copies
    position_ids: Tensor
    source_token: Tensor  # [B, L] the input token each position was copied from
    # [B, S] position of the first copy of each input token; of padding any position
    first_copy: Tensor
    # the same input without any copies, for layers before a late expansion
    unexpanded: "EncoderInput | None" = None
    # [B, L, D] what is read in place of the embeddings of `input_ids`, which then mean nothing
    inputs_embeds: Tensor | None = None
    # Further arguments of an implementation of attention that is not the model's own.
    attention_options: dict[str, Any] = field(default_factory=dict)

    @property
    def copy_index(self) -> Tensor:
        """[B, L] which copy of its token each position is."""
        return self.position_ids[..., 1]


@dataclass(frozen=True, kw_only=True)
class Lattice(EncoderInput):
    """The expanded input, padded on the right, and the states among its positions.

    Its sizes L, N and T depend on the data. On a GPU the CPU would have to wait for them, so
    `expand` is best called on the CPU, and `to` brings the result to the device."""

    # [B, N] positions of the lattice states in the expanded sequence (0 on padding)
    state_index: Tensor
    state_lengths: Tensor  # [B] number of states of each sequence
    # [B, N] the target that each state was made for: 0 for BOS, 1..m for the masks, m + 1 for EOS
    target_of_state: Tensor
    # [B, T] the tokens the states must emit: BOS, masked tokens from left to right, EOS
    targets: Tensor
    target_lengths: Tensor  # [B] number of targets of each sequence
    # [B, T] the input token of each target, counted before the expansion (0 on padding)
    target_index: Tensor
    # [B, T] bool, the targets that are masked tokens: all but BOS, EOS and padding
    target_is_mask: Tensor

    def to(self, device: torch.device) -> "Lattice":
        """The lattice on a device, for the heads. It has no `unexpanded`: the encoder alone reads
        that, from the lattice that this one is made of."""
        return tensors_to(replace(self, unexpanded=None), device)

    @property
    def state_copy(self) -> Tensor:
        """[B, N] which copy of its mask each state is, from 1; 0 for BOS and EOS."""
        is_of_mask = self.target_is_mask.gather(1, self.target_of_state)
        return self.copy_index.gather(1, self.state_index) * is_of_mask


def unexpanded_input(
    input_ids: Tensor, attention_mask: Tensor, pad_token_id: int = 0
) -> EncoderInput:
    """The input [B, S] without any copies: every token keeps its place, so no size depends on the
    data."""
    real = attention_mask.bool()
    token_position = (real.cumsum(1) - 1).clamp(min=0) * real
    position = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    return EncoderInput(
        input_ids=input_ids.masked_fill(~real, pad_token_id),
        attention_mask=real,
        position_ids=without_copies(token_position),
        source_token=position,
        first_copy=position,
    )


def without_copies(token_position: Tensor) -> Tensor:
    """`position_ids` [B, L, 2] of tokens without copies, from their positions [B, L]."""
    return torch.stack([token_position, torch.zeros_like(token_position)], dim=-1)


def expand(
    input_ids: Tensor,
    attention_mask: Tensor,
    masked: Tensor,
    states_per_mask: int,
    states_per_boundary: int,
    labels: Tensor | None = None,
    pad_token_id: int = 0,
    boundary_ids: tuple[int | None, ...] = (),
    count_copies: bool = False,
) -> Lattice:
    """States Expansion (paper, section 4.2): copies every masked token, BOS and EOS, and finds the
    states of the lattice among the positions.

    The first and last real token of a sequence count as BOS and EOS, whatever they are, and never
    as masked.

    Args:
        input_ids: [B, S] token ids with [MASK] in place.
        attention_mask: [B, S] 1 on real tokens, 0 on padding.
        masked: [B, S] bool, tokens to expand. BOS and EOS are states in any case.
        states_per_mask: k, copies of every masked token.
        states_per_boundary: copies of BOS and of EOS, 1 (paper, appendix on the case study) or k
            (release).
        labels: [B, S] original tokens at the masked positions; by default the input's tokens.
        pad_token_id: fills the expanded sequence on the right.
        boundary_ids: tokens that count as BOS or EOS inside a sequence too, as in pairs and packed
            documents (release).
        count_copies: whether every copy has a token position of its own, so that these are counted
            along the expanded sequence."""
    real = attention_mask.bool()
    place = real.cumsum(1)  # of each token among the real ones, from 1
    is_boundary = real & ((place == 1) | (place == place[:, -1:]))
    masked = masked & real & ~is_boundary
    for token in boundary_ids:
        is_boundary = is_boundary | (real & ~masked & (input_ids == token))
    has_target = masked | is_boundary
    copy_counts = torch.where(is_boundary, states_per_boundary, real.long())
    copy_counts = torch.where(masked, states_per_mask, copy_counts)

    first_copy, source_token, position, is_real = _place_copies(copy_counts)
    is_copied = has_target if states_per_boundary > 1 else masked
    copy_index = position - first_copy.gather(1, source_token) + 1
    copy_index = copy_index * (is_copied.gather(1, source_token) & is_real)
    token_position = position
    if not count_copies:
        token_position = (place - 1).clamp(min=0).gather(1, source_token) * is_real

    state_index, state_lengths = _true_indices(has_target.gather(1, source_token) & is_real)
    target_index, target_lengths = _true_indices(has_target)
    target_of_token = (has_target.cumsum(1) - 1).clamp_(min=0)
    answers = input_ids if labels is None else torch.where(labels == IGNORED, input_ids, labels)
    return Lattice(
        input_ids=input_ids.gather(1, source_token).masked_fill(~is_real, pad_token_id),
        attention_mask=is_real,
        position_ids=torch.stack([token_position, copy_index], dim=-1),
        source_token=source_token,
        first_copy=first_copy,
        state_index=state_index,
        state_lengths=state_lengths,
        target_of_state=target_of_token.gather(1, source_token.gather(1, state_index)),
        targets=answers.gather(1, target_index),
        target_lengths=target_lengths,
        target_index=target_index,
        # Padding has the index 0 of BOS or of other padding, so it is no mask.
        target_is_mask=masked.gather(1, target_index),
    )


def _place_copies(copy_counts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places the copies of all tokens one after the other: `copy_counts` [B, S] are how many of
    each. Counts 1 2 1 0 (the last token is padding) give the source tokens 0 1 1 2.

    Returns:
        The first position of each token [B, S]; then for every position, [B, L] each, the token
        that it is a copy of, its own number, and whether it is real."""
    batch, token_count = copy_counts.shape
    end = copy_counts.cumsum(1)
    length = max(int(end[:, -1].max()), 1)
    position = torch.arange(length, device=end.device).expand(batch, -1).contiguous()
    source_token = torch.searchsorted(end, position, right=True).clamp_(max=token_count - 1)
    first_copy = (end - copy_counts).clamp_(max=length - 1)
    return first_copy, source_token, position, position < end[:, -1:]


def _true_indices(selected: Tensor) -> tuple[Tensor, Tensor]:
    """Indices [B, N] of the true entries of `selected` [B, S], 0 on padding, and their numbers [B],
    of which N is the largest."""
    counts = selected.sum(1)
    largest = max(int(counts.max()), 1)
    # A stable sort brings the true entries to the front, in their order.
    index = torch.argsort((~selected).to(torch.int8), dim=1, stable=True)[:, :largest]
    is_real = torch.arange(index.shape[1], device=selected.device) < counts[:, None]
    return index.masked_fill(~is_real, 0), counts
