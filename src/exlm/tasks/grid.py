"""A grid of hyper-parameters times seeds: runs what is missing, keeps the best cell, reports medians and spread."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from tqdm import tqdm

from exlm.errors import Diverged, InputError, TrainingStopped
from exlm.storage import machine, plain, write_json
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.metrics import LOWER_IS_BETTER, summarise

Grid = dict[str, list[Any]]
Result = dict[str, Any]
TrainSeed = Callable[[Path, FinetuneConfig, int], Result]  # "valid" and other parts of the result hold metrics

RESULT, REPORT = "result.json", "results.json"
WEIGHTS = "*.safetensors"


def cells(train: FinetuneConfig, grid: Grid) -> dict[str, FinetuneConfig]:
    """The hyper-parameters of every cell by its name; without a grid one cell, whose name is empty.

    Raises InputError for what is no hyper-parameter and for one without values.
    """
    kinds = get_type_hints(FinetuneConfig)
    for name, values in grid.items():
        if name not in kinds:
            raise InputError(f"the grid has {name!r}, which is no hyper-parameter; use {', '.join(kinds)}")
        if not isinstance(values, list) or not values:
            raise InputError(f"the grid's {name} must be a list of values, for example [1.0e-5, 2.0e-5]")
    lists = [[_value(name, value, kinds[name]) for value in values] for name, values in grid.items()]
    settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*lists)]
    return {_name(chosen): replace(train, **chosen) for chosen in settings}


def _name(chosen: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in chosen.items())


def _value(name: str, value: Any, kind: Any) -> Any:
    """A value as the hyper-parameter's type: YAML reads 1e-5 as a word."""
    options = get_args(kind)
    if get_origin(kind) is Literal:
        if value not in options:
            raise InputError(f"the grid's {name} has {value!r}; use {' or '.join(options)}")
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"the grid's {name} has {value!r}, which is not a number") from None
    if kind is not int and int not in options:
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

    The best cell has the best median of `metric` on valid; only its weights are kept.

    Args:
        directory: each run goes to `CELL/seed-N`.
        train_seed: (place, hyper-parameters, seed) -> metrics of every part.
        grid: hyper-parameters by cell name.
        seeds: of every cell.
        settings: what a finished run must have been made with.
        metric: chooses the cell.

    Returns:
        The content of `results.json`: the summaries of the best cell by part, its runs, and every cell's summary.
    """
    table: dict[str, dict[str, Any]] = {}
    best, best_runs = "", list[Result]()
    for name, hyper in tqdm(grid.items(), desc="grid", unit="cell", disable=len(grid) == 1):
        made_with = settings | {"train": plain(hyper)}
        train = train_seed if len(grid) == 1 else partial(_or_stopped, train_seed)
        runs = [_seed(directory / name / f"seed-{seed}", train, hyper, seed, made_with) for seed in seeds]
        table[name] = summarise_parts(runs)
        if not best_runs or _score(table[name], metric) > _score(table[best], metric):
            _drop_weights(directory, best, best_runs)
            best, best_runs = name, runs
        else:
            _drop_weights(directory, name, runs)
    if any("stopped" in run for run in best_runs):
        raise TrainingStopped(f"no cell of the grid could be trained; {best or 'the first'}: {best_runs[0]['stopped']}")
    made_with = settings | {"train": plain(grid[best])}
    best_runs = [_seed(directory / best / f"seed-{s}", train_seed, grid[best], s, made_with, True) for s in seeds]
    table[best] = summarise_parts(best_runs)
    report = {"settings": settings, "seeds": list(seeds), "metric": metric}
    report |= {"best": best, **table[best], "runs": best_runs, "machine": machine()}
    if len(grid) > 1:
        report["cells"] = table
    write_json(directory / REPORT, report)
    return report


def check_finished(
    directory: Path, grid: dict[str, FinetuneConfig], seeds: Sequence[int], settings: dict[str, Any]
) -> None:
    """Raises InputError if a finished run in `directory` was made with other settings."""
    for name, hyper in grid.items():
        for seed in seeds:
            _finished(directory / name / f"seed-{seed}", settings | {"train": plain(hyper)})


def summarise_parts(runs: Sequence[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """Summary over runs of every part's metrics; a run that stopped makes them undefined."""
    if stopped := next((run for run in runs if "stopped" in run), None):
        return {part: summarise([values]) for part, values in _defined(stopped).items()}
    return {part: summarise([_defined(run)[part] for run in runs]) for part in runs[0]["scores"]}


