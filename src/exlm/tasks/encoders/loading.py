"""Loads encoders and their tokenizers, ExLM or Hugging Face models by directory or hub name: with a
new head for a task (`EncoderSource`), or as they were fine-tuned (`load_finetuned`)."""

import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from exlm.data.columns import listed
from exlm.errors import InputError, first_line, note
from exlm.storage.models import check_model, check_tokenizer, weight_hash
from exlm.storage.shipped import model_path
from exlm.storage.tokenizers import check_exists, load_fast_tokenizer, load_tokenizer
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.encoders.saved_task import SavedTask, read_saved_task
from exlm.tasks.results import best_seed_directory

# The model classes of a head, by the class of their configuration. All task types that are not in
# OTHER_HEADS have the head for classes and numbers of whole texts.
CLASSIFIERS = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
OTHER_HEADS = {
    "token_classification": MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "question_answering": MODEL_FOR_QUESTION_ANSWERING_MAPPING,
}

_FAMILIES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
HEADS: list[str] = _FAMILIES["heads"]
DROPOUT: dict[str, list[str]] = _FAMILIES["settings"]
POSITIONS_BEHIND_PADDING: list[str] = _FAMILIES["positions_behind_padding"]
WITHOUT_POSITIONS: list[str] = _FAMILIES["without_positions"]


def encoder_hash(name: str) -> str:
    """SHA-256 that identifies a model's weights: of the files of a directory, or of the commit of a
    hub model."""
    if Path(model_path(name)).is_dir():
        check_model(name)
        return weight_hash(name)
    commit = getattr(load_config(name), "_commit_hash", None)
    return hashlib.sha256(f"{name} {commit}".encode()).hexdigest()


@dataclass(frozen=True)
class EncoderSource:
    """Where the encoder of a fine-tuning comes from."""

    name: str  # directory or hub name of a pre-trained model
    from_scratch: bool = False  # whether to draw all weights anew
    device: str = "auto"  # where it is trained

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return load_encoder_tokenizer(self.name)

    def limit_length(self, max_length: int) -> int:
        """`max_length` or, if smaller, the most tokens that its absolute positions allow."""
        return min(max_length, _most_tokens(load_config(self.name)) or max_length)

    @property
    def earlier_run(self) -> Path | None:
        """The directory of the fine-tuned model that has the encoder; None if the encoder is only
        pre-trained, or drawn anew."""
        if self.from_scratch or read_saved_task(load_config(self.name)) is None:
            return None
        return best_seed_directory(self.name)

    def check_hyper(self, task_type: str | None, hyper: FinetuneConfig) -> None:
        """InputError for hyper-parameters that the family does not have for such a task."""
        _family_hyper(load_config(self.name), task_type, hyper)

    def load(
        self, saved_task: SavedTask, hyper: FinetuneConfig, head_settings: dict[str, Any]
    ) -> PreTrainedModel:
        """The encoder with a new head for a task. PyTorch's global generator draws random weights.

        `hyper` says dropout, pooling and layers (InputError for what the family does not have), and
        `head_settings` go into the configuration."""
        config = load_config(self.name)
        family_hyper = _family_hyper(config, saved_task.task_type, hyper)
        config.update({"task": saved_task.to_json(), **head_settings, **family_hyper})
        model_class = _model_class(config, saved_task.task_type)
        # Its head is drawn before the encoder is loaded, which may draw numbers too, so that a seed
        # always gives the same head.
        random_network = model_class(config)
        if self.from_scratch:
            return _with_exact_head(random_network)
        network = _from_pretrained(model_class, self.name, config, new_head=True)
        for name, module in random_network.named_children():
            if name in HEADS:  # replaces a head of the checkpoint, too
                setattr(network, name, module)
        return _with_exact_head(network)


