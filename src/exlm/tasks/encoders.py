"""Any encoder on the same harness: ExLM, or a Hugging Face model with its tokenizer, by path or hub name."""

import hashlib
import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLNetForQuestionAnsweringSimple,
)

from exlm.data.tokenization import load_tokenizer
from exlm.directory import fingerprint, load_model, verify
from exlm.errors import InputError, first_line
from exlm.model.downstream import ExLMForQuestionAnswering, ExLMForSequenceClassification
from exlm.model.modeling_exlm import ExLMModel

Changes = dict[str, Any]
HEADS = ("classifier", "qa_outputs", "logits_proj")

POSITIONS_BEHIND_PADDING = ("roberta", "camembert", "longformer", "mpnet", "data2vec-text", "ibert", "xmod", "esm")

# The same two settings under the names of the model families.
ENCODER_DROPOUT = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "mlp_dropout",
    "embedding_dropout",
)
HEAD_DROPOUT = (
    "classifier_dropout",
    "classifier_dropout_prob",
    "pooler_dropout",
    "seq_classif_dropout",
    "qa_dropout",
    "summary_last_dropout",
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
    name: str, head: str, dropout: float | None, head_dropout: float | None, changes: Changes, from_scratch: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A model with a new head, and its tokenizer, which returns just what the model takes.

    Args:
        name: directory or hub name.
        head: `classification` (and regression) or `question_answering`.
        dropout: of the encoder, whatever its family calls it.
        head_dropout: of the head.
        changes: further settings.
        from_scratch: take only the configuration and initialise all weights from the global generator.

    Raises InputError for what cannot be loaded and for a tokenizer that does not fit.
    """
    config = _config(name)
    changes = changes | _dropouts(config, dropout, head_dropout)
    model_class = _classes(config)[head == "question_answering"]
    if config.model_type == "exlm":
        encoder, tokenizer = load_model(name, ExLMModel, changes, from_scratch)
        model = model_class(encoder.config)
        _copy_encoder(encoder, model, name)
    else:
        tokenizer = _tokenizer(name, config)
        changes |= {"num_labels": 2} if head == "question_answering" else {}
        config.update(_in_its_words(config, changes))
        model = model_class(config)
        if not from_scratch:
            model = _with_heads_of(model, _read(name, partial(_pretrained, model_class, name, config)))
    return _with_exact_heads(model), _fitted(tokenizer, model_class, config)


def load_finetuned(path: str, head: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned model as it was saved, head included."""
    config = _config(path)
    model_class = _classes(config)[head == "question_answering"]
    if config.model_type == "exlm":
        own_model, tokenizer = load_model(path, model_class)
        return own_model, _fitted(tokenizer, model_class, config)
    model = _read(path, lambda: model_class.from_pretrained(path).float())
    return _with_exact_heads(model), _fitted(_tokenizer(path, config), model_class, config)


def load_tokenizer_of(name: str) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer of a model, and the longest input that its absolute positions allow (None: no limit)."""
    config = _config(name)
    model_class = _classes(config)[0]
    tokenizer = load_tokenizer(name) if config.model_type == "exlm" else _tokenizer(name, config)
    return _fitted(tokenizer, model_class, config), _longest_input(config)


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


def _longest_input(config: PreTrainedConfig) -> int | None:
    limit = getattr(config, "max_position_embeddings", None) or -1
    if config.model_type in ("exlm", "modernbert") or limit < 0:  # rotary positions, or relative ones (XLNet: -1)
        return None
    late = any(family in config.model_type for family in POSITIONS_BEHIND_PADDING)
    return int(limit) - ((config.pad_token_id or 0) + 1 if late else 0)


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


def _dropouts(config: PreTrainedConfig, dropout: float | None, head_dropout: float | None) -> Changes:
    changes: Changes = {}
    for value, names in ((dropout, ENCODER_DROPOUT), (head_dropout, HEAD_DROPOUT)):
        changes |= {name: value for name in names if value is not None and hasattr(config, name)}
    if "deberta" in config.model_type and head_dropout is not None:
        changes["cls_dropout"] = head_dropout  # not in its configuration until it is set
    return changes


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


def _with_heads_of(fresh: PreTrainedModel, model: PreTrainedModel) -> PreTrainedModel:
    """A checkpoint that was fine-tuned before has a head already, which knows another task."""
    for name in HEADS:
        if hasattr(model, name):
            setattr(model, name, getattr(fresh, name))
    return model


def _read(name: str, load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    try:
        return load()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the model in {name} cannot be loaded: {first_line(error)}") from error


def _in_its_words(config: PreTrainedConfig, changes: Changes) -> Changes:
    """What the head reads goes by another name in some families; the others leave no choice."""
    if (pooling := changes.get("classifier_pooling")) is None:
        return changes
    if hasattr(config, "classifier_pooling"):
        return changes | {"classifier_pooling": "cls" if pooling == "first" else pooling}
    if pooling != "first":
        raise InputError(f"the head of {config.model_type} cannot read the {pooling} over tokens; set pooling to first")
    return {name: value for name, value in changes.items() if name != "classifier_pooling"}


def _with_exact_heads(model: PreTrainedModel) -> PreTrainedModel:
    """Heads leave autocast, as ExLM's do: logits in bfloat16 tie. So does the whole of DeBERTa, whose attention mask,
    the least float32, bfloat16 cannot hold."""
    if model.config.model_type == "deberta":
        _without_autocast(model)
    for name in HEADS:
        if isinstance(head := getattr(model, name, None), nn.Module):
            _without_autocast(head)
    return model


def _without_autocast(module: nn.Module) -> None:
    inner = module.forward

    @wraps(inner)
    def forward(*inputs: Any, **options: Any) -> Any:
        tensors = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
        device = next(module.parameters()).device.type
        with torch.autocast(device, enabled=False):
            return inner(*tensors, **options)

    module.forward = forward


def _classes(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
    """The family's classes for classification and for question answering."""
    if config.model_type == "exlm":
        return ExLMForSequenceClassification, ExLMForQuestionAnswering
    try:
        classification: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
        answering: Any = MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    except KeyError:
        raise InputError(
            f"{config.model_type} is no encoder that transformers can fine-tune; use another model"
        ) from None
    return classification, XLNetForQuestionAnsweringSimple if config.model_type == "xlnet" else answering
