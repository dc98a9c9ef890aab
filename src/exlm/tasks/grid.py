"""A grid of hyper-parameters times several seeds, of which the best grid cell on valid is
reported."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.describe.card import write_card
from exlm.errors import OutOfMemory, TrainingStopped
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
from exlm.storage.runs import finished_result, machine, refuse_other_settings, resumable_directory
from exlm.tasks.encoders.supervised import UNFINISHED
from exlm.tasks.labels.metrics import goodness
from exlm.tasks.results import GridReport, RunResult, best_seed, leaves_model, summarise_parts


@dataclass(frozen=True)
class Grid:
    """Runs of every grid cell with every seed, each in a directory of its own."""

    directory: Path  # of the grid; a run is in `CELL/seed-N`
    # trains one seed in a directory, with the hyper-parameters of a grid cell
    train_seed: Callable[[Path, Any, int], RunResult]
    grid_cells: Mapping[str, Any]  # hyper-parameters by the name of the grid cell
    seeds: Sequence[int]
    identity: dict[str, Any]  # what runs must share, besides hyper-parameters, to be the same
    metric: str  # its median on valid says which grid cell is the best
    departures: Sequence[str] = ()  # from the published data, in words, for the report

    def run(self) -> GridReport:
        """Runs what is not finished; writes and returns `results.json`. InputError if a finished
        run had other settings or hyper-parameters.

        Only the weights of the best grid cell are kept, and those of its best seed are copied to
        the grid's directory. A grid cell whose training stops with an error (it diverges, say)
        counts as the worst."""
        results = dict[str, list[RunResult]]()
        best, *_ = self.grid_cells
        is_single = len(self.grid_cells) == 1
        for name in tqdm(self.grid_cells, desc="grid", unit="cell", disable=is_single):
            results[name] = [
                self.finished(name, seed) or self._train(name, seed) for seed in self.seeds
            ]
            # of equal ones the first is the best
            if self._goodness(results[name]) > self._goodness(results[best]):
                self._remove_models(best)
                best = name
            elif name != best:
                self._remove_models(name)
        results[best] = [self._with_model(best, result) for result in results[best]]
        for result in results[best]:
            if "stopped" in result:
                raise TrainingStopped(
                    f"no cell of the grid could be trained; {best}: {result['stopped']}"
                )
        report = self._report(results, best)
        if leaves_model(results[best][0]):
            self._copy_model(self.run_dir(best, report["best_seed"]))
        write_json(self.directory / GRID_REPORT, report)
        if leaves_model(results[best][0]):
            write_card(self.directory)
        return report

    def run_dir(self, name: str, seed: int) -> Path:
        """The directory of a run of the grid cell `name`."""
        return self.directory / name / f"seed-{seed}"

    def finished(self, name: str, seed: int) -> RunResult | None:
        """The result of a run, None if it is not finished; InputError if its settings differ."""
        path = self.run_dir(name, seed) / RUN_RESULT
        return finished_result(path, "settings", self._identity_of(name))

    def _identity_of(self, name: str) -> dict[str, Any]:
        """The identity of a grid cell's runs, with those hyper-parameters that change the
        numbers."""
        hyper = self.grid_cells[name]
        numbers = identity_of(hyper) if is_dataclass(hyper) else to_json_types(hyper)
        return {**self.identity, "train": numbers}

    def _goodness(self, results: list[RunResult]) -> float:
        """How good a grid cell is on valid; higher is better."""
        scores = summarise_parts([result["scores"] for result in results])
        return goodness(scores["valid"].get(self.metric, {}).get("median"), self.metric)

    def _with_model(self, name: str, result: RunResult) -> RunResult:
        """The result of a run, which is trained again if its model was removed, as those of a grid
        cell are that was not the best of an earlier grid."""
        has_weights = any(self.run_dir(name, result["seed"]).glob("*.safetensors"))
        if has_weights or not leaves_model(result):
            return result
        return self._train(name, result["seed"])

    def _train(self, name: str, seed: int) -> RunResult:
        """Trains a run and writes its result. If there are other grid cells, an error that stops
        the training is the result, unless memory ran out: that says nothing of the grid cell."""
        run_dir = self.run_dir(name, seed)
        settings = self._identity_of(name)
        identity = {"seed": seed, **settings}
        refuse_other_settings(run_dir / UNFINISHED, identity)
        with resumable_directory(run_dir / UNFINISHED, identity):
            try:
                scores = self.train_seed(run_dir, self.grid_cells[name], seed)
            except TrainingStopped as error:
                if len(self.grid_cells) == 1 or isinstance(error, OutOfMemory):
                    raise
                print(f"{run_dir}: {error}; this cell counts as the worst")
                scores = {"stopped": str(error), "scores": {"valid": {}}}
            result = {"seed": seed, "settings": settings, **scores}
            if leaves_model(result):
                write_card(run_dir, result)
            write_json(run_dir / RUN_RESULT, result)
        return result

    def _remove_models(self, name: str) -> None:
        """Removes the models of a grid cell that is not the best: a hundred would fill the disk.
        Scores and predictions stay."""
        for path in (self.directory / name).glob("seed-*/**/*"):
            to_keep = path.name in (RUN_RESULT, "log.jsonl") or "predictions" in path.name
            if path.is_file() and not to_keep:
                path.unlink()

    def _copy_model(self, source: Path) -> None:
        """Copies a model to the directory of the grid. The manifest comes last: after an
        interruption the copy is damaged, until the same command is run again."""
        for name in (*read_or_empty(source / MANIFEST)["files"], MANIFEST):
            with replacing(self.directory / name) as partial:
                shutil.copyfile(source / name, partial)

    def _report(self, results: dict[str, list[RunResult]], best: str) -> GridReport:
        """What all grid cells gave, and the best of them in detail."""
        runs = results[best]
        report = {
            "settings": {**self.identity, "departures": list(self.departures)},
            "seeds": list(self.seeds),
            "metric": self.metric,
            "best": best,
            **summarise_parts([run["scores"] for run in runs]),
            "runs": runs,
            "machine": machine(),
            "best_seed": best_seed(runs, self.metric),
        }
        if len(results) > 1:
            report["cells"] = {
                name: summarise_parts([run["scores"] for run in runs_of_cell])
                for name, runs_of_cell in results.items()
            }
        for name in ("labels", "counts", "interval"):
            summary = summarise_parts([run.get(name, {}) for run in runs])
            if any(summary.values()):  # questions have no labels, say
                report[name] = summary
        return report
