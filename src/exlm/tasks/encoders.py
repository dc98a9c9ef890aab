"""Any encoder on the same harness: ExLM, or a Hugging Face model with its tokenizer, by path or hub name."""

import hashlib
import inspect
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLNetForQuestionAnsweringSimple,
)

from exlm.data.tokenization import load_tokenizer
from exlm.directory import fingerprint, load_model, verify
from exlm.errors import InputError
from exlm.model.downstream import ExLMForQuestionAnswering, ExLMForSequenceClassification
from exlm.model.modeling_exlm import ExLMPreTrainedModel

Changes = dict[str, Any]

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
    "summary_last_dropout",
    "cls_dropout",
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
    if config.model_type == "exlm":
        own: dict[str, type[ExLMPreTrainedModel]] = {
            "classification": ExLMForSequenceClassification,
            "question_answering": ExLMForQuestionAnswering,
        }
        own_model, tokenizer = load_model(name, own[head], changes, from_scratch)
        return own_model, _fitted(tokenizer, own[head])
    model = _foreign(name, config, head, changes, from_scratch)
    return model, _fitted(_tokenizer(name, config), type(model))


def load_tokenizer_of(name: str) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer of a model, and the longest input that its absolute positions allow (None: no limit)."""
    config = _config(name)
    model_class = ExLMForSequenceClassification if config.model_type == "exlm" else _classes(config)[0]
    tokenizer = load_tokenizer(name) if config.model_type == "exlm" else _tokenizer(name, config)
    return _fitted(tokenizer, model_class), _longest_input(config)


def load_finetuned(path: str, head: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned model as it was saved."""
    return load_encoder(path, head, None, None, {}, False)


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
    source, _ = load_finetuned(path, "classification")
    try:
        model.base_model.load_state_dict(source.base_model.state_dict())
    except RuntimeError:
        raise InputError(
            f"the encoder in {path} has another architecture; start from a model of the same size"
        ) from None


def _longest_input(config: PreTrainedConfig) -> int | None:
    limit = getattr(config, "max_position_embeddings", None)
    if config.model_type in ("exlm", "modernbert") or not limit:  # rotary positions
        return None
    return int(limit) - ((config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0)


def _fitted(tokenizer: PreTrainedTokenizerFast, model_class: type[PreTrainedModel]) -> PreTrainedTokenizerFast:
    """The tokenizer, so that it returns just what the model takes."""
    taken = inspect.signature(model_class.forward).parameters
    tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name in taken]
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
            f"no model could be loaded from {name} ({_first_line(error)}); give a directory or hub name"
        ) from error


def _dropouts(config: PreTrainedConfig, dropout: float | None, head_dropout: float | None) -> Changes:
    changes: Changes = {}
    for value, names in ((dropout, ENCODER_DROPOUT), (head_dropout, HEAD_DROPOUT)):
        changes |= {name: value for name in names if value is not None and hasattr(config, name)}
    return changes


def _tokenizer(name: str, config: PreTrainedConfig) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise InputError(f"no tokenizer could be loaded from {name} ({_first_line(error)})") from error
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


def _foreign(name: str, config: PreTrainedConfig, head: str, changes: Changes, from_scratch: bool) -> PreTrainedModel:
    config.update(changes)
    model_class = _classes(config)[head == "question_answering"]
    try:
        model = model_class(config) if from_scratch else model_class.from_pretrained(name, config=config)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the model in {name} cannot be loaded: {_first_line(error)}") from error
    return model.float()


def _classes(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
    """The family's classes for classification and for question answering."""
    try:
        classification: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
        answering: Any = MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    except KeyError:
        raise InputError(
            f"{config.model_type} is no encoder that transformers can fine-tune; use another model"
        ) from None
    return classification, XLNetForQuestionAnsweringSimple if config.model_type == "xlnet" else answering


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