def _defined(run: Result) -> dict[str, dict[str, float]]:
    """The scores with NaN in place of null."""
    return {
        part: {name: np.nan if value is None else value for name, value in scores.items()}
        for part, scores in run["scores"].items()
    }


def _or_stopped(train_seed: TrainSeed, place: Path, hyper: FinetuneConfig, seed: int) -> Result:
    """The result, or that training stopped itself: one diverging cell must not end a grid."""
    try:
        return train_seed(place, hyper, seed)
    except (TrainingStopped, Diverged) as error:
        print(f"{place}: {error}; this cell counts as the worst")
        return {"stopped": str(error), "scores": {"valid": {}}}


def members(path: str) -> list[Path]:
    """The model directories of the seeds of a fine-tuning output (those of the best cell), or the one directory."""
    directory = Path(path)
    try:
        report = json.loads((directory / REPORT).read_text())
        places = [directory / report["best"] / f"seed-{seed}" for seed in report["seeds"]]
    except (OSError, ValueError, KeyError):
        places = sorted(directory.glob("seed-*"))
    return [place for place in places if (place / "config.json").is_file()] or [directory]


def best_member(path: str) -> Path:
    """The seed that is best on valid, or the one directory."""
    places = members(path)
    if len(places) == 1:
        return places[0]
    if not (Path(path) / REPORT).is_file():
        raise InputError(f"the fine-tuning in {path} is not finished; run the same command again, then start from it")
    metric = json.loads((Path(path) / REPORT).read_text())["metric"]
    scores = [_defined(json.loads((place / RESULT).read_text()))["valid"][metric] for place in places]
    return places[int(np.nanargmin(scores) if metric in LOWER_IS_BETTER else np.nanargmax(scores))]


def _seed(
    place: Path,
    train_seed: TrainSeed,
    hyper: FinetuneConfig,
    seed: int,
    settings: dict[str, Any],
    with_weights: bool = False,
) -> Result:
    """The result of a seed, trained unless it is finished: `with_weights`, also unless its weights were dropped."""
    result = _finished(place, settings)
    if result is None or (with_weights and not any(place.glob(WEIGHTS))):
        result = {"seed": seed, "settings": settings, **train_seed(place, hyper, seed)}
        write_json(place / RESULT, result)
    return result


def _finished(place: Path, settings: dict[str, Any]) -> Result | None:
    """The result of a finished seed with the same settings, data and model, or None."""
    try:
        result = json.loads((place / RESULT).read_text())
        before = result["settings"]
    except (OSError, ValueError, KeyError):
        return None
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{place} holds a finished run with other settings ({name}); choose another output directory"
            )
    return result


def _score(summary: dict[str, dict[str, dict[str, float]]], metric: str) -> float:
    """Higher is better; a score that is not defined is the worst."""
    value = summary["valid"].get(metric, {}).get("median", np.nan)
    if not np.isfinite(value):
        return -np.inf
    return -value if metric in LOWER_IS_BETTER else value


def _drop_weights(directory: Path, name: str, runs: Sequence[Result]) -> None:
    """A grid of a hundred runs would fill the disk; the scores, logs and predictions stay."""
    for run in runs:
        for path in (directory / name / f"seed-{run['seed']}").glob("*"):
            if path.is_file() and path.name not in (RESULT, "log.jsonl") and not path.name.startswith("predictions"):
                path.unlink()
