"""Any encoder with a head for a task: ExLM, or a Hugging Face model with its tokenizer, by directory or hub name."""

import hashlib
import inspect
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    XLNetForQuestionAnsweringSimple,
)

from exlm.errors import InputError, first_line
from exlm.model.modeling_exlm import ExLMModel
from exlm.pretrained import fingerprint, load_fast_tokenizer, load_model, load_tokenizer, verify
from exlm.tasks.config import FinetuneConfig

Head = Literal["classification", "question_answering"]  # regression has a head of the first kind

HEADS = ("classifier", "qa_outputs", "logits_proj")  # attributes that hold the head, in all families
# Dropout of the encoder and of the head, under the names that the families give to them.
ENCODER_DROPOUT = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "mlp_dropout",
    "embedding_dropout",
)  # fmt: skip
HEAD_DROPOUT = (
    "classifier_dropout", "classifier_dropout_prob", "pooler_dropout", "seq_classif_dropout", "qa_dropout",
    "summary_last_dropout",
)  # fmt: skip
# Families whose first position comes after the index of the padding token.
POSITIONS_BEHIND_PADDING = ("roberta", "camembert", "longformer", "mpnet", "data2vec-text", "ibert", "xmod", "esm")


def encoder_fingerprint(name: str) -> str:
    """SHA-256 that identifies a model's weights: those of a directory's files, or the commit of a hub model.

    Raises:
        InputError: for what is neither, and for damaged files.
    """
    if Path(name).is_dir():
        verify(name)
        return fingerprint(name)
    commit = getattr(_config(name), "_commit_hash", None)
    return hashlib.sha256(f"{name} {commit}".encode()).hexdigest()


def load_encoder(
    name: str,
    head: Head,
    hyper: FinetuneConfig,
    settings: dict[str, Any],
    from_scratch: bool = False,
    start_from: str | None = None,
) -> PreTrainedModel:
    """A pre-trained model with a new head, drawn from the global generator.

    Args:
        name: directory or hub name.
        head: of the model.
        hyper: dropout of encoder and head, and the number of layers that the head reads.
        settings: further settings of the model's configuration.
        from_scratch: take only the configuration, and draw all weights from the global generator.
        start_from: directory of a fine-tuned model of the same architecture, whose encoder replaces that of `name`.

    Raises:
        InputError: for what cannot be loaded, and for settings that the model's family does not have.
    """
    config = _config(name)
    model_class = _model_class(config, head)
    settings = settings | _dropout_settings(config, hyper) | ({"num_labels": 2} if head != "classification" else {})
    if config.model_type == "exlm":
        settings |= {} if hyper.layers is None else {"task_layers": hyper.layers}
        # From scratch, the encoder is drawn before the head. The order is kept so that a seed gives the same model.
        encoder, _ = load_model(name, ExLMModel, settings, from_scratch)
        model = model_class(encoder.config)
        _copy_encoder(encoder, model, name)
    else:
        if hyper.layers is not None:
            raise InputError(f"train.layers is for models of this library; leave it out for {config.model_type}")
        config.update(_with_family_pooling(config, settings))
        fresh = model = model_class(config)
        if not from_scratch:
            model = _from_pretrained(model_class, name, config, new_head=True)
            for attribute in HEADS:  # a checkpoint that was fine-tuned before has the head of another task
                if hasattr(model, attribute):
                    setattr(model, attribute, getattr(fresh, attribute))
    if start_from:
        other = _config(start_from)
        if other.model_type != config.model_type:  # some families name their weights alike
            raise InputError(
                f"the encoder in {start_from} is another family's; start from a model of the same architecture"
            )
        _copy_encoder(_from_pretrained(AutoModel, start_from, other, new_head=True), model, start_from)
    return _with_exact_head(model)


