"""What differs between the families of Hugging Face encoders: names of settings, limits, heads."""

from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    XLNetForQuestionAnsweringSimple,
)

from exlm.errors import InputError
from exlm.model.downstream import ExLMForQuestionAnswering, ExLMForSequenceClassification

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


def dropouts(config: PreTrainedConfig, dropout: float | None, head_dropout: float | None) -> Changes:
    """Dropout of encoder and head under the names of the family's settings."""
    changes: Changes = {}
    for value, names in ((dropout, ENCODER_DROPOUT), (head_dropout, HEAD_DROPOUT)):
        changes |= {name: value for name in names if value is not None and hasattr(config, name)}
    if "deberta" in config.model_type and head_dropout is not None:
        changes["cls_dropout"] = head_dropout  # not in its configuration until it is set
    return changes


def longest_input(config: PreTrainedConfig) -> int | None:
    """Most tokens that absolute positions allow; None where positions are relative."""
    limit = getattr(config, "max_position_embeddings", None) or -1
    if config.model_type in ("exlm", "modernbert") or limit < 0:  # rotary positions, or relative ones (XLNet: -1)
        return None
    late = any(family in config.model_type for family in POSITIONS_BEHIND_PADDING)
    return int(limit) - ((config.pad_token_id or 0) + 1 if late else 0)


def in_its_words(config: PreTrainedConfig, changes: Changes) -> Changes:
    """What the head reads goes by another name in some families; the others leave no choice."""
    if (pooling := changes.get("classifier_pooling")) is None:
        return changes
    if hasattr(config, "classifier_pooling"):
        return changes | {"classifier_pooling": "cls" if pooling == "first" else pooling}
    if pooling != "first":
        raise InputError(f"the head of {config.model_type} cannot read the {pooling} over tokens; set pooling to first")
    return {name: value for name, value in changes.items() if name != "classifier_pooling"}


def with_heads_of(fresh: PreTrainedModel, model: PreTrainedModel) -> PreTrainedModel:
    """A checkpoint that was fine-tuned before has a head already, which knows another task."""
    for name in HEADS:
        if hasattr(model, name):
            setattr(model, name, getattr(fresh, name))
    return model


def with_exact_heads(model: PreTrainedModel) -> PreTrainedModel:
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


def head_classes(config: PreTrainedConfig) -> tuple[type[PreTrainedModel], type[PreTrainedModel]]:
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
