"""A start from weights: a pre-training takes from an earlier model what fits; what is new stays as
its seed drew it."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.models import fingerprint, load_model, verify

WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")
# Weights fit other rotations as well, but were learned with these, so the line says where they
# differ.
ROTARY_SETTINGS = ("rotary", "state_share", "rotary_base")
ROWS_BY_TOKEN = ("exlm.embeddings.weight", "head.decoder.bias")
# by state index, and by position
ROWS_BY_NUMBER = ("exlm.copies.weight", "transition.positions.weight")


def start_fingerprint(path: str) -> str:
    """SHA-256 of the weights of a start; InputError if `path` is no model directory or is
    damaged."""
    if not Path(path).is_dir():
        raise InputError(
            f"start_from is {path}, which is no directory; give that of a pre-trained model, and "
            "keep it until the run is finished (a run that goes on is compared with the weights it "
            "started from)"
        )
    verify(path)
    return fingerprint(path)


@torch.no_grad()
def take_weights(network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerBase, path: str) -> str:
    """Copies into `network`, a model for `tokenizer`, what fits of the pre-trained model in the
    directory `path`: rows of tokens by their spelling, rows of states and positions by their
    number, all else whole or not at all. Objective, states per mask, layers and vocabulary may
    differ. Returns a line that says what was taken and what is new.

    InputError if `path` holds no pre-trained model of this library, or one of another width."""
    start, start_tokenizer = load_model(path, ExLMForMaskedLM)
    start_config, config = start.config, network.config
    assert isinstance(start_config, ExLMConfig) and isinstance(config, ExLMConfig)
    _check(start_config, config, path)
    rows, start_rows = _shared_tokens(tokenizer, start_tokenizer)
    weights = dict(start.named_parameters())
    for name, parameter in network.named_parameters():
        if name not in weights:
            continue
        source = weights[name]
        if name in ROWS_BY_TOKEN:
            parameter[rows] = source[start_rows]
        elif name in ROWS_BY_NUMBER:
            count = min(len(parameter), len(source))
            parameter[:count] = source[:count]
        # Those of the other kind of transition have other shapes.
        elif parameter.shape == source.shape:
            parameter.copy_(source)
    return f"start from {path}: {_description(start_config, config, len(rows))}"


def _check(start: ExLMConfig, config: ExLMConfig, path: str) -> None:
    if start.architectures != [ExLMForMaskedLM.__name__]:
        heads = ", ".join(start.architectures or ["a model without a head"])
        raise InputError(
            f"start_from is {path}, which holds {heads}; "
            "give the pre-trained model that it was made from"
        )
    for name in WIDTHS:
        size, start_size = getattr(config, name), getattr(start, name)
        if size != start_size:
            raise InputError(
                f"{name} is {size}, but {start_size} in the start {path}; "
                f"set model.{name} to {start_size}"
            )


def _shared_tokens(
    tokenizer: PreTrainedTokenizerBase, start: PreTrainedTokenizerBase
) -> tuple[Tensor, Tensor]:
    """The ids [n] of all tokens that both have: those of `tokenizer`, and those of `start`."""
    ids, start_ids = tokenizer.get_vocab(), start.get_vocab()
    shared = [token for token in ids if token in start_ids]
    rows = torch.tensor([ids[token] for token in shared], dtype=torch.long)
    start_rows = torch.tensor([start_ids[token] for token in shared], dtype=torch.long)
    return rows, start_rows


class Piece(NamedTuple):
    """A part of a model: how many units it has, such as layers, and how many of them a start
    gives."""

    name: str
    size: int
    taken: int


def _description(start: ExLMConfig, config: ExLMConfig, tokens: int) -> str:
    """What a model takes from a start with which it shares so many tokens, what is drawn, and what
    to know of it."""
    taken = []
    drawn = []
    for piece in _pieces(start, config, tokens):
        new = piece.size - piece.taken
        is_one = piece.size == 1
        if piece.taken:
            taken.append(piece.name if is_one else f"{piece.taken} of {piece.size} {piece.name}")
        if new:
            drawn.append(piece.name if is_one else f"{new} {piece.name}")
    notes = [
        f"; {name} is {getattr(config, name)} but was {getattr(start, name)}"
        for name in ROTARY_SETTINGS
        if getattr(config, name) != getattr(start, name)
    ]
    return f"taken: {', '.join(taken)}; drawn: {', '.join(drawn) or 'nothing'}{''.join(notes)}"


def _pieces(start: ExLMConfig, config: ExLMConfig, tokens: int) -> list[Piece]:
    copies = _copies(config)
    layers = config.num_hidden_layers
    same_links = config.has_links and start.has_links and config.transition == start.transition
    positions = 0
    if same_links and config.transition == "gated":
        positions = config.max_position_embeddings
    start_positions = min(positions, start.max_position_embeddings)
    return [
        Piece("embeddings of tokens", size=config.vocab_size, taken=tokens),
        Piece("layers", size=layers, taken=min(layers, start.num_hidden_layers)),
        Piece("prediction head", size=1, taken=1),
        Piece("embeddings of copies", size=copies, taken=min(copies, _copies(start))),
        Piece("transition", size=int(config.has_links), taken=int(same_links)),
        Piece("positions of the transition", size=positions, taken=start_positions),
    ]


def _copies(config: ExLMConfig) -> int:
    return config.num_states if config.copy_embedding and config.expands else 0