def load_finetuned(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A fine-tuned network as it was saved, head included, and its tokenizer."""
    task_type = load_saved_task(path).task_type
    config = load_config(path)
    network = _from_pretrained(_model_class(config, task_type), path, config)
    return _with_exact_head(network), load_encoder_tokenizer(path)


def load_saved_task(path: str) -> SavedTask:
    """The task that is saved with a fine-tuned model; InputError if it is not fine-tuned."""
    check_model(path)
    saved_task = read_saved_task(load_config(path))
    if saved_task is None:
        raise InputError(
            f"{path} was not made by exlm finetune; give the output directory of one (pipelines of "
            "transformers take other models, docs/howto/other-tools.md)"
        )
    return saved_task


def load_encoder_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A model's tokenizer, which returns only what the model takes."""
    config = load_config(name)
    load = load_tokenizer if config.model_type == "exlm" else load_fast_tokenizer
    tokenizer = load(name)
    if tokenizer.pad_token_id is None:
        raise InputError(
            f"the tokenizer {name} has no pad token; add it and save the tokenizer again"
        )
    check_tokenizer(name, config, tokenizer)
    names = _shared_inputs(tokenizer, config)
    tokenizer.model_input_names = names
    # `init_kwargs` is saved with the tokenizer, so that pipelines use the names too.
    tokenizer.init_kwargs["model_input_names"] = names
    return tokenizer


def _shared_inputs(tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig) -> list[str]:
    """The names of the inputs that both a tokenizer and the model have; token_type_ids among them
    if they tell a second text from the first, by ids that the model knows."""
    accepted = inspect.signature(_model_class(config).forward).parameters
    shared = [name for name in tokenizer.model_input_names if name in accepted]
    names = [name for name in shared if name != "token_type_ids"]
    types_of_pair = tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"]
    most_types = 1 if config.model_type == "exlm" else getattr(config, "type_vocab_size", math.inf)
    if "token_type_ids" in accepted and 0 < max(types_of_pair, default=0) < most_types:
        names.append("token_type_ids")
    return names


def _most_tokens(config: PreTrainedConfig) -> int | None:
    """How many tokens the absolute positions of a model allow; None for rotary and relative ones
    (XLNet says -1)."""
    positions = getattr(config, "max_position_embeddings", None) or -1
    if config.model_type in WITHOUT_POSITIONS or positions < 0:
        return None
    if any(family in config.model_type for family in POSITIONS_BEHIND_PADDING):
        return positions - (config.pad_token_id or 0) - 1
    return positions


def load_config(name: str) -> PreTrainedConfig:
    """The configuration of a model, by directory or hub name; InputError if there is none or it is
    damaged."""
    try:
        directory_or_name = model_path(name)
        check_exists(directory_or_name)
        return AutoConfig.from_pretrained(directory_or_name, trust_remote_code=False)
    except Exception as error:  # no network, no such model, a damaged file
        is_path = name.count("/") > 1 or name.startswith((".", "/", "~"))
        if is_path or Path(name).is_dir():
            check_model(name)
        raise InputError(
            f"no model could be loaded from {name} ({first_line(error)}); give a directory or hub "
            f"name"
        ) from error


def _model_class(config: PreTrainedConfig, task_type: str = "") -> Any:
    """The class of the models of a family with the head of a task type."""
    model_classes = OTHER_HEADS.get(task_type, CLASSIFIERS)
    if type(config) not in model_classes:
        raise InputError(
            f"transformers has no head of this task for {config.model_type}; use another model"
        )
    return model_classes[type(config)]


def _from_pretrained(
    model_class: Any, name: str, config: PreTrainedConfig, new_head: bool = False
) -> PreTrainedModel:
    """A network in float32. InputError if a weight in the file has another size, unless a new head
    replaces it. Prints which weights are not in the file, but for heads."""
    path = model_path(name)
    try:
        network, loading = model_class.from_pretrained(
            path, config=config, ignore_mismatched_sizes=True, output_loading_info=True
        )
    except Exception as error:  # damaged files raise anything
        raise InputError(
            f"the model in {name} cannot be loaded: {first_line(error)}; use another"
        ) from error
    for weight, size, expected in sorted(loading["mismatched_keys"]):
        is_replaced = new_head and not set(HEADS).isdisjoint(weight.split("."))
        if not is_replaced:
            raise InputError(
                f"{name}: {weight} has size {[*size]}, by config.json {[*expected]}; restore one "
                f"of them"
            )
    new_weights = [key for key in loading["missing_keys"] if set(HEADS).isdisjoint(key.split("."))]
    if new_weights:
        weights = listed(sorted(new_weights), limit=3)
        note(f"{name} has no weights for {weights}; they are random")
    return network.float()


def _family_hyper(
    config: PreTrainedConfig, task_type: str | None, hyper: FinetuneConfig
) -> dict[str, Any]:
    """The hyper-parameters that a configuration has, by the names that its family gives them."""
    family = config.model_type
    family_hyper: dict[str, Any] = {}
    for rate, names in DROPOUT.items():
        value = getattr(hyper, rate)
        if value is not None:
            family_hyper |= {name: value for name in names if hasattr(config, name)}
    if "deberta" in family and hyper.pooler_dropout is not None:
        # The configuration does not have this setting until it is set.
        family_hyper["cls_dropout"] = hyper.pooler_dropout
    if family == "exlm":
        family_hyper["task_layers"] = hyper.layers or config.num_hidden_layers
    elif hyper.layers is not None:
        raise InputError(f"train.layers is for models of this library; leave it out for {family}")
    if task_type not in OTHER_HEADS and hasattr(config, "classifier_pooling"):
        # What ExLM calls the first state is CLS for ModernBERT.
        first_is_cls = hyper.pooling == "first" and family != "exlm"
        family_hyper["classifier_pooling"] = "cls" if first_is_cls else hyper.pooling
    elif hyper.pooling != "first":
        raise InputError(
            f"train.pooling is for classes and numbers of whole texts, read by ExLM or ModernBERT; "
            f"leave it out for this head of {family}, which reads the first state or every token"
        )
    return family_hyper


def _with_exact_head(network: PreTrainedModel) -> PreTrainedModel:
    """Lets a network's head compute in float32, because many bfloat16 logits would be equal.
    DeBERTa is float32 as a whole: its attention mask uses the lowest float32 number, which bfloat16
    cannot hold."""
    modules = [module for name, module in network.named_children() if name in HEADS]
    if network.config.model_type == "deberta":
        modules.append(network)
    for module in modules:
        forward = module.forward
        module.forward = update_wrapper(partial(_in_float32, module, forward), forward)
    return network


def _in_float32(module: nn.Module, forward: Callable, *inputs: Any, **options: Any) -> Any:
    exact_inputs = [
        value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    with torch.autocast(next(module.parameters()).device.type, enabled=False):
        return forward(*exact_inputs, **options)
