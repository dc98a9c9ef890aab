"""A start from weights: a pre-training takes from an earlier model what fits; what is new stays as
its seed made it."""

from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.data.corpus import Corpus
from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.files import RUN_RESULT, read_or_empty
from exlm.storage.models import check_model, load_model, weight_hash
from exlm.storage.shipped import model_path

WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")
# Weights fit a model with other rotations, too, but were learned with the rotations of the start.
# `take_weights` says where they differ.
ROTARY_SETTINGS = ("rotary", "state_share", "rotary_base")
# The parameters that have a row for each token
ROWS_BY_TOKEN = ("exlm.embeddings.weight", "head.decoder.bias")


def start_hash(path: str) -> str:
    """SHA-256 of the weights of a start; InputError if `path` is no model or is damaged."""
    if not Path(model_path(path)).is_dir():
        raise InputError(
            f"start_from is {path}, which is no directory; give the output of a pre-training, or "
            "a name that exlm models lists, and keep it until the run is finished (a run that goes "
            "on is compared with the weights it started from)"
        )
    check_model(path)
    return weight_hash(path)


def find_other_corpus(path: str, corpus: Corpus) -> Corpus | None:
    """The training sequences of a start, where they are another corpus than `corpus`. None if they
    are the same, if their tokens are others, or if the corpus is not there as it was recorded."""
    result = read_or_empty(Path(model_path(path)) / RUN_RESULT, "identity", "recipe")
    identity = result.get("identity", {})
    if identity.get("corpus") in (None, corpus.corpus_hash):
        return None
    try:
        trained_on = Corpus(result["recipe"]["data"]["corpus"], "train")
    except InputError:
        return None
    is_recorded = trained_on.corpus_hash == identity["corpus"]
    has_same_tokens = trained_on.tokenizer_hash == corpus.tokenizer_hash
    return trained_on if is_recorded and has_same_tokens else None


@torch.no_grad()
def take_weights(network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerBase, path: str) -> str:
    """Copies into `network`, a model for `tokenizer`, all rows of the weights in `path` that fit:
    the rows of tokens by the token's spelling, all others by their number. Objective, states per
    mask, layers and vocabulary may differ. Returns a line that says how much was taken of each
    module.

    InputError if `path` holds no pre-trained model of this library, or one of another width."""
    start, start_tokenizer = load_model(path, ExLMForMaskedLM)
    start_config = start.config
    config = network.config
    assert isinstance(start_config, ExLMConfig) and isinstance(config, ExLMConfig)
    _check_start(start_config, config, path)
    rows_of_shared_tokens = _find_shared_tokens(tokenizer, start_tokenizer)
    weights = dict(start.named_parameters())
    taken = Counter[str]()
    total = Counter[str]()
    for name, parameter in network.named_parameters():
        module = name.removeprefix("exlm.").split(".")[0]
        total[module] += len(parameter)
        source = weights.get(name)
        # Rows of the other transition, gated or single, have another length.
        if source is None or source.shape[1:] != parameter.shape[1:]:
            continue
        if name in ROWS_BY_TOKEN:
            rows, start_rows = rows_of_shared_tokens
        else:
            rows = start_rows = torch.arange(min(len(parameter), len(source)))
        parameter[rows] = source[start_rows]
        taken[module] += len(rows)
    counts = ", ".join(f"{module} {taken[module]} of {total[module]}" for module in total)
    notes = [
        f"; {name} is {getattr(config, name)} but was {getattr(start_config, name)}"
        for name in ROTARY_SETTINGS
        if getattr(config, name) != getattr(start_config, name)
    ]
    return f"start from {path}: rows of weights taken: {counts}{''.join(notes)}"


def _check_start(start: ExLMConfig, config: ExLMConfig, path: str) -> None:
    """Raises InputError unless the start is a pre-trained model of the same width."""
    if start.architectures != [ExLMForMaskedLM.__name__]:
        heads = ", ".join(start.architectures or ["a model without a head"])
        raise InputError(
            f"start_from is {path}, which holds {heads}; "
            "give the pre-trained model that it was made from"
        )
    for name in WIDTHS:
        size = getattr(config, name)
        start_size = getattr(start, name)
        if size != start_size:
            raise InputError(
                f"{name} is {size}, but {start_size} in the start {path}; "
                f"set model.{name} to {start_size}"
            )


def _find_shared_tokens(
    tokenizer: PreTrainedTokenizerBase, start: PreTrainedTokenizerBase
) -> tuple[Tensor, Tensor]:
    """The ids [n] of all tokens that both have: in `tokenizer`, and in `start`."""
    start_ids = start.get_vocab()
    shared = {token: row for token, row in tokenizer.get_vocab().items() if token in start_ids}
    start_rows = [start_ids[token] for token in shared]
    rows = torch.tensor([*shared.values()], dtype=torch.long)
    return rows, torch.tensor(start_rows, dtype=torch.long)
