"""Finds finished runs on disk."""

import json
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from exlm.errors import InputError
from exlm.paper.cost import STEP_COST, StepCost, read_step_cost
from exlm.paper.display import Row
from exlm.paper.pretrainings import (
    Json,
    Pretraining,
    read_held_out_numbers,
    read_pretraining,
    read_weight_hash,
)
from exlm.paper.task_trainings import TaskTraining, read_task_training
from exlm.storage.files import GRID_RESULTS, MEASUREMENTS, RUN_RESULT
from exlm.storage.manifest import MANIFEST, find_change

DAMAGED = "damaged"
Content = TypeVar("Content")
Run = TypeVar("Run", Pretraining, TaskTraining)


@dataclass(frozen=True)
class Runs:
    """Everything that was found on disk."""

    pretrainings: list[Pretraining]
    finetunings: list[TaskTraining]
    baselines: list[TaskTraining]
    costs: list[StepCost]
    left_out: list[Row]  # of a table: files that cannot be used, and repetitions of runs


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    pretrainings = []
    task_trainings = []
    costs = []
    left_out: list[Row] = []
    for folder in _walk_folders(roots):
        if pretraining := _read(folder / RUN_RESULT, partial(read_pretraining, folder), left_out):
            measured = _read(folder / MEASUREMENTS, read_held_out_numbers, left_out) or {}
            weights = _read(folder / MANIFEST, read_weight_hash, left_out)
            numbers = pretraining.numbers | measured
            if pretraining.changes:  # no settings are those of all its updates
                why, what = pretraining.changes, f"run {pretraining.id}"
                left_out.append({"file": str(folder), "why": why, "what": what})
            else:
                pretrainings.append(replace(pretraining, numbers=numbers, weights_sha256=weights))
        task_training = _read(folder / GRID_RESULTS, partial(read_task_training, folder), left_out)
        # Without labels there is no score.
        if task_training and task_training.scores.values:
            task_trainings.append(task_training)
        if cost := _read(folder / STEP_COST, partial(read_step_cost, folder), left_out):
            costs.append(cost)
    if not (pretrainings or task_trainings or costs):
        raise InputError(
            f"there is no finished run in {', '.join(roots)} ({len(left_out)} left out); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    pretrainings = _drop_repetitions(pretrainings, left_out)
    task_trainings = _drop_repetitions(task_trainings, left_out)
    baselines = [run for run in task_trainings if run.is_baseline]
    finetunings = [
        replace(run, pretraining_id=_find_pretraining(run, pretrainings))
        for run in task_trainings
        if not run.is_baseline
    ]
    return Runs(pretrainings, finetunings, baselines, costs, left_out)


def _walk_folders(roots: list[str]) -> list[Path]:
    """All folders in `roots`, sorted. A folder that links lead to twice counts once."""
    folders: dict[Path, Path] = {}  # by their paths without symbolic links
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
        for path, _, _ in os.walk(root):
            folders.setdefault(Path(path).resolve(), Path(path))
    return sorted(folders.values())


def _read(path: Path, parse: Callable[[Json], Content], left_out: list[Row]) -> Content | None:
    """What `parse` makes of the content of a JSON file; None if there is no such file, or if it
    cannot be used. Then a row that says why is added to `left_out`."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_nan)
        if problem := find_change(path):
            raise ValueError(problem)
        return parse(content)
    except InputError as error:
        why, what = "a setting is unknown", str(error)
    # A damaged file, or one of another program, may raise anything.
    except Exception as error:
        why, what = DAMAGED, f"{type(error).__name__}: {error}"
    left_out.append({"file": str(path), "why": why, "what": what})
    return None


def _refuse_nan(name: str) -> None:
    raise ValueError(f"a number is {name}")


def _drop_repetitions(runs: Sequence[Run], left_out: list[Row]) -> list[Run]:
    """The runs without repetitions; for each of these a row is added to `left_out`. From the second
    run of an id on, ids get a number."""
    kept: dict[Hashable, Run] = {}  # by their keys
    counts = Counter[str]()  # of the kept runs, by id
    for run in runs:
        if first := kept.get(run.repetition_key):
            why = "a repetition with the same settings and seeds"
            left_out.append({"file": str(run.path), "why": why, "what": f"run {first.id}"})
            continue
        counts[run.id] += 1
        number = counts[run.id]
        name = f"{run.id}-{number}" if number > 1 else run.id
        kept[run.repetition_key] = replace(run, id=name)
    return list(kept.values())


def _find_pretraining(tuning: TaskTraining, pretrainings: Sequence[Pretraining]) -> str | None:
    """The `training_id` of the run that made the model of a fine-tuning: one with the same weights
    or, if weights are not recorded, at the same path. None for random weights."""
    if tuning.model_path is None:
        return None
    for run in pretrainings:
        if tuning.weights_sha256 and run.weights_sha256 == tuning.weights_sha256:
            return run.training_id
    for run in pretrainings:
        both_recorded = tuning.weights_sha256 and run.weights_sha256
        if not both_recorded and tuning.model_path in (run.path, run.first_path):
            return run.training_id
    return None
