"""Loads encoders with a head for a task: ExLM or Hugging Face models with tokenizers, by directory
or hub name."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, update_wrapper
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as CLASSIFIERS
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from exlm.errors import InputError, first_line
from exlm.storage.models import check_name, fingerprint, load_fast_tokenizer, load_tokenizer, verify
from exlm.tasks.config import FinetuneConfig

# The model classes with one kind of head, by the class of their configuration:
# `MODEL_FOR_..._MAPPING` of transformers.
Models = Mapping[type[PreTrainedConfig], Any]

_FAMILIES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
HEADS, DROPOUT, POSITIONS_BEHIND_PADDING = _FAMILIES.values()


def encoder_fingerprint(name: str) -> str:
    """SHA-256 that identifies a model's weights: those of a directory's files, or the commit of a
    hub model."""
    if Path(name).is_dir():
        verify(name)
        return fingerprint(name)
    return hashlib.sha256(
        f"{name} {getattr(load_config(name), '_commit_hash', None)}".encode()
    ).hexdigest()


def load_encoder(
    name: str,
    models: Models,
    hyper: FinetuneConfig,
    settings: dict[str, Any],
    from_scratch: bool = False,
    start_from: str | None = None,
) -> PreTrainedModel:
    """A pre-trained model, by directory or hub name, with a new head. PyTorch's global generator
    draws its weights.

    `models` have the class of the model. Dropout, pooling and layers are those of `hyper`
    (InputError for what the family does not have); `settings` are further settings of the
    configuration. `from_scratch` draws all weights. `start_from` is the directory of a fine-tuned
    model of the same architecture, whose encoder is taken."""
    config = load_config(name)
    config.update(settings | _family_settings(config, models, hyper))
    drawn_first = (
        AutoModel.from_config(config) if from_scratch and config.model_type == "exlm" else None
    )
    fresh = model = _model_class(config, models)(config)
    # weights are drawn in this order, so that a seed always gives the same model
    if drawn_first is not None:
        model.exlm = drawn_first
    if not from_scratch:
        model = _from_pretrained(_model_class(config, models), name, config, new_head=True)
        # a checkpoint that was fine-tuned before has the head of another task
        for attribute in HEADS:
            if hasattr(model, attribute):
                setattr(model, attribute, getattr(fresh, attribute))
    if start_from:
        _copy_encoder(start_from, model)
    return _with_exact_head(model)


def load_finetuned(path: str, models: Models) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned model as it was saved, head included, and its tokenizer."""
    verify(path)
    config = load_config(path)
    model = _from_pretrained(_model_class(config, models), path, config)
    return _with_exact_head(model), load_encoder_tokenizer(path)[0]


def saved_task(path: str) -> dict[str, Any]:
    """What was saved with a fine-tuned model about its task."""
    verify(path)
    task = getattr(load_config(path), "task", None)
    if task is None:
        raise InputError(
            f"{path} is not fine-tuned; run exlm finetune and give its output directory"
        )
    return task


def fold_units(model: PreTrainedModel, task: dict[str, Any]) -> dict[str, Any]:
    """Makes the last layer of a regression model return real units; returns the task with mean 0
    and std 1."""
    mean, std = (torch.tensor(task[name], dtype=torch.float64) for name in ("mean", "std"))
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not layers or layers[-1].bias is None or layers[-1].out_features != len(mean):
        print(
            f"note: the head of {model.config.model_type} stays standardised; use exlm predict, not pipelines"
        )
        return task
    with torch.no_grad():
        weight, bias = (values.cpu().double() for values in (layers[-1].weight, layers[-1].bias))
        layers[-1].weight.copy_(weight * std[:, None])
        layers[-1].bias.copy_(bias * std + mean)
    return task | {"mean": [0.0] * len(mean), "std": [1.0] * len(std)}


