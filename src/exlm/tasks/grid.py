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
from exlm.tasks.metrics import LOWER_IS_BETTER, summarise

Result = dict[str, Any]
TrainSeed = Callable[[Path, FinetuneConfig, int], Result]  # "scores" holds the metrics of every split but train
Summary = dict[str, dict[str, dict[str, float]]]  # split -> metric -> mean, median, ...

RESULT, REPORT = "result.json", "results.json"


def cells(train: FinetuneConfig, grid: dict[str, list[Any]]) -> dict[str, FinetuneConfig]:
    """The hyper-parameters of every cell by its name; without a grid one cell, whose name is empty.

    Raises:
        InputError: for what is no hyper-parameter and for one without values.
    """
    types = get_type_hints(FinetuneConfig)
    for name, values in grid.items():
        if name not in types:
            raise InputError(f"the grid has {name!r}, which is no hyper-parameter; use {', '.join(types)}")
        if not isinstance(values, list) or not values:
            raise InputError(f"the grid's {name} must be a list of values, for example [1.0e-5, 2.0e-5]")
    lists = [[_converted(name, value, types[name]) for value in values] for name, values in grid.items()]
    chosen = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]
    return {",".join(f"{name}={value}" for name, value in cell.items()): replace(train, **cell) for cell in chosen}


def _converted(name: str, value: Any, wanted: Any) -> Any:
    """A value as the hyper-parameter's type: YAML reads 1e-5 as a word."""
    options = get_args(wanted)
    if get_origin(wanted) is Literal:
        if value not in options:
            raise InputError(f"the grid's {name} has {value!r}; use {' or '.join(options)}")
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"the grid's {name} has {value!r}, which is not a number") from None
    if wanted is not int and int not in options:
        return number
    if not number.is_integer():
        raise InputError(f"the grid's {name} has {value!r}, which is not a whole number")
    return int(number)


def run_grid(
    directory: Path,
    train_seed: TrainSeed,
    grid: dict[str, FinetuneConfig],
    seeds: Sequence[int],
    settings: dict[str, Any],
    metric: str,
) -> dict[str, Any]:
    """Runs every cell with every seed that is not finished, and writes `results.json`.

    The best cell has the best median of `metric` on valid; only its weights are kept. A cell whose training stops
    itself does not end a grid, and counts as the worst.

    Args:
        directory: each run goes to `CELL/seed-N`.
        train_seed: (run directory, hyper-parameters, seed) -> result of the run.
        grid: hyper-parameters by cell name.
        seeds: of every cell.
        settings: what a finished run must have been made with, beside the hyper-parameters.
        metric: chooses the cell.

    Returns:
        The content of `results.json`: the summaries of the best cell by split, its runs, and every cell's summary.

    Raises:
        TrainingStopped: if no cell could be trained.
    """

    def run(name: str, seed: int, needs_weights: bool = False) -> Result:
        """The result of a run, trained unless it is finished (and, where needed, has its weights still)."""
        run_dir, own_settings = directory / name / f"seed-{seed}", settings | {"train": plain(grid[name])}
        result = finished_result(run_dir / RESULT, "settings", own_settings)
        if result is not None and (not needs_weights or any(run_dir.glob("*.safetensors"))):
            return result
        result = {"seed": seed, "settings": own_settings}
        try:
            result |= train_seed(run_dir, grid[name], seed)
        except (TrainingStopped, Diverged) as error:
            if len(grid) == 1 or needs_weights:
                raise
            print(f"{run_dir}: {error}; this cell counts as the worst")
            result |= {"stopped": str(error), "scores": {"valid": {}}}
        write_json(run_dir / RESULT, result)
        return result

    summaries: dict[str, Summary] = {}
    best, best_runs = "", list[Result]()
    for name in tqdm(grid, desc="grid", unit="cell", disable=len(grid) == 1):
        runs = [run(name, seed) for seed in seeds]
        summaries[name] = summarise_splits(runs)
        beaten = name
        if not best_runs or _rank(summaries[name], metric) > _rank(summaries[best], metric):
            beaten, best, best_runs = best, name, runs
        if beaten:
            _drop_weights(directory / beaten, seeds)
    if stopped := [run["stopped"] for run in best_runs if "stopped" in run]:
        raise TrainingStopped(f"no cell of the grid could be trained; {best or 'the first'}: {stopped[0]}")
    best_runs = [run(best, seed, needs_weights=True) for seed in seeds]
    summaries[best] = summarise_splits(best_runs)
    report = {"settings": settings, "seeds": list(seeds), "metric": metric, "best": best, **summaries[best]}
    report |= {"runs": best_runs, "machine": machine()} | ({"cells": summaries} if len(grid) > 1 else {})
    write_json(directory / REPORT, report)
    return report


def check_finished(
    directory: Path, grid: dict[str, FinetuneConfig], seeds: Sequence[int], settings: dict[str, Any]
) -> None:
    """Raises InputError if a finished run in `directory` was made with other settings."""
    for name, hyper in grid.items():
        for seed in seeds:
            finished_result(directory / name / f"seed-{seed}" / RESULT, "settings", settings | {"train": plain(hyper)})


def summarise_splits(runs: Sequence[Result]) -> Summary:
    """Summary over runs of every split's metrics; a run that stopped makes them undefined."""
    runs = [run for run in runs if "stopped" in run][:1] or runs
    return {split: summarise([run["scores"][split] for run in runs]) for split in runs[0]["scores"]}


def _rank(summary: Summary, metric: str) -> float:
    """Higher is better; a score that is not defined is the worst."""
    value = summary["valid"].get(metric, {}).get("median", np.nan)
    if not np.isfinite(value):
        return -np.inf
    return -value if metric in LOWER_IS_BETTER else value


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
    if not (Path(path) / REPORT).is_file():
        raise InputError(f"the fine-tuning in {path} is not finished; run the same command again, then start from it")
    metric = json.loads((Path(path) / REPORT).read_text())["metric"]
    results = [json.loads((run_dir / RESULT).read_text()) for run_dir in run_dirs]
    scores = np.array([result["scores"]["valid"][metric] for result in results], dtype=float)
    ranks = -scores if metric in LOWER_IS_BETTER else scores
    return run_dirs[int(np.argmax(np.where(np.isnan(ranks), -np.inf, ranks)))]
