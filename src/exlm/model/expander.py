"""The expansion of a batch as a model's configuration asks for it. It needs no network, so the
thread that makes the batches of a pre-training does it."""

from dataclasses import replace

import torch
from torch import Tensor

from exlm.model.configuration_exlm import ExLMConfig
from exlm.ops.expansion import IGNORED, Lattice, expand, unexpanded_input, without_copies


def expand_batch(
    config: ExLMConfig,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    masked: Tensor | None = None,
    labels: Tensor | None = None,
) -> Lattice:
    """States Expansion of a batch (paper, section 4.2); the lattice is on the device of the batch.

    Args:
        config: of the model that reads the lattice.
        input_ids: [B, S] token ids with [MASK] in place.
        attention_mask: [B, S] 1 on real tokens, 0 on padding; by default all are real.
        masked: [B, S] bool, the tokens that become states; by default those with a label, and
            without labels each [MASK].
        labels: [B, S] the original tokens, which become the targets; -100 where nothing is
            masked."""
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if masked is None and labels is not None:
        masked = torch.ne(labels, IGNORED)
    if masked is None:
        mask_token_id = -1 if config.mask_token_id is None else config.mask_token_id
        masked = torch.eq(input_ids, mask_token_id)
    # If boundaries have k states, BOS and EOS are boundaries wherever they stand.
    copies_boundaries = config.states_per_boundary > 1
    lattice = expand(
        input_ids,
        attention_mask,
        masked,
        config.states_per_mask,
        config.states_per_boundary,
        labels,
        pad_token_id=config.padding_id,
        boundary_ids=(config.bos_token_id, config.eos_token_id) if copies_boundaries else (),
        count_copies=config.rotary == "1d",
    )
    if not config.expands:  # in an MLM a [MASK] has no copy index, like any other token
        position_ids = without_copies(lattice.position_ids[..., 0])
        lattice = replace(lattice, position_ids=position_ids)
    if config.unexpanded_layers > 0:
        unexpanded = unexpanded_input(input_ids, attention_mask, config.padding_id)
        lattice = replace(lattice, unexpanded=unexpanded)
    return lattice
