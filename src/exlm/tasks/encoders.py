"""Any encoder on the same harness: ExLM, or a Hugging Face model with its tokenizer, by path or hub name."""

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from exlm.errors import InputError, first_line
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import fingerprint, load_model, load_tokenizer, verify
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.families import (
    Changes,
    dropouts,
    head_classes,
    in_its_words,
    longest_input,
    with_exact_heads,
    with_heads_of,
)


def check(name: str) -> str:
    """A fingerprint of a model's weights: SHA-256 of a directory's files, or the commit of a hub model.

    Raises InputError for what is neither, and for damaged files.
    """
    if Path(name).is_dir():
        verify(name)
        return fingerprint(name)
    commit = getattr(_config(name), "_commit_hash", None)
    return hashlib.sha256(f"{name} {commit}".encode()).hexdigest()


def load_encoder(
    name: str, head: str, hyper: FinetuneConfig, changes: Changes, from_scratch: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model with a new head, and its tokenizer, which returns just what the model takes.

    Args:
        name: directory or hub name.
        head: `classification` (and regression) or `question_answering`.
        hyper: dropout of encoder and head, whatever its family calls them, and the layers to read.
        changes: further settings.
        from_scratch: take only the configuration and initialise all weights from the global generator.

    Raises InputError for what cannot be loaded and for a tokenizer that does not fit.
    """
    config = _config(name)
    changes = changes | dropouts(config, hyper.dropout, hyper.pooler_dropout)
    if hyper.layers is not None:
        if config.model_type != "exlm":
            raise InputError(f"train.layers is for models of this library; leave it out for {config.model_type}")
        changes["task_layers"] = hyper.layers
    model_class = head_classes(config)[head == "question_answering"]
    if config.model_type == "exlm":
        encoder, tokenizer = load_model(name, ExLMModel, changes, from_scratch)
        model = model_class(encoder.config)
        _copy_encoder(encoder, model, name)
    else:
        tokenizer = _tokenizer(name, config)
        changes |= {"num_labels": 2} if head == "question_answering" else {}
        config.update(in_its_words(config, changes))
        model = model_class(config)
        if not from_scratch:
            model = with_heads_of(model, _read(name, partial(_pretrained, model_class, name, config)))
    return with_exact_heads(model), _fitted(tokenizer, model_class, config)


def load_finetuned(path: str, head: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned model as it was saved, head included."""
    config = _config(path)
    model_class = head_classes(config)[head == "question_answering"]
    if config.model_type == "exlm":
        own_model, tokenizer = load_model(path, model_class)
        return own_model, _fitted(tokenizer, model_class, config)
    model = _read(path, lambda: model_class.from_pretrained(path).float())
    return with_exact_heads(model), _fitted(_tokenizer(path, config), model_class, config)


def load_tokenizer_of(name: str) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer of a model, and the longest input that its absolute positions allow (None: no limit)."""
    config = _config(name)
    model_class = head_classes(config)[0]
    tokenizer = load_tokenizer(name) if config.model_type == "exlm" else _tokenizer(name, config)
    return _fitted(tokenizer, model_class, config), longest_input(config)


def task_facts(path: str) -> dict[str, Any]:
    """What a fine-tuned model remembers of its task.

    Raises InputError for a model that is not fine-tuned.
    """
    verify(path)
    facts = getattr(_config(path), "task", None)
    if facts is None:
        raise InputError(f"{path} is not fine-tuned; run exlm finetune and give its output directory")
    return facts


def take_encoder(model: PreTrainedModel, path: str) -> None:
    """Replaces the encoder of `model` by that of a fine-tuned model of the same architecture."""
    config = _config(path)
    if config.model_type != model.config.model_type:  # some families name their weights alike
        raise InputError(f"the encoder in {path} is another family's; start from a model of the same architecture")
    source = (
        load_model(path, ExLMModel)[0]
        if config.model_type == "exlm"
        else _read(path, lambda: _pretrained(AutoModel, path, config))
    )
    _copy_encoder(source, model, path)


def _copy_encoder(source: PreTrainedModel, model: PreTrainedModel, name: str) -> None:
    """The weights of a model without head. A pooler is copied where both have one."""
    try:
        missing = model.base_model.load_state_dict(source.state_dict(), strict=False).missing_keys
    except RuntimeError:
        missing = ["of this size"]
    if missing:
        raise InputError(f"the encoder in {name} has another architecture; start from a model of the same size")


def _fitted(
    tokenizer: PreTrainedTokenizerFast, model_class: type[PreTrainedModel], config: PreTrainedConfig
) -> PreTrainedTokenizerFast:
    """The tokenizer, so that it returns just what the model takes.

    That includes the types of tokens wherever both know them: not all tokenizers return them by themselves.
    """
    taken = inspect.signature(model_class.forward).parameters
    names = [name for name in tokenizer.model_input_names if name in taken and name != "token_type_ids"]
    largest = max(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"], default=0)
    if "token_type_ids" in taken and 0 < largest < getattr(config, "type_vocab_size", largest + 1):
        names.append("token_type_ids")
    tokenizer.model_input_names = names
    return tokenizer


def _config(name: str) -> PreTrainedConfig:
    if not Path(name).is_dir() and (name.count("/") > 1 or name.startswith(".")):  # not NAME or OWNER/NAME
        verify(name)
    try:
        return AutoConfig.from_pretrained(name)
    except Exception as error:  # no network, no such model, a damaged file
        if Path(name).is_dir():
            verify(name)
        raise InputError(
            f"no model could be loaded from {name} ({first_line(error)}); give a directory or hub name"
        ) from error


def _tokenizer(name: str, config: PreTrainedConfig) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise InputError(f"no tokenizer could be loaded from {name} ({first_line(error)})") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"the tokenizer {name} has no fast version (tokenizer.json); convert it to a fast one first")
    if tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer {name} has no pad token; add it and save the tokenizer again")
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer in {name} has {len(tokenizer)} tokens, the model's vocabulary {config.vocab_size}; they do "
            "not belong together"
        )
    return tokenizer


def _pretrained(model_class: Any, name: str, config: PreTrainedConfig) -> PreTrainedModel:
    return model_class.from_pretrained(name, config=config, ignore_mismatched_sizes=True).float()


def _read(name: str, load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    try:
        return load()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the model in {name} cannot be loaded: {first_line(error)}") from error
