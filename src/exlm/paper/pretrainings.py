"""Reads finished pre-trainings: their result.json, and the numbers beside it."""

import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.corpus import corpus_name
from exlm.data.masking import share_bounds
from exlm.identity import DEFAULTS, describe_changes, identity_of
from exlm.paper.display import DISPLAY, EXLM_ONLY, HELD_OUT, SWITCHES, VARIED, Variant, title
from exlm.pretrain.batches import least_tokens
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule, evaluation_settings
from exlm.storage.models import join_checksums

Json = dict[str, Any]  # the content of a file
Numbers = dict[str, list[float]]  # by quantity, in the unit of the tables; one for each seed

# The values of settings that an identity lacks
USUAL_VALUES: Json = {
    **identity_of(ArchitectureConfig(), "model"),
    **identity_of(PriorSchedule(), "prior"),
    **DEFAULTS,
}


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """What is known of a run that finished."""

    id: str  # the first digits of the hash of its settings and seeds
    path: Path  # its directory
    device: str  # the GPU or processor, in words
    seeds: list[int]  # of a pre-training one
    hours: float | str  # of all seeds; "" if they are not recorded

    @property
    def repetition_key(self) -> Hashable:
        """What is equal in repetitions of a run."""
        return self.id


@dataclass(frozen=True, kw_only=True)
class Pretraining(FinishedRun):
    """A pre-trained model."""

    hours: float
    training_id: str  # its id, or that of a copy of it that was scored on other sequences
    first_path: Path  # where its directory was when it was written
    model: Variant  # which of the models that the experiments compare
    corpus_and_size: str  # the name of the corpus, and the layers, in words
    parameters: int
    steps: int  # the number of updates
    tokens_per_batch: int  # how many tokens an update reads
    settings: frozenset[tuple[str, str]]  # that comparable runs share, with their values in JSON
    exlm_only: frozenset[tuple[str, Any]]  # that it uses and an MLM may lack, with their values
    held_out_sequences: int | None  # the number of scored ones; None if it is not recorded
    by_masks_sequences: str  # in words, which sequences `nll_by_masks` is of; "" if not recorded
    held_out_in_training: int  # how many held-out sequences another of its corpora trains on
    numbers: Numbers  # its hours, and its numbers on held-out data
    result: str  # the most important of these, in words
    changes: str  # in words, which settings changed where it was resumed; "" if none did
    weights_sha256: str | None = None  # if it is known

    @property
    def repetition_key(self) -> Hashable:
        """Copies that were scored on other held-out sequences are no repetitions."""
        return self.training_id, self.settings

    @property
    def seed(self) -> int:
        """Its only seed."""
        return self.seeds[0]

    @property
    def study_path(self) -> Path | None:
        """The directory of the analysis that it belongs to, if any."""
        studies = [folder.parent for folder in self.path.parents if folder.name == "pretrain"]
        return studies[0] if studies else None


