"""Finished runs found on disk: pre-training, fine-tuning and measurements of cost, each read from its own settings."""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exlm.errors import InputError
from exlm.tasks.metrics import LOWER_IS_BETTER
from exlm.tasks.molnet import MOLECULENET

Json = dict[str, Any]
RESULTS = ("result.json", "results.json", "efficiency.json")
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
COST = ("seconds_per_step", "tokens_per_second", "peak_memory_bytes")  # of a model in efficiency.json
MEASURED = {
    "entropy": ("mean", "stderr", "tokens", "left_out"),  # the first two are null where no token counted
    "corruption": ("mean", "std", "predicted", "predicted_std", "fixed_count", "fixed_count_std", "sequences"),
}
NOT_IN_FAMILY = {  # what the experiments vary, and what follows from it or changes no result
    "seed", "train.steps", "transition_warmup", "data.mask_ratio", "data.repeat", "data.tokens_per_micro_batch",
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
    def warmup(self) -> int | None:
        """Of the transitions; an MLM has none."""
        return None if self.method == "Vanilla MLM" else self.recipe.get("transition_warmup", 0)

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


@dataclass
class Runs:
    """Everything that was found; `damaged` says what is wrong with each file."""

    pretrainings: list[Pretraining] = field(default_factory=list)
    finetunings: list[Finetuning] = field(default_factory=list)
    efficiency: list[tuple[Path, Json]] = field(default_factory=list)
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    unlinked: list[Finetuning] = field(default_factory=list)  # whose pre-trained model is not among the runs
    tunings: dict[str, list[Finetuning]] = field(default_factory=dict)  # by pre-training id


def identifier(identity: Any) -> str:
    """First 8 hexadecimal digits of the SHA-256 of canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def machine(result: Json) -> str:
    """The device a result was made on, as far as it says."""
    found = result.get("machine") or {}
    device = found.get("device")
    return str((found.get("processor") if device in (None, "cpu") else device) or "not recorded")


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories; a run that is there twice counts once."""
    runs = Runs()
    for path in sorted({path for root in roots for path in _files(root)}):
        try:
            _take(runs, path)
        except DAMAGE as error:
            runs.damaged.append((path, f"{type(error).__name__}: {error}"))
    if not (runs.pretrainings or runs.finetunings or runs.efficiency):
        where = f"{', '.join(roots)} ({len(runs.damaged)} damaged)"
        raise InputError(f"there is no finished run in {where}; give outputs of exlm pretrain, finetune or analyze")
    for tuning in runs.finetunings:
        _link(runs, tuning)
    return runs


def _files(root: str) -> Iterator[Path]:
    if not Path(root).is_dir():
        raise InputError(f"{root} is not a directory; give directories with runs")
    for folder, _, names in os.walk(root):
        yield from (Path(folder) / name for name in RESULTS if name in names)


def _take(runs: Runs, path: Path) -> None:
    """Reads one file into its list; every number and setting that a report needs is touched here."""
    content, place = _read(path), path.parent
    if path.name == "efficiency.json":
        _check(entry[key] for entry in content["models"].values() for key in COST)
        numbers = [content[key] for key in ("ratio", "num_states", "mask_ratio", "pairs")]
        _check([*numbers, *content["ratio_quartiles"], len(content["clock"])])
        runs.efficiency.append((path, content))
    elif path.name == "results.json":
        tuning = Finetuning(identifier({key: content[key] for key in ("settings", "seeds", "best")}), place, content)
        if tuning.task and tuning.how and tuning.values() and tuning.id not in {t.id for t in runs.finetunings}:
            runs.finetunings.append(tuning)
    elif "scores" not in content:  # a seed of a fine-tuning has them
        run = _pretraining(runs, place, content)
        runs.pretrainings += [run] if run.id not in {known.id for known in runs.pretrainings} else []


def _pretraining(runs: Runs, place: Path, content: Json) -> Pretraining:
    names = ("measurements.json", "config.json", "manifest.json")
    measurements, config, manifest = (_beside(runs, place / name) for name in names)
    run = Pretraining(identifier(content["identity"]), place, content, measurements, config, _weights(manifest))
    numbers = [content["evaluation"]["accuracy"], content["evaluation"]["perplexity"], content["training_seconds"]]
    numbers += [content["parameters"], run.recipe["data"]["mask_ratio"], run.recipe["seed"]]
    _check([*numbers, run.repeat, run.steps, run.states, run.config.get("vocab_size", 0)])
    if not (run.method and run.family and run.recipe["data"]["corpus"]):
        raise ValueError("a setting is missing")
    return run


def _read(path: Path) -> Json:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _check(numbers: Any) -> None:
    """Raises what a damaged file raises for what is no number."""
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a number is not finite")


def _beside(runs: Runs, path: Path) -> Json:
    """A file that a run may have; damage to it does not cost the run."""
    try:
        content = _read(path) if path.is_file() else {}
        for section, keys in MEASURED.items():
            part = content.get(section) or {}
            _check(part[key] for key in keys if part and not (part[key] is None and part["tokens"] == 0))
        return content
    except DAMAGE as error:
        runs.damaged.append((path, f"{type(error).__name__}: {error}"))
        return {}


def _weights(manifest: Json) -> str | None:
    """What `exlm.directory.fingerprint` gives, without reading the weights."""
    files = manifest.get("files", {})
    sums = [files[name]["sha256"] for name in sorted(files) if name.endswith(".safetensors")]
    return hashlib.sha256("".join(sums).encode()).hexdigest() if sums else None


def _link(runs: Runs, tuning: Finetuning) -> None:
    """Gives a fine-tuning to its pre-training: by weights, else by the directory's name."""
    name, weights = str(tuning.settings["model"]), tuning.settings.get("model_sha256")
    same = [run for run in runs.pretrainings if weights and run.weights == weights]
    unsure = [run for run in runs.pretrainings if not weights or not run.weights]
    same += [run for run in unsure if name == run.recipe.get("output") or Path(name) == run.path]
    if same:
        runs.tunings.setdefault(same[0].id, []).append(tuning)
    else:
        runs.unlinked.append(tuning)
