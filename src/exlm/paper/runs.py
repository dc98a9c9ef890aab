"""Finds finished runs on disk."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exlm.errors import InputError
from exlm.paper.display import METHODS, Row, percent
from exlm.paper.measurements import MEASUREMENTS
from exlm.paper.pretrainings import Json, Pretraining, device_of, held_out_numbers, weight_hash
from exlm.paper.task_trainings import TaskTraining
from exlm.storage.files import GRID_RESULTS, RUN_RESULT
from exlm.storage.manifest import MANIFEST, find_change

DAMAGED = "damaged"
Content = TypeVar("Content")
Run = TypeVar("Run", Pretraining, TaskTraining)


@dataclass(frozen=True)
class StepCost:
    """What a step of ExLM and of the MLM costs, as measured in a `study`: `ratio`, how many times
    the cost of the MLM that of ExLM is, and the `rows` of the table of costs."""

    study: Path
    ratio: float
    rows: list[Row]


@dataclass(frozen=True)
class Runs:
    """Everything that was found on disk.

    Attributes:
        pretrainings: pre-trained models.
        finetunings: models fine-tuned on a task with several seeds.
        baselines: baselines trained on a task.
        costs: measurements of what a step costs.
        left_out: the files that cannot be used, and the directories of runs that are left out
            because another run has their settings and seeds; as rows of the table of what is left
            out."""

    pretrainings: list[Pretraining]
    finetunings: list[TaskTraining]
    baselines: list[TaskTraining]
    costs: list[StepCost]
    left_out: list[Row]


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    folders: dict[Path, Path] = {}  # by what they are without symbolic links
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
        for path, _, _ in os.walk(root):
            folders.setdefault(Path(path).resolve(), Path(path))
    pretrainings = []
    task_trainings = []
    costs = []
    left_out: list[Row] = []
    for folder in sorted(folders.values()):
        pretraining = _read(folder / RUN_RESULT, _pretraining, left_out)
        if pretraining:
            pretraining.numbers |= _read(folder / MEASUREMENTS, held_out_numbers, left_out) or {}
            pretraining.weights = _read(folder / MANIFEST, weight_hash, left_out)
            pretrainings.append(pretraining)
        task_training = _read(folder / GRID_RESULTS, TaskTraining.read, left_out)
        # Without labels there is no score.
        if task_training and task_training.task and task_training.scores:
            task_trainings.append(task_training)
        cost = _read(folder / "efficiency.json", _step_cost, left_out)
        if cost:
            costs.append(cost)
    if not (pretrainings or task_trainings or costs):
        raise InputError(
            f"there is no finished run in {', '.join(roots)} ({len(left_out)} left out); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    pretrainings = _without_repeated(pretrainings, left_out)
    task_trainings = _without_repeated(task_trainings, left_out)
    for task_training in task_trainings:
        task_training.pretraining = _pretraining_of(task_training, pretrainings)
    finetunings = [training for training in task_trainings if not training.is_baseline]
    baselines = [training for training in task_trainings if training.is_baseline]
    return Runs(pretrainings, finetunings, baselines, costs, left_out)


def _read(
    path: Path, parse: Callable[[Path, Json], Content], left_out: list[Row]
) -> Content | None:
    """What `parse` makes of the folder and the content of a JSON file; None if there is no such
    file, or if it cannot be used, which is then `left_out`."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
        if problem := find_change(path):
            raise ValueError(problem)
        return parse(path.parent, content)
    except InputError as error:
        why, what = "a setting is unknown", str(error)
    # A damaged file, or one of another program, may raise anything.
    except Exception as error:
        why, what = DAMAGED, f"{type(error).__name__}: {error}"
    left_out.append({"file": str(path), "why": why, "what": what})
    return None


def _not_finite(name: str) -> None:
    raise ValueError(f"a number is {name}")


def _pretraining(path: Path, content: Json) -> Pretraining | None:
    # A result with scores is one seed of a fine-tuning, see results.json.
    return None if "scores" in content else Pretraining(path, content)


def _step_cost(path: Path, content: Json) -> StepCost:
    setting = f"p = {percent(content['mask_ratio'])}, {content['pairs']} pairs"
    layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
    exlm = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
    exlm_quartiles = "{:.2f}–{:.2f}".format(*content["ratio_quartiles"])

    def row(name: str, model: str, ratio: float, quartiles: str) -> Row:
        step = content["models"][name]
        return {
            "group": f"ours: {path}, {setting}, {device_of(content)}",
            "model": model,
            "ms per step": 1000 * step["seconds_per_step"],
            "tokens per second": round(step["tokens_per_second"]),
            "memory, GB": step["peak_memory_bytes"] / 1e9,
            "times MLM": ratio,
            "quartiles": quartiles,
            "clock": content["clock"],
        }

    mlm_row = row("mlm", METHODS["mlm"], 1.0, "")
    exlm_row = row("exlm", exlm, content["ratio"], exlm_quartiles)
    return StepCost(path, content["ratio"], [mlm_row, exlm_row])


def _without_repeated(runs: Sequence[Run], left_out: list[Row]) -> list[Run]:
    """The first run of each id. The others are `left_out`."""
    by_id: dict[str, Run] = {}
    for run in runs:
        if by_id.setdefault(run.id, run) is not run:
            why = "a repetition with the same settings and seeds"
            left_out.append({"file": str(run.path), "why": why, "what": f"run {run.id}"})
    return list(by_id.values())


def _pretraining_of(result: TaskTraining, pretrainings: Sequence[Pretraining]) -> str | None:
    """The id of the pre-training that a fine-tuning started from: that with the same weights or, if
    weights are not known, at the same path. None of random weights."""
    if result.model_path is None:
        return None
    checksum = result.model_sha256
    for run in pretrainings:
        if checksum and run.weights == checksum:
            return run.id
    for run in pretrainings:
        are_recorded = checksum and run.weights
        if not are_recorded and result.model_path in (run.path, run.first_path):
            return run.id
    return None
