"""What the inputs of a model become before its encoder: a function of its configuration alone, so
batches can be expanded without the network."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from exlm.model.configuration_exlm import ExLMConfig
from exlm.ops.expansion import (
    IGNORED,
    EncoderInput,
    Lattice,
    expand,
    unexpanded_input,
    without_copies,
)


class Expander:
    """The expansion of batches for models with one configuration."""

    def __init__(self, config: ExLMConfig) -> None:
        self.config = config

    def expand(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        masked: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Lattice:
        """The lattice of a batch, on its device. It expands `masked` tokens, or else labelled ones,
        or else [MASK]; all arguments are [B, S]."""
        config = self.config
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if masked is None and labels is not None:
            masked = torch.ne(labels, IGNORED)
        if masked is None:
            mask_token_id = -1 if config.mask_token_id is None else config.mask_token_id
            masked = torch.eq(input_ids, mask_token_id)
        padding = config.pad_token_id or 0
        lattice = expand(
            input_ids,
            attention_mask,
            masked,
            config.states_per_mask,
            config.states_per_boundary,
            labels,
            pad_token_id=padding,
            boundary_ids=self._inner_boundaries(),
            count_copies=config.rotary == "1d",
        )
        if not config.expands:  # a [MASK] has no copy index, like any other token
            position_ids = without_copies(lattice.position_ids[..., 0])
            lattice = replace(lattice, position_ids=position_ids)
        if config.unexpanded_layers:
            unexpanded = unexpanded_input(input_ids, attention_mask, padding)
            lattice = replace(lattice, unexpanded=unexpanded)
        return lattice

    def for_task(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        vectors: Tensor | None = None,
        attention_options: dict[str, Any] | None = None,
    ) -> EncoderInput:
        """The input of a task [B, S]: no token counts as masked, not even [MASK], and each is
        repeated `config.repeat` times. BOS and EOS are copied where `config.tasks_copy_boundaries`.
        `position_ids` are those of the tokens, by default from 0; `vectors` and `attention_options`
        are those of `EncoderInput`."""
        config = self.config
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        input_ids = input_ids.repeat_interleave(config.repeat, 1)
        attention_mask = attention_mask.repeat_interleave(config.repeat, 1)
        if config.tasks_copy_boundaries:
            nothing = torch.zeros_like(input_ids, dtype=torch.bool)
            return self.expand(input_ids, attention_mask, masked=nothing)
        in_place = unexpanded_input(input_ids, attention_mask, config.pad_token_id or 0)
        if position_ids is not None:
            repeats = torch.arange(config.repeat, device=position_ids.device)
            token_position = (position_ids[..., None] * config.repeat + repeats).flatten(-2)
            token_position = token_position.to(input_ids.device).expand_as(input_ids)
            in_place = replace(in_place, position_ids=without_copies(token_position))
        return replace(in_place, vectors=vectors, attention_options=attention_options or {})

    def _inner_boundaries(self) -> tuple[int | None, ...]:
        """The tokens that are boundaries wherever they stand, if boundaries have k states."""
        if self.config.states_per_boundary == 1:
            return ()
        return self.config.bos_token_id, self.config.eos_token_id
