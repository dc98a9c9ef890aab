"""Finds finished runs on disk and turns each into a record with checked numbers."""

import hashlib
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from exlm.data.batching import share_bounds
from exlm.errors import InputError
from exlm.paper.values import CHOICES, EVALUATION, MLM, SHARES, VARIED, HeldOut, Setting
from exlm.pretrain.settings import ArchitectureConfig
from exlm.tasks.datasets import MOLECULENET
from exlm.tasks.grid import REPORT

Json = dict[str, Any]


@dataclass(frozen=True)
class Pretraining:
    """A pre-trained model."""

    id: str  # first 8 hexadecimal digits of the SHA-256 of its identity
    path: Path
    result: Json  # content of its result.json
    model: ArchitectureConfig
    cell: Setting
    steps: int
    seed: int
    choices: frozenset[tuple[str, Any]]  # those settings of CHOICES that its objective uses
    shared: frozenset[tuple[str, str]]  # all settings that comparable runs have in common
    scores: dict[str, float]  # in the unit of the tables; scores that were not measured are missing
    weights: str | None  # SHA-256 of the weights, as `exlm.storage.models.fingerprint` computes it
    study: Path | None  # the output directory of the `exlm analyze` that made this run
    # by task, those that its family compares
    tunings: dict[str, "Finetuning"] = field(default_factory=dict)

    @property
    def every_score(self) -> dict[str, list[float]]:
        """All numbers of the run: a list of one number, or of one number per fine-tuning seed."""
        found = {name: [value] for name, value in self.scores.items()}
        return found | {
            name: values
            for tuning in self.tunings.values()
            for name, values in tuning.scores.items()
        }


@dataclass(frozen=True)
class Finetuning:
    """A model fine-tuned on one task with several seeds, or a baseline in its place."""

    id: str
    path: Path
    result: Json  # content of its results.json
    task: str  # in small letters: the name of a known data set, or of a file without its ending
    # the name of the baseline that was trained in the place of a pre-trained model
    baseline: str | None
    # hashes, split and number of rows; if these differ, scores cannot be compared
    data: tuple[Any, ...]
    in_percent: bool  # whether the metric of this run is shown in percent
    # settings that must be equal to compare: data, start, hyper-parameters or their grid
    shared: str
    scores: dict[str, list[float]]  # one number per seed, in the unit of the tables


