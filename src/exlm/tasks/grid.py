"""A grid of hyper-parameters times seeds: runs what is missing, keeps the best cell, reports medians and spread."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from tqdm import tqdm

from exlm.errors import Diverged, InputError, TrainingStopped
from exlm.storage import finished_result, machine, plain, write_json
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.metrics import summarise
from exlm.tasks.supervised import rank

Grid = dict[str, FinetuneConfig]  # the hyper-parameters of every cell by its name
Result = dict[str, Any]  # of one seed; "scores" holds the metrics of every split but train
TrainSeed = Callable[[Path, FinetuneConfig, int], Result]

RESULT, REPORT = "result.json", "results.json"


def cells(train: FinetuneConfig, grid: dict[str, list[Any]]) -> Grid:
    """All combinations of a grid's values; without a grid one cell, whose name is empty.

    Raises:
        InputError: for what is no hyper-parameter and for one without values.
    """
    types = get_type_hints(FinetuneConfig)
    lists = []
    for name, values in grid.items():
        if name not in types:
            raise InputError(f"the grid has {name!r}, which is no hyper-parameter; use {', '.join(types)}")
        if not isinstance(values, list) or not values:
            raise InputError(f"the grid's {name} must be a list of values, for example [1.0e-5, 2.0e-5]")
        lists.append([_converted(name, value, types[name]) for value in values])
    chosen = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]
    return {",".join(f"{name}={value}" for name, value in cell.items()): replace(train, **cell) for cell in chosen}


def _converted(name: str, value: Any, wanted: Any) -> Any:
    """A value as the hyper-parameter's type: YAML reads 1e-5 as a word."""
    options = get_args(wanted) or (wanted,)
    if get_origin(wanted) is Literal:
        if value not in options:
            raise InputError(f"the grid's {name} has {value!r}; use {' or '.join(options)}")
        return value
    try:
        number = float(value)
        if int not in options:
            return number
        if number.is_integer():
            return int(number)
    except (TypeError, ValueError):
        pass
    kind = "whole number" if int in options else "number"
    raise InputError(f"the grid's {name} has {value!r}, which is not a {kind}")


def finished_runs(
    directory: Path, grid: Grid, seeds: Sequence[int], settings: dict[str, Any]
) -> dict[tuple[str, int], Result | None]:
    """The result of every run of `run_grid` by cell and seed, None where it is not finished.

    Raises:
        InputError: if one was made with other settings.
    """
    return {
        (name, seed): finished_result(
            directory / name / f"seed-{seed}" / RESULT, "settings", settings | {"train": plain(hyper)}
        )
        for name, hyper in grid.items()
        for seed in seeds
    }


def run_grid(
    directory: Path, train_seed: TrainSeed, grid: Grid, seeds: Sequence[int], settings: dict[str, Any], metric: str
) -> dict[str, Any]:
    """Runs every cell with every seed that is not finished, and writes `results.json`.

    The best cell has the best median of `metric` on valid; only its weights are kept. A cell whose training stops
    itself does not end a grid, and counts as the worst.

    Args:
        directory: each run goes to `CELL/seed-N`.
        train_seed: (run directory, hyper-parameters, seed) -> result of the run.
        grid: from `cells`.
        seeds: of every cell.
        settings: what a finished run must have been made with, beside the hyper-parameters.
        metric: chooses the cell.

    Returns:
        The content of `results.json`: the summaries of the best cell by split, its runs, and every cell's summary.

    Raises:
        TrainingStopped: if no cell could be trained.
    """
    finished = finished_runs(directory, grid, seeds, settings)

    def train(name: str, seed: int) -> Result:
        run_dir = directory / name / f"seed-{seed}"
        result = {"seed": seed, "settings": settings | {"train": plain(grid[name])}}
        try:
            result |= train_seed(run_dir, grid[name], seed)
        except (TrainingStopped, Diverged) as error:
            if len(grid) == 1:
                raise
            print(f"{run_dir}: {error}; this cell counts as the worst")
            result |= {"stopped": str(error), "scores": {"valid": {}}}
        write_json(run_dir / RESULT, result)
        return result

    def median(name: str) -> float:
        return rank(summaries[name]["valid"].get(metric, {}).get("median", np.nan), metric)

    runs: dict[str, list[Result]] = {}
    summaries: dict[str, dict[str, dict[str, dict[str, float]]]] = {}  # cell -> split -> metric -> mean, median, ...
    best = next(iter(grid))
    for name in tqdm(grid, desc="grid", unit="cell", disable=len(grid) == 1):
        runs[name] = [finished[name, seed] or train(name, seed) for seed in seeds]
        summaries[name] = _summary(runs[name])
        previous, best = best, max(best, name, key=median)  # the first of equals
        for worse in {previous, name} - {best}:
            _drop_weights(directory / worse, seeds)
    for i, seed in enumerate(seeds):  # a cell that was not the best of an earlier grid has lost its weights
        if "stopped" not in runs[best][i] and not any((directory / best / f"seed-{seed}").glob("*.safetensors")):
            runs[best][i] = train(best, seed)
    if stopped := [run["stopped"] for run in runs[best] if "stopped" in run]:
        raise TrainingStopped(f"no cell of the grid could be trained; {best}: {stopped[0]}")
    summaries[best] = _summary(runs[best])
    report = {"settings": settings, "seeds": list(seeds), "metric": metric, "best": best, **summaries[best]}
    report |= {"runs": runs[best], "machine": machine()} | ({"cells": summaries} if len(grid) > 1 else {})
    write_json(directory / REPORT, report)
    return report


def _summary(runs: Sequence[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """Split -> metric -> mean, median, ... over runs; a run that stopped makes them undefined."""
    runs = [run for run in runs if "stopped" in run][:1] or runs
    return {split: summarise([run["scores"][split] for run in runs]) for split in runs[0]["scores"]}


def _drop_weights(cell: Path, seeds: Sequence[int]) -> None:
    """A grid of a hundred runs would fill the disk; the scores, logs and predictions stay."""
    for path in (path for seed in seeds for path in (cell / f"seed-{seed}").glob("*")):
        if path.is_file() and path.name not in (RESULT, "log.jsonl") and not path.name.startswith("predictions"):
            path.unlink()


def seed_directories(path: str) -> list[Path]:
    """The model directories of the seeds of a fine-tuning output (those of the best cell), or the one directory."""
    directory = Path(path)
    try:
        report = json.loads((directory / REPORT).read_text())
        found = [directory / report["best"] / f"seed-{seed}" for seed in report["seeds"]]
    except (OSError, ValueError, KeyError):
        found = sorted(directory.glob("seed-*"))
    return [run_dir for run_dir in found if (run_dir / "config.json").is_file()] or [directory]


def best_seed_directory(path: str) -> Path:
    """The model directory of the seed that is best on valid, or the one directory.

    Raises:
        InputError: if the fine-tuning is not finished.
    """
    run_dirs = seed_directories(path)
    if len(run_dirs) == 1:
        return run_dirs[0]
    try:
        report = json.loads((Path(path) / REPORT).read_text())
    except OSError:
        raise InputError(
            f"the fine-tuning in {path} is not finished; run the same command again, then start from it"
        ) from None
    best = max(report["runs"], key=lambda run: rank(run["scores"]["valid"][report["metric"]], report["metric"]))
    return Path(path) / report["best"] / f"seed-{best['seed']}"
