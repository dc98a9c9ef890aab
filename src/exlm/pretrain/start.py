"""A start from weights: a pre-training takes from an earlier model what fits; what is new stays as
its seed drew it."""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.models import fingerprint, load_model, verify

SIZES = ("hidden_size", "num_attention_heads", "intermediate_size")
# Weights fit other positions as well, but were learned with these, so the line says where they
# differ.
POSITIONS = ("rotary", "state_share", "rotary_base")
ROWS_OF_TOKENS = ("exlm.embeddings.weight", "head.decoder.bias")
# by state index and by position
ROWS_OF_NUMBERS = ("exlm.copies.weight", "transition.positions.weight")


def start_fingerprint(path: str) -> str:
    """SHA-256 of the weights of a start; InputError if `path` is no model directory or is
    damaged."""
    if not Path(path).is_dir():
        raise InputError(
            f"start_from is {path}, which is no directory; give that of a pre-trained model, and keep it until the run "
            "is finished (a run that goes on is compared with the weights it started from)"
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
    its_config, config = start.config, network.config
    assert isinstance(its_config, ExLMConfig) and isinstance(config, ExLMConfig)
    _check(its_config, config, path)
    rows, start_rows = _shared_tokens(tokenizer, start_tokenizer)
    weights = dict(start.named_parameters())
    for name, parameter in network.named_parameters():
        if name not in weights:
            continue
        source = weights[name]
        if name in ROWS_OF_TOKENS:
            parameter[rows] = source[start_rows]
        elif name in ROWS_OF_NUMBERS:
            count = min(len(parameter), len(source))
            parameter[:count] = source[:count]
        elif parameter.shape == source.shape:  # not so of a transition of the other kind
            parameter.copy_(source)
    return f"start from {path}: {_description(its_config, config, len(rows))}"


def _check(start: ExLMConfig, config: ExLMConfig, path: str) -> None:
    if start.architectures != [ExLMForMaskedLM.__name__]:
        heads = ", ".join(start.architectures or ["a model without a head"])
        raise InputError(
            f"start_from is {path}, which holds {heads}; give the pre-trained model that it was made from"
        )
    for name in SIZES:
        if (theirs := getattr(start, name)) != (ours := getattr(config, name)):
            raise InputError(
                f"{name} is {ours}, but {theirs} in the start {path}; set model.{name} to {theirs}"
            )


def _shared_tokens(
    tokenizer: PreTrainedTokenizerBase, start: PreTrainedTokenizerBase
) -> tuple[Tensor, Tensor]:
    """The ids [n] of all tokens that both have: those of `tokenizer`, and those of `start`."""
    theirs = start.get_vocab()
    pairs = [
        (number, theirs[token])
        for token, number in tokenizer.get_vocab().items()
        if token in theirs
    ]
    ours, starts = torch.tensor(pairs, dtype=torch.long).view(-1, 2).unbind(1)
    return ours, starts


def _description(start: ExLMConfig, config: ExLMConfig, tokens: int) -> str:
    """What a model takes from a start with which it shares so many tokens, what is drawn, and what
    to know of it."""
    links = config.has_links and start.has_links and config.transition == start.transition
    positions = [
        one.max_position_embeddings if links and one.transition == "gated" else 0
        for one in (start, config)
    ]
    copies = [
        one.num_states if one.copy_embedding and one.expands else 0 for one in (start, config)
    ]
    parts = {  # units that are taken, and units that the model has
        "embeddings of tokens": (tokens, config.vocab_size),
        "layers": (
            min(start.num_hidden_layers, config.num_hidden_layers),
            config.num_hidden_layers,
        ),
        "prediction head": (1, 1),
        "embeddings of copies": (min(copies), copies[1]),
        "transition": (int(links), int(config.has_links)),
        "positions of the transition": (min(positions), positions[1]),
    }
    taken = [
        name if size == 1 else f"{n} of {size} {name}" for name, (n, size) in parts.items() if n
    ]
    drawn = [
        name if size == 1 else f"{size - n} {name}" for name, (n, size) in parts.items() if n < size
    ]
    notes = [
        f"; {name} is {getattr(config, name)} but was {getattr(start, name)}"
        for name in POSITIONS
        if getattr(config, name) != getattr(start, name)
    ]
    return f"taken: {', '.join(taken)}; drawn: {', '.join(drawn) or 'nothing'}{''.join(notes)}"
