"""Finds finished runs on disk. All their numbers together are one data frame, with a row for each
run, quantity and seed."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from exlm.errors import InputError
from exlm.paper.finished_runs import (
    Baseline,
    Cost,
    FineTuning,
    Json,
    PretrainedRun,
    RunValue,
    ScoredRun,
    held_out_values,
)
from exlm.storage.files import GRID_REPORT, RUN_RESULT
from exlm.storage.manifest import MANIFEST

Parsed = TypeVar("Parsed")
Run = TypeVar("Run", bound=PretrainedRun | ScoredRun)


@dataclass(frozen=True)
class Runs:
    """Everything that was found on disk.

    Attributes:
        costs: by directory.
        damaged: for each unusable file, what is wrong with it.
        repeated: by directory, the id of a run that is not listed because another run has its
            settings and seeds.
        values: all numbers, one a row: `source`, the id of the run that has it; `run`, the id of
            the pre-training that this run began with, if it was found; and the fields of
            `RunValue`."""

    pretrainings: list[PretrainedRun]
    finetunings: list[FineTuning]
    baselines: list[Baseline]
    costs: dict[Path, Cost]
    damaged: dict[Path, str]
    repeated: dict[Path, str]
    values: pd.DataFrame


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
    folders = sorted({Path(folder) for root in roots for folder, _, _ in os.walk(root)})
    results, bad_results = _read_all(folders, RUN_RESULT, _pretrained_run)
    measurements, bad_measurements = _read_all(
        results, "measurements.json", lambda _, content: held_out_values(content)
    )
    weights, bad_manifests = _read_all(results, MANIFEST, _weight_hash)
    pretrainings, repeated_pretrainings = _once(results.values())

    def scored_run(folder: Path, report: Json) -> FineTuning | Baseline:
        settings = report["settings"]
        if settings.get("baseline"):
            return Baseline(folder, report)
        return FineTuning(folder, report, _model_of(settings, pretrainings, weights))

    reports, bad_reports = _read_all(folders, GRID_REPORT, scored_run)
    # no seed has a score if, for example, the data have no labels
    scored = [run for run in reports.values() if run.task and run.scores]
    scored_once, repeated_scored = _once(scored)
    costs, bad_costs = _read_all(folders, "efficiency.json", Cost)
    damaged = bad_results | bad_measurements | bad_manifests | bad_reports | bad_costs
    if not (pretrainings or scored_once or costs):
        raise InputError(
            f"there is no finished run in {', '.join(roots)} ({len(damaged)} damaged); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    rows: list[tuple[Any, ...]] = []
    for pretraining in pretrainings:
        values = pretraining.values + measurements.get(pretraining.path, [])
        rows += [(pretraining.id, pretraining.id, *value) for value in values]
    for run in scored_once:
        rows += [(run.id, run.model_id, *value) for value in run.values]
    return Runs(
        pretrainings=pretrainings,
        finetunings=[run for run in scored_once if isinstance(run, FineTuning)],
        baselines=[run for run in scored_once if isinstance(run, Baseline)],
        costs=costs,
        damaged=damaged,
        repeated=repeated_pretrainings | repeated_scored,
        values=pd.DataFrame(rows, columns=["source", "run", *RunValue._fields]),
    )


def _read_all(
    folders: Iterable[Path], name: str, parse: Callable[[Path, Json], Parsed | None]
) -> tuple[dict[Path, Parsed], dict[Path, str]]:
    """By folder, what `parse` makes of a folder and the content of the JSON file `name` in it; and
    by path, what is wrong with those of the files that cannot be used."""
    parsed = {}
    damaged = {}
    for folder in folders:
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
            result = parse(folder, content)
        # A damaged file, or one of another program, may raise anything.
        except Exception as error:
            damaged[path] = f"{type(error).__name__}: {error}"
            continue
        if result is not None:
            parsed[folder] = result
    return parsed, damaged


def _pretrained_run(path: Path, result: Json) -> PretrainedRun | None:
    """None for a result with `scores`: it is one seed of a fine-tuning, see results.json."""
    return None if "scores" in result else PretrainedRun(path, result)


def _once(runs: Collection[Run]) -> tuple[list[Run], dict[Path, str]]:
    """The runs without those that have the id of an earlier one; and by directory the ids of these,
    unless it is the directory of the earlier one under another name."""
    by_id: dict[str, Run] = {}
    for run in runs:
        by_id.setdefault(run.id, run)
    places = {run.path.resolve() for run in by_id.values()}
    repeated = {run.path: run.id for run in runs if run.path.resolve() not in places}
    return list(by_id.values()), repeated


def _model_of(
    settings: Json, pretrainings: list[PretrainedRun], weights: Mapping[Path, str]
) -> str | None:
    """The id of the pre-training that a fine-tuning with these settings started from: that with the
    same weights or, if weights are not known, at the same path. `weights` are the hashes by
    path."""
    path = Path(settings.get("model", ""))
    same_path = []
    for run in pretrainings:
        if settings.get("model_sha256") and run.path in weights:
            if settings["model_sha256"] == weights[run.path]:
                return run.id
        elif path in run.places:
            same_path.append(run.id)
    return same_path[0] if same_path else None


def _weight_hash(_: Path, manifest: Json) -> str | None:
    """The SHA-256 of the weights, as `exlm.storage.models.weight_hash` computes it."""
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def _not_finite(name: str) -> None:
    raise ValueError(f"a number is {name}")
