"""A grid of hyper-parameters times several seeds: every run has a directory `CELL/seed-N`, the best
cell on valid is reported."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.describe.card import write_card
from exlm.errors import InputError, OutOfMemory, TrainingStopped
from exlm.identity import identity
from exlm.storage.files import read_or_empty, replacing, to_json_types, write_json
from exlm.storage.manifest import MANIFEST
from exlm.storage.runs import (
    GRID_REPORT,
    finished_result,
    machine,
    resumable_directory,
)
from exlm.tasks.metrics import goodness, summarise
from exlm.tasks.supervised import UNFINISHED

SEED_RESULT = "result.json"
BASELINE_FILE = "baseline.json"  # of a baseline, in the place of a model
Result = dict[str, Any]  # what one seed gave; "scores" holds the metrics of every split but train
Statistics = dict[str, dict[str, dict[str, float]]]  # by split, metric and statistic
TrainSeed = Callable[[Path, Any, int], Result]


def run_grid(
    directory: Path,
    train_seed: TrainSeed,
    cells: Mapping[str, Any],
    seeds: Sequence[int],
    settings: dict[str, Any],
    metric: str,
) -> dict[str, Any]:
    """Runs every cell with every seed in `CELL/seed-N`; `cells` are hyper-parameters by the name of
    the cell. Finished runs are skipped; InputError if they had other `settings` or
    hyper-parameters. Writes and returns `results.json`.

    The best cell has the best median of `metric` on valid; only its weights are kept, and those of
    its best seed are copied to `directory`. A cell whose training stops with an error (it diverges,
    say) counts as the worst."""

    def train_run(cell: str, seed: int) -> Result:
        run_dir = directory / cell / f"seed-{seed}"
        run_identity = {"seed": seed, "settings": _with_hyper(settings, cells[cell])}
        return _train_run(run_dir, train_seed, cells[cell], run_identity, may_fail=len(cells) > 1)

    finished = finished_runs(directory, cells, seeds, settings)
    for (cell, seed), result in finished.items():
        if result:  # a kill may have left its checkpoints
            unneeded = directory / cell / f"seed-{seed}" / UNFINISHED
            shutil.rmtree(unneeded, ignore_errors=True)

    runs = dict[str, list[Result]]()
    ranks = dict[str, float]()
    best = next(iter(cells))
    for cell in tqdm(cells, desc="grid", unit="cell", disable=len(cells) == 1):
        runs[cell] = [finished[cell, seed] or train_run(cell, seed) for seed in seeds]
        scores = summarise_runs(runs[cell])["valid"].get(metric, {})
        ranks[cell] = goodness(scores.get("median"), metric)
        if ranks[cell] > ranks[best]:  # of equal cells, the first
            _remove_models(directory / best)
            best = cell
        elif cell != best:
            _remove_models(directory / cell)
    for i, seed in enumerate(seeds):
        # a cell that was not the best of an earlier grid has lost its weights
        weights = (directory / best / f"seed-{seed}").glob("*.safetensors")
        if has_model(runs[best][i]) and not any(weights):
            runs[best][i] = train_run(best, seed)
    for run in runs[best]:
        if "stopped" in run:
            raise TrainingStopped(f"no cell of the grid could be trained; {best}: {run['stopped']}")
    return _write_report(directory, runs, best, seeds, settings, metric)


def finished_runs(
    directory: Path, cells: Mapping[str, Any], seeds: Sequence[int], settings: dict[str, Any]
) -> dict[tuple[str, int], Result | None]:
    """The results of all runs by cell and seed, None for a run that is not finished; InputError if
    settings differ."""
    return {
        (cell, seed): finished_result(
            directory / cell / f"seed-{seed}" / SEED_RESULT,
            "settings",
            _with_hyper(settings, hyper),
        )
        for cell, hyper in cells.items()
        for seed in seeds
    }


def has_model(result: Result) -> bool:
    """Whether a seed has left a model, as neither a baseline nor a training that stopped has."""
    return "best_epoch" in result


def _with_hyper(settings: dict[str, Any], hyper: Any) -> dict[str, Any]:
    """The settings that two runs must share to be the same, with those hyper-parameters that change
    the numbers."""
    numbers = identity(hyper) if is_dataclass(hyper) else to_json_types(hyper)
    return {**settings, "train": numbers}


def _train_run(
    run_dir: Path, train_seed: TrainSeed, hyper: Any, run_identity: dict[str, Any], may_fail: bool
) -> Result:
    """Trains one seed of a cell and writes its result. Where it `may_fail`, an error that stops the
    training is the result, unless memory ran out: that says nothing of the cell."""
    with resumable_directory(run_dir / UNFINISHED, run_identity):
        try:
            result = run_identity | train_seed(run_dir, hyper, run_identity["seed"])
        except TrainingStopped as error:
            if not may_fail or isinstance(error, OutOfMemory):
                raise
            print(f"{run_dir}: {error}; this cell counts as the worst")
            result = run_identity | {"stopped": str(error), "scores": {"valid": {}}}
        if has_model(result):
            write_card(run_dir, result)
        write_json(run_dir / SEED_RESULT, result)
    return result


def _remove_models(cell: Path) -> None:
    """Removes the models of a cell that is not the best: a hundred would fill the disk. Scores and
    predictions stay."""
    for path in cell.glob("seed-*/*"):
        to_keep = path.name in (SEED_RESULT, "log.jsonl") or "predictions" in path.name
        if path.is_file() and not to_keep:
            path.unlink()


def _write_report(
    directory: Path,
    runs: dict[str, list[Result]],
    best: str,
    seeds: Sequence[int],
    settings: dict[str, Any],
    metric: str,
) -> dict[str, Any]:
    """Writes and returns the report of all cells; copies the model of the best seed of the best
    cell, if there is one, to the directory itself."""
    report: dict[str, Any] = {
        "settings": settings,
        "seeds": list(seeds),
        "metric": metric,
        "best": best,
        **summarise_runs(runs[best]),
        "runs": runs[best],
        "machine": machine(),
    }
    if len(runs) > 1:
        report["cells"] = {cell: summarise_runs(results) for cell, results in runs.items()}
    report["best_seed"] = best_seed(report)
    if any(runs[best][0].get("labels", {}).values()):
        report["labels"] = summarise_runs(runs[best], "labels")
    for entry in ("counts", "interval"):
        if all(entry in run for run in runs[best]):  # those of earlier versions lack them
            report[entry] = summarise_runs(runs[best], entry)
    if has_model(runs[best][0]):
        source = directory / best / f"seed-{report['best_seed']}"
        # The manifest comes last: after an interruption the copy is damaged, until the same command
        # is run again.
        for name in (*read_or_empty(source / MANIFEST)["files"], MANIFEST):
            with replacing(directory / name) as partial:
                shutil.copyfile(source / name, partial)
    write_json(directory / GRID_REPORT, report)
    if has_model(runs[best][0]):
        write_card(directory)
    return report


def summarise_runs(runs: Sequence[Result], entry: str = "scores") -> Statistics:
    """Summarises an entry of all seeds' results by split. If the training of one has stopped, none
    of the cell is defined."""
    stopped = [run for run in runs if "stopped" in run]
    summarised_runs = stopped[:1] or runs
    return {
        split: summarise([run[entry][split] for run in summarised_runs])
        for split in summarised_runs[0][entry]
    }


def best_seed(report: dict[str, Any]) -> int:
    """The seed of a report that is best on valid; of equal ones, the first."""
    metric = report["metric"]
    best_run = max(report["runs"], key=lambda run: goodness(run["scores"]["valid"][metric], metric))
    return best_run["seed"]


def seed_directories(path: str) -> list[Path]:
    """The directories of a fine-tuning's models, one per seed (of the best cell), or `path` itself
    if it has none."""
    directory = Path(path)
    report = read_or_empty(directory / GRID_REPORT)
    run_dirs = [directory / report["best"] / f"seed-{seed}" for seed in report.get("seeds", ())]
    models = [
        run_dir
        for run_dir in run_dirs or sorted(directory.glob("seed-*"))
        if (run_dir / "config.json").is_file() or (run_dir / BASELINE_FILE).is_file()
    ]
    return models or [directory]


def best_seed_directory(path: str) -> Path:
    """The directory of the model whose seed is best on valid; `path` itself if it has no
    directories of seeds."""
    run_dirs = seed_directories(path)
    if len(run_dirs) == 1:
        return run_dirs[0]
    report = read_or_empty(Path(path) / GRID_REPORT)
    if not report:
        raise InputError(
            f"the fine-tuning in {path} is not finished; "
            "run the same command again, then start from it"
        )
    return Path(path) / report["best"] / f"seed-{best_seed(report)}"
