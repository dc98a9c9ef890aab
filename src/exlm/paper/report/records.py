"""What a finished run says of itself: its cell, the settings that comparable runs share, its numbers."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlm.tasks.datasets import MOLECULENET
from exlm.tasks.metrics import LOWER_IS_BETTER

Json = dict[str, Any]
CHOICES: dict[str, tuple[Any, str]] = {  # ExLM's alone, by key of the identity: where nothing is said, and in words
    "model.expanded_layers": ("all", "expanded layers {}"),
    "model.copy_embedding": (0.0, "copy embedding {:g}"),
    "prior.order": (0.0, "order prior {:g}"),
    "prior.sticky": (0.0, "sticky prior {:g}"),
    "prior.decay": (None, "prior falls to 0 from {0[0]:.0%} to {0[1]:.0%} of the run"),
    "transition_warmup": (0, "warm-up of transitions {:,} updates"),  # of earlier recipes
}
NOT_IN_FAMILY = {  # what the experiments vary, and what follows from it or changes no result
    *CHOICES, "seed", "train.steps", "data.mask_ratio", "data.repeat", "data.tokens_per_micro_batch",
    "model.objective", "model.num_states", "model.rotary", "model.dag", "model.max_position_embeddings",
}  # fmt: skip


@dataclass(frozen=True)
class Pretraining:
    """A pre-trained model: its settings, held-out evaluation and what stands beside them."""

    id: str
    path: Path
    result: Json
    measurements: Json
    config: Json
    weights: str | None  # SHA-256 by its manifest

    @property
    def recipe(self) -> Json:
        return self.result["recipe"]

    @property
    def evaluation(self) -> Json:
        """Of held-out text; earlier runs have no joint numbers, and none but ExLM's have `own_states`."""
        return self.result["evaluation"]

    @property
    def steps(self) -> int:
        return self.recipe["train"]["steps"]

    @property
    def seed(self) -> int:
        return self.recipe["seed"]

    @property
    def method(self) -> str:
        """The paper's name of what the switches say."""
        model = self.recipe["model"]
        if model["objective"] == "mlm":
            return "Vanilla MLM"
        without = ["Transitions"] * (model["objective"] == "ctc") + ["2D RoPE"] * (model["rotary"] != "2d")
        sparse = model["dag"] == "sparse" and model["objective"] == "exlm"
        return "ExLM" + (f" w/o {' and '.join(without)}" if without else "") + " w/ Sparse DAG" * sparse

    @property
    def states(self) -> int:
        model = self.recipe["model"]
        return 1 if model["objective"] == "mlm" else model["num_states"]

    @property
    def repeat(self) -> int:
        return self.recipe["data"].get("repeat", 1)

    @property
    def choices(self) -> frozenset[tuple[str, Any]]:
        """Settings that tell ExLM runs apart; an MLM has none of them, and ExLM w/o Transitions none of its links."""
        kept = {"mlm": (), "ctc": ("model.",)}.get(self.recipe["model"]["objective"], ("",))
        found = {key: self.result["identity"].get(key, CHOICES[key][0]) for key in CHOICES if key.startswith(kept)}
        return frozenset((key, tuple(value) if isinstance(value, list) else value) for key, value in found.items())

    @property
    def chosen(self) -> list[str]:
        """The choices that somebody made, in words."""
        found = dict(self.choices)
        return [words.format(found[key]) for key, (usual, words) in CHOICES.items() if found.get(key, usual) != usual]

    @property
    def family(self) -> tuple[tuple[str, str], ...]:
        """All settings that comparable runs share."""
        shared = {key: value for key, value in self.result["identity"].items() if key not in NOT_IN_FAMILY}
        return tuple(sorted((key, json.dumps(value)) for key, value in shared.items()))

    @property
    def study(self) -> Path | None:
        """The directory of the `exlm analyze` that made it."""
        return next((place.parent for place in self.path.parents if place.name == "pretrain"), None)

    def measured(self, section: str) -> Json:
        """Entropy or corruption, empty where it was not measured."""
        return self.measurements.get(section) or {}


@dataclass(frozen=True)
class Finetuning:
    """A model fine-tuned on one task with several seeds."""

    id: str
    path: Path
    result: Json

    @property
    def settings(self) -> Json:
        return self.result["settings"]

    @property
    def task(self) -> str:
        """The name of a set, or the stem of a file."""
        name = Path(self.settings["task"]["dataset"]).name.lower()
        name = name.removesuffix(".gz").rsplit(".", 1)[0] if "." in name else name
        known = {other.lower(): key for key, entry in MOLECULENET.items() for other in entry.other_names}
        return known.get(name, name)

    @property
    def departures(self) -> list[str]:
        """How its data differ from the published."""
        return self.settings.get("departures") or []

    @property
    def how(self) -> str:
        """The settings that comparable fine-tunings share: data, start, and hyper-parameters or their grid."""
        hyper = sorted(self.result["cells"]) if "cells" in self.result else self.result["runs"][0]["settings"]["train"]
        task = {key: value for key, value in self.settings["task"].items() if key not in ("dataset", "data_dir")}
        shared = [hyper, task, self.settings.get("data_sha256"), self.settings.get("start_from") is not None]
        return json.dumps(shared, sort_keys=True)

    def values(self, metric: str | None = None, part: str | None = None) -> list[float]:
        """Of every seed, shares in percent; the run's own metric and its test part (else valid) where not said."""
        part, metric = part or ("test" if "test" in self.result else "valid"), metric or self.result["metric"]
        scores = [run["scores"].get(part, {}).get(metric) for run in self.result["runs"]]
        in_percent = self.settings["task"].get("task_type") == "question_answering"
        factor = 1.0 if in_percent or metric in LOWER_IS_BETTER else 100.0
        return [factor * score for score in scores if score is not None]


def identifier(identity: Any) -> str:
    """First 8 hexadecimal digits of the SHA-256 of canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def machine(result: Json) -> str:
    """The device a result was made on, as far as it says."""
    found = result.get("machine") or {}
    device = found.get("device")
    return str((found.get("processor") if device in (None, "cpu") else device) or "not recorded")


def late(content: Json) -> str:
    """What sets a measured ExLM apart from the paper's, if masks are expanded in its last layers alone."""
    layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
    return "" if layers == "all" else f", expanded layers {layers}"
