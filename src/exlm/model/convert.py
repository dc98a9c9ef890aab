"""Converts weights of the authors' release (a fairseq fork) to this library's model."""

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InputError
from .configuration_exlm import ExLMConfig
from .masked_lm import ExLMForMaskedLM

TRUNK = "encoder.sentence_encoder."
EMBEDDINGS, POSITIONS, GATE = TRUNK + "embed_tokens.weight", "encoder.link_positional.weight", "encoder.gate_linear"
LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "attention.output": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "ffn_in": "fc1",
    "ffn_out": "fc2",
}
HEADS = {
    "exlm.norm": TRUNK + "emb_layer_norm_after",
    "head.dense": "encoder.lm_head.dense",
    "head.norm": "encoder.lm_head.layer_norm",
    "transition.query": "encoder.query_linear",
    "transition.key": "encoder.key_linear",
    "transition.gate": GATE,
}
KINDS = ("weight", "bias")
PADDING_ROWS = 2  # the release's position table starts at padding_idx + 1


def from_official(state_dict: Mapping[str, Any], num_states: int) -> ExLMForMaskedLM:
    """The release's checkpoint as a model in evaluation mode.

    Sizes are inferred from the arrays. Token ids are the release's (bos 0, pad 1, eos 2, unk 3, mask last). BOS and EOS
    are expanded into `num_states` states, as in the release.

    Args:
        state_dict: weights under the release's names, as tensors or arrays; InputError if one is missing.
        num_states: k, which cannot be inferred from the weights.
    """
    weights = {name: torch.as_tensor(value) for name, value in state_dict.items()}
    try:
        vocabulary, width = weights[EMBEDDINGS].shape
        config = ExLMConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=len({name.split(".")[3] for name in weights if name.startswith(TRUNK + "layers.")}),
            num_attention_heads=len(weights[GATE + ".weight"]),
            intermediate_size=len(weights[TRUNK + "layers.0.fc1.weight"]),
            max_position_embeddings=len(weights[POSITIONS]) - PADDING_ROWS,
            mask_token_id=vocabulary - 1,
            num_states=num_states,
            boundary_states="k",
        )
        modules = dict(HEADS)
        translated = {
            "exlm.embeddings.weight": weights[EMBEDDINGS],
            "head.decoder.weight": weights[EMBEDDINGS],
            "head.decoder.bias": weights["encoder.lm_head.bias"],
            "transition.positions.weight": weights[POSITIONS][PADDING_ROWS:],
        }
        for i in range(config.num_hidden_layers):
            modules |= {f"exlm.layers.{i}.{ours}": f"{TRUNK}layers.{i}.{theirs}" for ours, theirs in LAYER.items()}
            for kind in KINDS:
                projections = [weights[f"{TRUNK}layers.{i}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
                translated[f"exlm.layers.{i}.attention.qkv.{kind}"] = torch.cat(projections)
        for ours, theirs in modules.items():
            translated |= {f"{ours}.{kind}": weights[f"{theirs}.{kind}"] for kind in KINDS}
    except KeyError as missing:
        raise InputError(f"the state dict has no weight {missing}; is it a checkpoint of the ExLM release?") from None
    model = ExLMForMaskedLM(config)
    model.load_state_dict(translated)
    return model.eval()
