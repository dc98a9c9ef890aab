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
from exlm.paper.report.records import Finetuning, Json, Pretraining, identifier, late

RESULTS = ("result.json", "results.json", "efficiency.json")
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
COST = ("seconds_per_step", "tokens_per_second", "peak_memory_bytes")  # of a model in efficiency.json
JOINT = ("nll", "joint_nll", "joint_perplexity")  # of an evaluation; earlier runs have none of them
MEASURED = {
    "entropy": ("mean", "stderr", "tokens", "left_out"),  # the first two are null where no token counted
    "corruption": ("mean", "std", "predicted", "predicted_std", "fixed_count", "fixed_count_std", "sequences"),
}


@dataclass
class Runs:
    """Everything that was found; `damaged` says what is wrong with each file."""

    pretrainings: list[Pretraining] = field(default_factory=list)
    finetunings: list[Finetuning] = field(default_factory=list)
    efficiency: list[tuple[Path, Json]] = field(default_factory=list)
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    unlinked: list[Finetuning] = field(default_factory=list)  # whose pre-trained model is not among the runs
    tunings: dict[str, list[Finetuning]] = field(default_factory=dict)  # by pre-training id


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
        _check([*numbers, *content["ratio_quartiles"], len(content["clock"]), len(late(content))])
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
    expected = ("accuracy", "perplexity", *(JOINT if run.evaluation.keys() & {*JOINT, "own_states"} else ()))
    numbers = [*(run.evaluation[key] for key in expected), run.evaluation.get("own_states", 0)]
    numbers += [content["training_seconds"], content["parameters"], run.recipe["data"]["mask_ratio"], run.seed]
    _check([*numbers, run.repeat, run.steps, run.states, run.config.get("vocab_size", 0)])
    if not all([run.method, run.family, run.recipe["data"]["corpus"], *run.chosen]):
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
    """What `exlm.pretrained.fingerprint` gives, without reading the weights."""
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