def load_encoder_tokenizer(
    name: str, max_length: int = 10**9
) -> tuple[PreTrainedTokenizerFast, int]:
    """A model's tokenizer, and `max_length` or, if smaller, the most tokens that its absolute
    positions allow. The tokenizer returns only what the model takes, and token_type_ids if both the
    model and the tokenizer have them."""
    config = load_config(name)
    exlm = config.model_type == "exlm"
    tokenizer = load_tokenizer(name) if exlm else load_fast_tokenizer(name)
    if tokenizer.pad_token_id is None:
        raise InputError(
            f"the tokenizer {name} has no pad token; add it and save the tokenizer again"
        )
    if len(tokenizer) > config.vocab_size or (
        exlm and tokenizer.mask_token_id != config.mask_token_id
    ):
        sizes = f"{len(tokenizer)} tokens (mask {tokenizer.mask_token_id}), the model {config.vocab_size}"
        raise InputError(f"{name}: the tokenizer has {sizes}; they do not belong together")
    taken = inspect.signature(_model_class(config, CLASSIFIERS).forward).parameters
    names = [
        entry
        for entry in tokenizer.model_input_names
        if entry in taken and entry != "token_type_ids"
    ]
    largest = max(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"], default=0)
    if "token_type_ids" in taken and 0 < largest < getattr(config, "type_vocab_size", largest + 1):
        names.append("token_type_ids")
    tokenizer.model_input_names = names
    # is saved with the tokenizer, so that pipelines use it too
    tokenizer.init_kwargs["model_input_names"] = names
    limit = getattr(config, "max_position_embeddings", None) or -1
    # rotary positions, or relative ones (XLNet: -1)
    if config.model_type in ("exlm", "modernbert") or limit < 0:
        return tokenizer, max_length
    late = any(family in config.model_type for family in POSITIONS_BEHIND_PADDING)
    return tokenizer, min(max_length, limit - ((config.pad_token_id or 0) + 1 if late else 0))


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of a model, by directory or hub name; InputError if there is none or it is
    damaged."""
    try:
        check_name(name)
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # no network, no such model, a damaged file
        # not NAME or OWNER/NAME
        if Path(name).is_dir() or name.count("/") > 1 or name.startswith((".", "/", "~")):
            verify(name)
        message = f"no model could be loaded from {name} ({first_line(error)}); give a directory or hub name"
        raise InputError(message) from error


def _model_class(config: PreTrainedConfig, models: Models) -> Any:
    if type(config) not in models:
        raise InputError(
            f"{config.model_type} is no encoder that transformers can fine-tune; use another model"
        )
    return models[type(config)]


def _from_pretrained(
    model_class: Any, name: str, config: PreTrainedConfig, new_head: bool = False
) -> PreTrainedModel:
    """A model in float32. Weights of another size in the file are an InputError, unless a new head
    replaces them."""
    options = dict(config=config, ignore_mismatched_sizes=True, output_loading_info=True)
    try:
        model, found = model_class.from_pretrained(name, **options)
    except (
        OSError,
        ValueError,
        RuntimeError,
        ImportError,
        SafetensorError,
        UnpicklingError,
    ) as error:
        raise InputError(
            f"the model in {name} cannot be loaded: {first_line(error)}; use another"
        ) from error
    for weight, size, expected in sorted(found["mismatched_keys"]):
        if not (new_head and set(HEADS) & set(weight.split("."))):
            raise InputError(
                f"{name}: {weight} has size {[*size]}, by config.json {[*expected]}; restore one of them"
            )
    return model.float()


def _copy_encoder(path: str, model: PreTrainedModel) -> None:
    """Replaces the encoder by that of a fine-tuned model. A pooler is copied if both models have
    one."""
    config = load_config(path)
    with suppress(RuntimeError):  # weights of another size
        if config.model_type == model.config.model_type:  # some families name their weights alike
            weights = _from_pretrained(AutoModel, path, config).state_dict()
            if not model.base_model.load_state_dict(weights, strict=False).missing_keys:
                return
    raise InputError(
        f"the encoder in {path} has another architecture; start from a model of its family and size"
    )


def _family_settings(
    config: PreTrainedConfig, models: Models, hyper: FinetuneConfig
) -> dict[str, Any]:
    """Those hyper-parameters that are settings of a model, under the names that the model's family
    gives to them."""
    family, settings = config.model_type, dict[str, Any]()
    for rate, names in DROPOUT.items():
        if (value := getattr(hyper, rate)) is not None:
            settings |= {name: value for name in names if hasattr(config, name)}
    if "deberta" in family and hyper.pooler_dropout is not None:
        settings["cls_dropout"] = hyper.pooler_dropout  # not in its configuration until it is set
    if family == "exlm":
        settings["task_layers"] = hyper.layers or config.num_hidden_layers
    elif hyper.layers is not None:
        raise InputError(f"train.layers is for models of this library; leave it out for {family}")
    if models is not CLASSIFIERS:  # other heads read every token
        return settings
    if hasattr(config, "classifier_pooling"):
        cls = hyper.pooling == "first" and family != "exlm"
        return settings | {"classifier_pooling": "cls" if cls else hyper.pooling}
    if hyper.pooling != "first":
        raise InputError(
            f"the head of {family} cannot read the {hyper.pooling} over tokens; set pooling to first"
        )
    return settings


def _with_exact_head(model: PreTrainedModel) -> PreTrainedModel:
    """Lets a model's head compute in float32, because many bfloat16 logits would be equal. DeBERTa
    is float32 as a whole: its attention mask uses the lowest float32 number, which bfloat16 cannot
    hold."""
    whole = [model] if model.config.model_type == "deberta" else []
    for module in [*whole, *(getattr(model, name) for name in HEADS if hasattr(model, name))]:
        module.forward = update_wrapper(
            partial(_in_float32, module, module.forward), module.forward
        )
    return model


def _in_float32(module: nn.Module, forward: Callable, *inputs: Any, **options: Any) -> Any:
    inputs = tuple(
        x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs
    )
    with torch.autocast(next(module.parameters()).device.type, enabled=False):
        return forward(*inputs, **options)