def load_finetuned(path: str, head: Head) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned model as it was saved, head included, and its tokenizer."""
    verify(path)
    config = _config(path)
    model_class = _model_class(config, head)
    if config.model_type == "exlm":
        model, _ = load_model(path, model_class)
    else:
        model = _from_pretrained(model_class, path, config)
    return _with_exact_head(model), load_encoder_tokenizer(path)[0]


def saved_task(path: str) -> dict[str, Any]:
    """What a fine-tuned model remembers of its task.

    Raises:
        InputError: for a model that is not fine-tuned.
    """
    verify(path)
    task = getattr(_config(path), "task", None)
    if task is None:
        raise InputError(f"{path} is not fine-tuned; run exlm finetune and give its output directory")
    return task


def load_encoder_tokenizer(name: str) -> tuple[PreTrainedTokenizerFast, int | None]:
    """A model's tokenizer, and the longest input in tokens that absolute positions allow (None: no limit).

    The tokenizer returns just what the model takes. That includes the types of tokens wherever both know them, which
    not all tokenizers return by themselves.
    """
    config = _config(name)
    tokenizer = load_tokenizer(name) if config.model_type == "exlm" else load_fast_tokenizer(name)
    if tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer {name} has no pad token; add it and save the tokenizer again")
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer in {name} has {len(tokenizer)} tokens, the model's vocabulary {config.vocab_size}; they do "
            "not belong together"
        )
    taken = inspect.signature(_model_class(config, "classification").forward).parameters
    names = [entry for entry in tokenizer.model_input_names if entry in taken and entry != "token_type_ids"]
    largest = max(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"], default=0)
    if "token_type_ids" in taken and 0 < largest < getattr(config, "type_vocab_size", largest + 1):
        names.append("token_type_ids")
    tokenizer.model_input_names = names
    limit = getattr(config, "max_position_embeddings", None) or -1
    if config.model_type in ("exlm", "modernbert") or limit < 0:  # rotary positions, or relative ones (XLNet: -1)
        return tokenizer, None
    late = any(family in config.model_type for family in POSITIONS_BEHIND_PADDING)
    return tokenizer, int(limit) - ((config.pad_token_id or 0) + 1 if late else 0)


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


def _model_class(config: PreTrainedConfig, head: Head) -> type[PreTrainedModel]:
    if config.model_type == "xlnet" and head == "question_answering":
        return XLNetForQuestionAnsweringSimple  # the other one has no plain start and end logits
    classification = head == "classification"
    mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if classification else MODEL_FOR_QUESTION_ANSWERING_MAPPING
    try:
        found: Any = mapping[type(config)]
        return found
    except KeyError:
        raise InputError(
            f"{config.model_type} is no encoder that transformers can fine-tune; use another model"
        ) from None


def _from_pretrained(model_class: Any, name: str, config: PreTrainedConfig, new_head: bool = False) -> PreTrainedModel:
    """A model in float32; only where its head is going to be replaced may weights have another size."""
    try:
        return model_class.from_pretrained(name, config=config, ignore_mismatched_sizes=new_head).float()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the model in {name} cannot be loaded: {first_line(error)}") from error


def _copy_encoder(source: PreTrainedModel, model: PreTrainedModel, name: str) -> None:
    """Copies the weights of a model without head. A pooler is copied where both have one."""
    try:
        missing = model.base_model.load_state_dict(source.state_dict(), strict=False).missing_keys
    except RuntimeError:
        missing = ["of this size"]
    if missing:
        raise InputError(f"the encoder in {name} has another architecture; start from a model of the same size")


def _dropout_settings(config: PreTrainedConfig, hyper: FinetuneConfig) -> dict[str, Any]:
    """Dropout of encoder and head under the names of the family's settings."""
    settings: dict[str, Any] = {}
    for value, names in ((hyper.dropout, ENCODER_DROPOUT), (hyper.pooler_dropout, HEAD_DROPOUT)):
        settings |= {name: value for name in names if value is not None and hasattr(config, name)}
    if "deberta" in config.model_type and hyper.pooler_dropout is not None:
        settings["cls_dropout"] = hyper.pooler_dropout  # not in its configuration until it is set
    return settings


def _with_family_pooling(config: PreTrainedConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with what the head reads in the words of the family; most families leave no choice."""
    others = {name: value for name, value in settings.items() if name != "classifier_pooling"}
    pooling = settings.get("classifier_pooling")
    if pooling is not None and hasattr(config, "classifier_pooling"):
        return others | {"classifier_pooling": "cls" if pooling == "first" else pooling}
    if pooling not in (None, "first"):
        raise InputError(f"the head of {config.model_type} cannot read the {pooling} over tokens; set pooling to first")
    return others


def _with_exact_head(model: PreTrainedModel) -> PreTrainedModel:
    """The model with a head that computes in float32: bfloat16 logits would tie. DeBERTa is float32 as a whole, because
    bfloat16 cannot hold the lowest float32, which its attention mask is made of."""
    modules = [getattr(model, name, None) for name in HEADS]
    for module in [model if model.config.model_type == "deberta" else None, *modules]:
        if isinstance(module, nn.Module):
            _without_autocast(module)
    return model


def _without_autocast(module: nn.Module) -> None:
    inner = module.forward

    @wraps(inner)
    def forward(*inputs: Any, **options: Any) -> Any:
        tensors = [x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
        with torch.autocast(next(module.parameters()).device.type, enabled=False):
            return inner(*tensors, **options)

    module.forward = forward