@dataclass
class Runs:
    """Everything that was found on disk."""

    pretrainings: dict[str, Pretraining] = field(default_factory=dict)  # by id
    finetunings: dict[str | None, list[Finetuning]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By the id of the pre-training. The id is None if the pre-training was not found."""
    baselines: list[Finetuning] = field(default_factory=list)
    # contents of efficiency.json, by directory
    costs: dict[Path, Json] = field(default_factory=dict)
    # for each unusable file, what is wrong with it
    damaged: dict[Path, str] = field(default_factory=dict)

    def read(self, path: Path, record: Callable[..., Any], *further: Any) -> Any:
        """What `record` makes of a JSON file; None if there is no file. `damaged` notes a file that
        cannot be used."""
        try:
            return (
                record(json.loads(path.read_text(encoding="utf-8")), *further)
                if path.is_file()
                else None
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            self.damaged[path] = f"{type(error).__name__}: {error}"
            return None


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    if missing := [root for root in roots if not Path(root).is_dir()]:
        raise InputError(f"{missing[0]} is not a directory; give directories with runs")
    runs, finetunings = Runs(), dict[str, Finetuning]()
    for folder in sorted({Path(folder) for root in roots for folder, _, _ in os.walk(root)}):
        if run := runs.read(folder / "result.json", _pretraining, folder, runs):
            runs.pretrainings.setdefault(run.id, run)
        if tuning := runs.read(folder / REPORT, _finetuning, folder):
            finetunings.setdefault(tuning.id, tuning)
        if cost := runs.read(folder / "efficiency.json", _cost):
            runs.costs[folder] = cost
    if not (runs.pretrainings or finetunings or runs.costs):
        where = f"{', '.join(roots)} ({len(runs.damaged)} damaged)"
        raise InputError(
            f"there is no finished run in {where}; give outputs of exlm pretrain, finetune or analyze"
        )
    runs.baselines = [tuning for tuning in finetunings.values() if tuning.baseline]
    tuned = [tuning for tuning in finetunings.values() if not tuning.baseline]
    # its model has the same weights or, if weights are not known, the same path
    for tuning in tuned:
        name, weights = (
            str(tuning.result["settings"]["model"]),
            tuning.result["settings"].get("model_sha256"),
        )
        same = [run.id for run in runs.pretrainings.values() if weights and run.weights == weights]
        unsure = [run for run in runs.pretrainings.values() if not weights or not run.weights]
        same += [
            run.id
            for run in unsure
            if name == run.result["recipe"].get("output") or Path(name) == run.path
        ]
        runs.finetunings[same[0] if same else None].append(tuning)
    return runs


def _pretraining(result: Json, path: Path, runs: Runs) -> Pretraining | None:
    """The record of a pre-training. A result with `scores` is one seed of a fine-tuning: None (see
    results.json)."""
    if "scores" in result:
        return None
    identity, recipe, found = result["identity"], result["recipe"], result["evaluation"]
    data = recipe["data"]
    # earlier recipes have others, and lack some
    known = {entry.name for entry in fields(ArchitectureConfig)}
    model = ArchitectureConfig(
        **{key: value for key, value in recipe["model"].items() if key in known}
    )
    # the beginning of its choices
    own = "" if model.has_links else "model." if model.expands else "model.rotary"
    choices = {
        key: identity.get(key, usual) for key, usual in CHOICES.items() if key.startswith(own)
    }
    if model.rotary == "1d":  # the ablation belongs to runs with either kind of positions
        del choices["model.rotary"]
    scores: dict[str, float] = {HeldOut.HOURS: result["training_seconds"] / 3600}
    numbers = found | {
        f"{name}/{key}": value
        for name, by_key in found.items()
        if isinstance(by_key, dict)
        for key, value in by_key.items()
    }
    scores |= {
        name: factor * numbers[key] for name, (key, factor) in EVALUATION.items() if key in numbers
    }
    shares = share_bounds(data["mask_ratio"])
    shared = {key: value for key, value in identity.items() if key not in VARIED}
    # such runs are compared among themselves, in the cell of their mean share
    if shares[0] < shares[1]:
        shared["data.mask_ratio"] = shares
    run = Pretraining(
        id=_identifier(identity),
        path=path,
        result=result,
        model=model,
        cell=Setting(_method(model), model.states_per_mask, sum(shares) / 2, data.get("repeat", 1)),
        steps=recipe["train"]["steps"],
        seed=recipe["seed"],
        choices=frozenset(
            (key, tuple(v) if isinstance(v, list) else v) for key, v in choices.items()
        ),
        shared=frozenset((key, json.dumps(value)) for key, value in shared.items()),
        scores=scores | (runs.read(path / "measurements.json", _measured) or {}),
        weights=runs.read(path / "manifest.json", _fingerprint),
        study=next((parent.parent for parent in path.parents if parent.name == "pretrain"), None),
    )
    _check(
        *run.cell[1:],
        run.seed,
        run.steps,
        result["parameters"],
        data["tokens_per_batch"],
        *run.scores.values(),
    )
    if not (run.shared and data["corpus"]):
        raise ValueError("a setting is missing")
    return run


def _method(model: ArchitectureConfig) -> str:
    """The paper's name for a model with these switches. If the paper does not have the objective,
    its own name."""
    if model.objective not in ("exlm", "ctc"):
        return MLM if model.objective == "mlm" else model.objective
    without = ["Transitions"] * (not model.has_links) + ["2D RoPE"] * (model.rotary == "1d")
    sparse = model.dag == "sparse" and model.has_links
    return "ExLM" + (f" w/o {' and '.join(without)}" if without else "") + " w/ Sparse DAG" * sparse


def _measured(content: Json) -> dict[str, float]:
    """The scores in measurements.json. `NAME error` is the standard error of the entropy NAME over
    tokens."""
    scores: dict[str, float] = {}
    if corruption := content.get("corruption"):
        names = {
            HeldOut.CORRUPTION: "mean",
            HeldOut.CORRUPTION_STD: "std",
            HeldOut.PREDICTED_STD: "predicted_std",
        }
        scores |= {name: 100 * corruption[key] for name, key in names.items()}
    if entropy := content.get("entropy"):
        scores[HeldOut.TOKENS] = entropy["tokens"]
        for name, summary in (
            (HeldOut.ENTROPY, entropy),
            (HeldOut.STATE_ENTROPY, entropy.get("states")),
        ):
            # without tokens there is no entropy: every token had a visible copy
            if summary and entropy["tokens"]:
                scores |= {name: summary["mean"], f"{name} error": summary["stderr"]}
    _check(*scores.values())
    return scores


def _fingerprint(manifest: Json) -> str | None:
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def _finetuning(result: Json, path: Path) -> Finetuning | None:
    """The record of a fine-tuning, or None if no seed has a score, for example because the data
    have no labels."""
    settings, data, own = result["settings"], result["settings"]["task"], result["metric"]
    name = Path(data["dataset"]).name.lower().removesuffix(".gz").rsplit(".", 1)[0]
    task = {
        other.lower(): key for key, entry in MOLECULENET.items() for other in entry.other_names
    }.get(name, name)
    questions = data.get("task_type") == "question_answering"
    usual = "test" if "test" in result else "valid"
    scores: dict[str, list[float]] = defaultdict(list)
    for seed in result["runs"]:
        for split, found in seed["scores"].items():
            for metric, value in found.items():
                if isinstance(value, int | float) and (split == usual or metric == own):
                    name = f"{task} {metric if split == usual else split}"
                    scores[name].append(
                        value * (100.0 if metric in SHARES and not questions else 1.0)
                    )
    if not task or f"{task} {own}" not in scores:
        return None
    scores[task] = scores[f"{task} {own}"]
    hyper = sorted(result["cells"]) if "cells" in result else result["runs"][0]["settings"]["train"]
    compared = {key: value for key, value in data.items() if key not in ("dataset", "data_dir")}
    start = [settings.get("data_sha256"), settings.get("start_from") is not None]
    shared = json.dumps([hyper, compared, *start], sort_keys=True)
    identifier = _identifier({key: result[key] for key in ("settings", "seeds", "best")})
    rows = json.dumps(settings.get("data_sha256")), data.get("split"), data.get("train_rows")
    trained = (settings.get("baseline"), rows, questions or own in SHARES)
    return Finetuning(identifier, path, result, task, *trained, shared, scores)


def _cost(content: Json) -> Json:
    keys = ("seconds_per_step", "tokens_per_second", "peak_memory_bytes")
    _check(
        *(content["models"][model][key] for model in ("mlm", "exlm") for key in keys),
        len(content["clock"]),
    )
    _check(
        *(content[key] for key in ("ratio", "num_states", "mask_ratio", "pairs")),
        *content["ratio_quartiles"],
    )
    return content


def device(result: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = result.get("machine") or {}
    found = machine.get("device")
    return str((machine.get("processor") if found in (None, "cpu") else found) or "not recorded")


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _check(*numbers: float) -> None:
    """Raises TypeError if a value is not a number, and ValueError if a number is not finite."""
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a number is not finite")
