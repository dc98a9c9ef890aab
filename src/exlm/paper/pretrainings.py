"""A finished pre-training, as the report reads it from its files. What earlier versions left out or
called otherwise is made equal here to what is written now."""

import copy
import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.batching import share_bounds
from exlm.data.corpus import corpus_name
from exlm.identity import DEFAULTS, identity_of
from exlm.paper.display import COMPARABLE, DISPLAY, HELD_OUT, SWITCHES, Model, title
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule

Json = dict[str, Any]  # the content of a file
Numbers = dict[str, list[float]]  # by quantity, in the unit of the tables; one for each seed

# What a run did whose identity lacks a setting.
USUAL_VALUES: Json = {
    **identity_of(ArchitectureConfig(), "model"),
    **identity_of(PriorSchedule(), "prior"),
    **DEFAULTS,
    "transition_warmup": 0,
}


class Pretraining:
    """A pre-training that finished, from the content of its result.json. KeyError, TypeError or
    ValueError: the file is damaged; InputError: a setting is unknown.

    Attributes:
        id: the first digits of the hash of its identity.
        path, first_path: its directory, now and when it was written.
        study: the directory of the analysis that it belongs to, if any.
        seeds: a list of its `seed`.
        steps: the number of updates.
        model: which of the models that the experiments compare it is.
        settings: the settings that comparable runs share, with their values in JSON.
        exlm_only: those that it uses and an MLM may lack, with their values.
        numbers: its hours, and its numbers on held-out data.
        result: the most important of these, in words.
        weights: the SHA-256 of its weights, if it is known."""

    weights: str | None = None

    def __init__(self, path: Path, content: Json) -> None:
        recipe = content["recipe"]
        data = recipe["data"]
        identity = content["identity"]
        studies = (parent.parent for parent in path.parents if parent.name == "pretrain")
        self.id = short_hash(identity)
        self.path = path
        self.first_path = Path(recipe.get("output", path))
        self.study = next(studies, None)
        self.device = device_of(content)
        self.seed = int(recipe["seed"])
        self.seeds = [self.seed]
        self.steps = int(recipe["train"]["steps"])
        self.hours = float(content["training_seconds"]) / 3600
        self.corpus = corpus_name(data["corpus"])
        self.tokens_per_batch = int(data["tokens_per_batch"])

        # The model
        names = {entry.name for entry in fields(ArchitectureConfig)} & recipe["model"].keys()
        architecture = ArchitectureConfig(**{name: recipe["model"][name] for name in names})
        low, high = share_bounds(data["mask_ratio"])
        self.size = f"{architecture.num_hidden_layers} layers × {architecture.hidden_size}"
        self.parameters = int(content["parameters"])
        self.model = Model(
            method=method_of(architecture),
            k=architecture.states_per_mask,
            p=(low + high) / 2,
            r=int(data.get("repeat", 1)),
        )

        # What decides whether runs are compared
        shared = identity.keys() - {*COMPARABLE["exlm_only"], *COMPARABLE["varied"]}
        settings = {name: identity[name] for name in shared}
        if low < high:
            # Such runs are compared among themselves, as models with their mean share.
            settings["data.mask_ratio"] = (low, high)
        self.settings = frozenset((name, json.dumps(value)) for name, value in settings.items())
        self.exlm_only = _exlm_only(architecture, identity)

        held_out = held_out_numbers(path, {"evaluation": content["evaluation"]})
        listed = [name for name in DISPLAY["listed"] if name in held_out]
        self.numbers: Numbers = {"training/hours": [self.hours], **held_out}
        self.result = ", ".join(f"{title(name)} {held_out[name][0]:.2f}" for name in listed)

    def as_model(self, model: Model) -> "Pretraining":
        """The same run in a group where it is another model."""
        run = copy.copy(self)
        run.model = model
        return run


def method_of(architecture: ArchitectureConfig) -> str:
    """The method with the most switches of those that an architecture has, or the name of an
    objective that the paper does not have."""
    has = vars(architecture).items()
    methods = [method for method, switches in SWITCHES.items() if switches.items() <= has]
    return max(methods, key=lambda method: len(SWITCHES[method]), default=architecture.objective)


def _exlm_only(architecture: ArchitectureConfig, identity: Json) -> frozenset[tuple[str, Any]]:
    """The settings `exlm_only` (comparable.yaml) that an architecture uses, with their values."""
    settings = set()
    for name, user in COMPARABLE["exlm_only"].items():
        # The ablation of 2D RoPE belongs to runs with either kind of positions.
        is_used = getattr(architecture, user) if user else architecture.rotary != "1d"
        if is_used:
            value = identity.get(name, USUAL_VALUES[name])
            settings.add((name, tuple(value) if isinstance(value, list) else value))
    return frozenset(settings)


def held_out_numbers(_: Path, content: Json) -> Numbers:
    """The numbers on held-out data that a file has, and the standard errors of these."""
    # Keys are then such as `entropy/mean`.
    by_place = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    numbers: Numbers = {}
    for quantity, entry in HELD_OUT.items():
        # The entropy is null if every token had a visible copy.
        if by_place.get(quantity) is not None:
            numbers[quantity] = [entry.get("factor", 1) * float(by_place[quantity])]
            error = entry.get("error", "")
            if by_place.get(error) is not None:
                numbers[error] = [by_place[error]]
    return numbers


def weight_hash(_: Path, manifest: Json) -> str | None:
    """The SHA-256 of the weights, as `exlm.storage.models.weight_hash` computes it."""
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def device_of(content: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = content.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def short_hash(identity: Any) -> str:
    """The first 8 hexadecimal digits of the SHA-256 of a run's settings."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
