"""A grid of hyper-parameters times several seeds, of which the best cell on valid is reported; and
the models that it leaves."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.describe.card import write_card
from exlm.errors import InputError, OutOfMemory, TrainingStopped
from exlm.identity import identity_of
from exlm.storage.files import (
    GRID_REPORT,
    RUN_RESULT,
    read_or_empty,
    replacing,
    to_json_types,
    write_json,
)
from exlm.storage.manifest import MANIFEST
from exlm.storage.runs import finished_result, machine, resumable_directory
from exlm.tasks.labels.metrics import goodness, summarise
from exlm.tasks.supervised import UNFINISHED

BASELINE_FILE = "baseline.json"  # of a baseline, in the place of a model
Result = dict[str, Any]  # what one seed gave; "scores" holds the metrics of every part but train
Statistics = dict[str, dict[str, dict[str, float]]]  # by part, metric and statistic


@dataclass(frozen=True)
class Grid:
    """Runs of every cell with every seed, each in a directory of its own.

    Attributes:
        directory: of the grid; a run is in `CELL/seed-N`.
        train_seed: trains one seed in a directory, with the hyper-parameters of a cell.
        cells: hyper-parameters by the name of the cell.
        identity: what runs must share, besides their hyper-parameters, to be the same.
        metric: its median on valid says which cell is the best."""

    directory: Path
    train_seed: Callable[[Path, Any, int], Result]
    cells: Mapping[str, Any]
    seeds: Sequence[int]
    identity: dict[str, Any]
    metric: str

    def run(self) -> dict[str, Any]:
        """Runs what is not finished; writes and returns `results.json`. InputError if a finished
        run had other settings or hyper-parameters.

        Only the weights of the best cell are kept, and those of its best seed are copied to the
        grid's directory. A cell whose training stops with an error (it diverges, say) counts as the
        worst."""
        runs = dict[str, list[Result]]()
        best = next(iter(self.cells))
        for cell in tqdm(self.cells, desc="grid", unit="cell", disable=len(self.cells) == 1):
            runs[cell] = [self._result_of(cell, seed) for seed in self.seeds]
            # of equal cells the first is the best
            is_better = self._goodness(runs[cell]) > self._goodness(runs[best])
            worse = best if is_better else cell
            if cell != best:
                self._remove_models(worse)
            if is_better:
                best = cell
        results = zip(self.seeds, runs[best], strict=True)
        runs[best] = [self._with_weights(best, seed, result) for seed, result in results]
        for result in runs[best]:
            if "stopped" in result:
                reason = f"no cell of the grid could be trained; {best}: {result['stopped']}"
                raise TrainingStopped(reason)
        return self._write_report(runs, best)

    def run_dir(self, cell: str, seed: int) -> Path:
        """The directory of a run."""
        return self.directory / cell / f"seed-{seed}"

    def finished(self, cell: str, seed: int) -> Result | None:
        """The result of a run, None if it is not finished; InputError if its settings differ."""
        path = self.run_dir(cell, seed) / RUN_RESULT
        return finished_result(path, "settings", self._identity_of(cell))

    def _identity_of(self, cell: str) -> dict[str, Any]:
        """The identity of a cell's runs, with those hyper-parameters that change the numbers."""
        hyper = self.cells[cell]
        numbers = identity_of(hyper) if is_dataclass(hyper) else to_json_types(hyper)
        return {**self.identity, "train": numbers}

    def _goodness(self, results: list[Result]) -> float:
        """How good a cell is on valid; higher is better."""
        scores = summarise_runs(results)["valid"].get(self.metric, {})
        return goodness(scores.get("median"), self.metric)

    def _result_of(self, cell: str, seed: int) -> Result:
        """The result of a run, which is trained unless it is finished."""
        result = self.finished(cell, seed)
        if result is None:
            return self._train(cell, seed)
        # a kill may have left its checkpoints
        shutil.rmtree(self.run_dir(cell, seed) / UNFINISHED, ignore_errors=True)
        return result

    def _with_weights(self, cell: str, seed: int, result: Result) -> Result:
        """The result of a run, which is trained again if it has lost its weights, as the runs of a
        cell have that was not the best of an earlier grid."""
        has_weights = any(self.run_dir(cell, seed).glob("*.safetensors"))
        if has_weights or not _leaves_model(result):
            return result
        return self._train(cell, seed)

    def _train(self, cell: str, seed: int) -> Result:
        """Trains a run and writes its result. If there are other cells, an error that stops the
        training is the result, unless memory ran out: that says nothing of the cell."""
        run_dir = self.run_dir(cell, seed)
        run_identity = {"seed": seed, "settings": self._identity_of(cell)}
        with resumable_directory(run_dir / UNFINISHED, run_identity):
            try:
                result = run_identity | self.train_seed(run_dir, self.cells[cell], seed)
            except TrainingStopped as error:
                if len(self.cells) == 1 or isinstance(error, OutOfMemory):
                    raise
                print(f"{run_dir}: {error}; this cell counts as the worst")
                result = run_identity | {"stopped": str(error), "scores": {"valid": {}}}
            if _leaves_model(result):
                write_card(run_dir, result)
            write_json(run_dir / RUN_RESULT, result)
        return result

    def _remove_models(self, cell: str) -> None:
        """Removes the models of a cell that is not the best: a hundred would fill the disk. Scores
        and predictions stay."""
        for path in (self.directory / cell).glob("seed-*/*"):
            to_keep = path.name in (RUN_RESULT, "log.jsonl") or "predictions" in path.name
            if path.is_file() and not to_keep:
                path.unlink()

    def _write_report(self, runs: dict[str, list[Result]], best: str) -> dict[str, Any]:
        """Writes and returns the report of all cells; copies the model of the best seed of the best
        cell, if there is one, to the directory itself."""
        results = runs[best]
        report: dict[str, Any] = {
            "settings": self.identity,
            "seeds": list(self.seeds),
            "metric": self.metric,
            "best": best,
            **summarise_runs(results),
            "runs": results,
            "machine": machine(),
        }
        if len(runs) > 1:
            report["cells"] = {cell: summarise_runs(of_cell) for cell, of_cell in runs.items()}
        report["best_seed"] = best_seed(report)
        if any(results[0].get("labels", {}).values()):
            report["labels"] = summarise_runs(results, "labels")
        for entry in ("counts", "interval"):
            if all(entry in result for result in results):  # those of earlier versions lack them
                report[entry] = summarise_runs(results, entry)
        if _leaves_model(results[0]):
            source = self.run_dir(best, report["best_seed"])
            # The manifest comes last: after an interruption the copy is damaged, until the same
            # command is run again.
            for name in (*read_or_empty(source / MANIFEST)["files"], MANIFEST):
                with replacing(self.directory / name) as partial:
                    shutil.copyfile(source / name, partial)
        write_json(self.directory / GRID_REPORT, report)
        if _leaves_model(results[0]):
            write_card(self.directory)
        return report


def _leaves_model(result: Result) -> bool:
    """Whether a seed has left a model, as neither a baseline nor a training that stopped has."""
    return "best_epoch" in result


def summarise_runs(runs: Sequence[Result], entry: str = "scores") -> Statistics:
    """Summarises an entry of all seeds' results by part. If the training of one has stopped, none
    of the cell is defined."""
    stopped = [run for run in runs if "stopped" in run]
    summarised_runs = stopped[:1] or runs
    return {
        part: summarise([run[entry][part] for run in summarised_runs])
        for part in summarised_runs[0][entry]
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
