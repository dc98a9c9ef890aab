"""Converts weights of the authors' release (a fairseq fork) to this library's model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM

TRUNK = "encoder.sentence_encoder."
POSITIONS = "encoder.link_positional.weight"
THEIRS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("official.yaml").read_text(encoding="utf-8")
)
PADDING_ROWS = 2  # the release's position table starts at padding_idx + 1


def from_official(state_dict: Mapping[str, Any], num_states: int) -> ExLMForMaskedLM:
    """The release's checkpoint as a model in evaluation mode, from its weights as tensors or arrays
    under the release's names (InputError if one is missing) and `num_states`, k, which cannot be
    inferred from them.

    Token ids are the release's (bos 0, pad 1, eos 2, unk 3, mask last). BOS and EOS have k states
    too, as there."""
    weights = {name: torch.as_tensor(value) for name, value in state_dict.items()}
    try:
        vocabulary, width = weights[TRUNK + "embed_tokens.weight"].shape
        config = ExLMConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=len(
                {name.split(".")[3] for name in weights if name.startswith(TRUNK + "layers.")}
            ),
            num_attention_heads=len(weights["encoder.gate_linear.weight"]),
            intermediate_size=len(weights[TRUNK + "layers.0.fc1.weight"]),
            max_position_embeddings=len(weights[POSITIONS]) - PADDING_ROWS,
            mask_token_id=vocabulary - 1,
            num_states=num_states,
            boundary_states="k",
        )
        model = ExLMForMaskedLM(config)
        translated = {}
        for name in model.state_dict():
            their_name = name
            for ours, theirs in THEIRS.items():
                their_name = their_name.replace(ours, theirs)
            if "{}" in their_name:
                tensors = [weights[their_name.format(letter)] for letter in ("q", "k", "v")]
            else:
                tensors = [weights[their_name]]
            translated[name] = torch.cat(tensors)
        translated["transition.positions.weight"] = weights[POSITIONS][PADDING_ROWS:]
    except KeyError as missing:
        raise InputError(
            f"the state dict has no weight {missing}; is it a checkpoint of the ExLM release?"
        ) from None
    model.load_state_dict(translated)
    return model.eval()