def read_pretraining(path: Path, content: Json) -> Pretraining | None:
    """The pre-training in a directory whose result.json has this content; None if that is a seed of
    a fine-tuning. KeyError, TypeError or ValueError: the file is damaged; InputError: a setting is
    unknown."""
    if "scores" in content:
        return None
    recipe = content["recipe"]
    data = recipe["data"]
    identity = content["identity"]
    hours = float(content["training_seconds"]) / 3600
    architecture = ArchitectureConfig(**recipe["model"])
    size = f"{architecture.num_hidden_layers} layers × {architecture.hidden_size}"
    low, high = share_bounds(data["mask_ratio"])
    shared_names = identity.keys() - {*EXLM_ONLY, *VARIED}
    settings = {name: json.dumps(identity[name]) for name in shared_names}
    # Other held-out sequences change no model, but scores of other sequences are not compared.
    # Earlier versions did not record their number, which a small corpus may not have.
    scored = content["evaluation"].get("sequences")
    sequences = evaluation_settings(recipe)["data.eval_sequences"] if scored is None else scored
    settings["data.eval_sequences"] = json.dumps(int(sequences))
    if low < high:
        # Runs with a range of shares are compared among themselves, as models with the mean share.
        settings["data.mask_ratio"] = json.dumps((low, high))
    held_out = read_held_out_numbers({"evaluation": content["evaluation"]})
    listed = [name for name in DISPLAY["listed"] if name in held_out]
    return Pretraining(
        id=short_hash(identity),
        training_id=short_hash(identity),
        path=path,
        device=name_device(content),
        seeds=[int(recipe["seed"])],
        hours=hours,
        first_path=Path(recipe["output"]),
        steps=int(recipe["train"]["steps"]),
        corpus_and_size=f"{corpus_name(data['corpus'])} · {size}",
        parameters=int(content["parameters"]),
        tokens_per_batch=int(data["tokens_per_batch"]),
        model=Variant(
            method=find_method(architecture),
            k=architecture.states_per_mask,
            p=(low + high) / 2,
            r=int(data["repeat"]),
        ),
        settings=frozenset(settings.items()),
        exlm_only=_find_exlm_only(architecture, identity),
        held_out_sequences=None if scored is None else int(scored),
        by_masks_sequences=_describe_sequences(content["evaluation"], int(data["repeat"])),
        held_out_in_training=content.get("held_out_in_training", 0),
        numbers={"training/hours": [hours], **held_out},
        changes=describe_changes(content.get("changed", [])),
        result=", ".join(f"{title(name)} {held_out[name][0]:.2f}" for name in listed),
    )


def find_method(architecture: ArchitectureConfig) -> str:
    """The method of an architecture by its SWITCHES. Of several that fit, such as `exlm` and
    `exlm-1d`, it is the one with the most switches. If none fits, it is the objective."""
    settings = vars(architecture).items()
    methods = [method for method, switches in SWITCHES.items() if switches.items() <= settings]
    return max(methods, key=lambda method: len(SWITCHES[method]), default=architecture.objective)


def _find_exlm_only(architecture: ArchitectureConfig, identity: Json) -> frozenset[tuple[str, Any]]:
    """The settings EXLM_ONLY that an architecture uses, with their values."""
    settings = set()
    is_2d = architecture.rotary != "1d"
    for name, property_of_users in EXLM_ONLY.items():
        # `rotary` has no property: both kinds of 2D positions are compared with their ablation.
        is_used = getattr(architecture, property_of_users) if property_of_users else is_2d
        if is_used:
            value = identity.get(name, USUAL_VALUES[name])
            settings.add((name, tuple(value) if isinstance(value, list) else value))
    return frozenset(settings)


def _describe_sequences(evaluation: Json, repeat: int) -> str:
    """In words, which held-out sequences were scored for `nll_by_masks`: as many as were asked for
    of the sequences that are long enough for the most masks."""
    if "by_masks_sequences" not in evaluation:
        return ""
    most_masks = max(map(int, evaluation["nll_by_masks"]))
    tokens = math.ceil(least_tokens(most_masks) / repeat)
    return f"{evaluation['by_masks_sequences']} sequences of at least {tokens} tokens"


def read_held_out_numbers(content: Json) -> Numbers:
    """The numbers on held-out data that a file has, and their standard errors."""
    # {"entropy": {"mean": 1.5}} becomes {"entropy/mean": 1.5}.
    by_place = pd.json_normalize(content, sep="/").iloc[0].to_dict()
    numbers: Numbers = {}
    for name, quantity in HELD_OUT.items():
        # The entropy is null if every token had a visible copy.
        if by_place.get(name) is not None:
            numbers[name] = [quantity.factor * float(by_place[name])]
            if by_place.get(quantity.error) is not None:
                numbers[quantity.error] = [by_place[quantity.error]]
    return numbers


def read_weight_hash(manifest: Json) -> str | None:
    """What `weight_hash` (exlm/storage/models.py) computes from the weights, by the checksums in
    their manifest; None if it has no weights."""
    files = sorted(manifest.get("files", {}).items())
    checksums = [entry["sha256"] for name, entry in files if name.endswith(".safetensors")]
    return join_checksums(checksums) if checksums else None


def name_device(content: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = content.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def short_hash(identity: Any) -> str:
    """The first 8 hexadecimal digits of the SHA-256 of a run's settings."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
