"""A grid of hyper-parameters times several seeds, of which the best grid cell on valid is
reported."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from tqdm import tqdm

from exlm.data.writing import write_frame
from exlm.describe.card import write_card
from exlm.errors import InputError, OutOfMemory, TrainingStopped
from exlm.identity import identity_of
from exlm.storage.files import (
    GRID_RESULTS,
    MODEL_CARD,
    RECIPE,
    RUN_RESULT,
    TRAINING_LOG,
    read_or_empty,
    replacing,
    to_json_types,
    write_yaml,
)
from exlm.storage.machine import machine
from exlm.storage.manifest import MANIFEST, finish_run, forget_removed
from exlm.storage.run_directories import (
    finished_result,
    lock,
    refuse_other_training,
    resumable_directory,
)
from exlm.tasks.encoders.training import UNFINISHED
from exlm.tasks.labels.scores import goodness
from exlm.tasks.printing import check_and_print_rows, describe_results, print_task
from exlm.tasks.results import (
    IDENTITY_ENTRY,
    GridResults,
    SeedResult,
    best_seed,
    leaves_model,
    summarise_parts,
)
from exlm.tasks.task import Task

DEFAULT_SEEDS = [0, 1, 2]


Hyper = TypeVar("Hyper")  # the hyper-parameters of a grid cell, in the form that `train_seed` takes


@dataclass(frozen=True)
class Grid(Generic[Hyper]):
    """Runs of every grid cell with every seed, each in a directory of its own. InputError for
    seeds, a metric or a directory that cannot be."""

    directory: Path  # of the grid; a run is in `CELL/seed-N`
    task: Task  # its metric's median on valid says which grid cell is the best
    # trains with hyper-parameters and a seed, and leaves what it returns and more in a directory
    train_seed: Callable[[Path, Hyper, int], SeedResult]
    hyper_by_cell: Mapping[str, Hyper]  # by the name of the grid cell
    seeds: Sequence[int]
    # what runs must share to be the same, besides what the task and the hyper-parameters say
    model_identity: dict[str, Any]
    device: str = "auto"  # what it runs on

    def __post_init__(self) -> None:
        if self.task.metric not in self.task.metrics:
            names = ", ".join(self.task.metrics)
            raise InputError(f"there is no metric {self.task.metric!r}; use one of {names}")
        seeds = self.seeds
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise InputError(f"seeds is {seeds}; give at least one, each once, and none below 0")
        if (self.directory / RUN_RESULT).is_file() or any(self.directory.glob("checkpoint-*")):
            raise InputError(
                f"{self.directory} holds a pre-training, which would be overwritten; choose "
                "another output"
            )

    def run(self, recipe: dict[str, Any]) -> GridResults:
        """Runs what is not finished; writes the `recipe` of the command and `results.json`, and
        returns this. Prints what was inferred from the data, and what came out. InputError if a
        finished run had other settings or hyper-parameters.

        Only the weights of the best grid cell are kept; the weights of its best seed are copied to
        the grid's directory. A grid cell whose training stops with an error (it diverges, say)
        counts as the worst."""
        print_task(self.task)
        check_and_print_rows(self.task)
        with lock(self.directory):
            self._begin(recipe)
            results, best = self._run_cells_and_keep_best()
            results[best] = [self._with_model(best, result) for result in results[best]]
            for result in results[best]:
                if "stopped" in result:
                    raise TrainingStopped(
                        f"no cell of the grid could be trained; {best}: {result['stopped']}"
                    )
            grid_results = self._grid_results(results, best)
            self._write_results(grid_results, has_models=leaves_model(results[best][0]))
        print(describe_results(grid_results, self.directory))
        return grid_results

    def _run_cells_and_keep_best(self) -> tuple[dict[str, list[SeedResult]], str]:
        """Runs what is not finished. As soon as a grid cell is known not to be the best, its models
        are removed. Returns the results of all seeds by grid cell, and the best grid cell; of equal
        ones that is the first."""
        results = dict[str, list[SeedResult]]()
        best = next(iter(self.hyper_by_cell))
        has_one_cell = len(self.hyper_by_cell) == 1
        for cell in tqdm(self.hyper_by_cell, desc="grid", unit="cell", disable=has_one_cell):
            results[cell] = [
                self._finished(cell, seed) or self._train(cell, seed) for seed in self.seeds
            ]
            if self._goodness(results[cell]) > self._goodness(results[best]):
                self._remove_models(best)
                best = cell
            elif cell != best:
                self._remove_models(cell)
        return results, best

    def _begin(self, recipe: dict[str, Any]) -> None:
        """Writes the recipe and the rows with something wrong. Before that all runs are checked: if
        one is refused, nothing changes."""
        for seed in self.seeds:
            results = [self._finished(cell, seed) for cell in self.hyper_by_cell]
            if not all(results):
                self.task.check_and_announce(seed)
        self._refuse_to_leave_out()
        # The command line cuts names of columns at their commas; the task has whole ones.
        if recipe["task"].label_columns:
            whole_names = self.task.config.label_columns
            recipe = recipe | {"task": replace(recipe["task"], label_columns=whole_names)}
        path = self.directory / RECIPE
        if read_or_empty(path).get("license") != recipe.get("license"):
            self._card.unlink(missing_ok=True)
        write_yaml(path, recipe | {"seeds": self.seeds})
        write_frame(self.task.reported_rows, self.directory / "invalid_rows.csv")

    def _refuse_to_leave_out(self) -> None:
        """InputError if the directory has results of a seed or grid cell that is not asked for: a
        result without it would take the place of that with it."""
        earlier = read_or_empty(self.directory / GRID_RESULTS)
        if not earlier:
            return
        seeds = [seed for seed in earlier["seeds"] if seed not in self.seeds]
        cells = earlier.get("cells", [earlier["best"]])
        left_out = [cell for cell in cells if cell not in self.hyper_by_cell]
        if seeds:
            raise InputError(
                f"{self.directory} holds results of the seeds {', '.join(map(str, seeds))}; add "
                "these to seeds, or choose another output: this command would leave them out"
            )
        if "" in left_out:
            raise InputError(
                f"{self.directory} holds results without a grid; choose another output: this "
                "command would leave them out"
            )
        if left_out:
            raise InputError(
                f"{self.directory} holds results of the grid cell {left_out[0]}; add this to the "
                "grid, or choose another output: this command would leave them out"
            )

    def _write_results(self, grid_results: GridResults, has_models: bool) -> None:
        """Writes `results.json`, and copies the model of the best seed with a card. A card of the
        same results stays, as the user may have edited it."""
        is_new = to_json_types(grid_results) != read_or_empty(self.directory / GRID_RESULTS)
        if has_models:
            if is_new:
                # first, so that an interruption leaves no card of other results
                self._card.unlink(missing_ok=True)
            self._copy_model(self._run_dir(grid_results["best"], grid_results["best_seed"]))
        finish_run(self.directory, GRID_RESULTS, grid_results)
        if has_models and not self._card.exists():
            write_card(self.directory)

    @property
    def _card(self) -> Path:
        return self.directory / MODEL_CARD

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """What all runs must share to be the same, besides the hyper-parameters."""
        task = {"task": identity_of(self.task.config), **self.task.identity}
        return to_json_types({**self.model_identity, **task})

    def _identity_of(self, cell: str) -> dict[str, Any]:
        """The identity of a grid cell's runs, with the hyper-parameters that change the numbers."""
        hyper = self.hyper_by_cell[cell]
        # Files call the hyper-parameters `train`, as recipes do.
        return {
            **self._identity,
            "train": identity_of(hyper) if is_dataclass(hyper) else to_json_types(hyper),
        }

    def _run_dir(self, cell: str, seed: int) -> Path:
        return self.directory / cell / f"seed-{seed}"

    def _finished(self, cell: str, seed: int) -> SeedResult | None:
        """The result of a run, None if it is not finished; InputError if its settings differ."""
        path = self._run_dir(cell, seed) / RUN_RESULT
        result = finished_result(path, IDENTITY_ENTRY, self._identity_of(cell))
        return cast(SeedResult | None, result)

    def _goodness(self, results: list[SeedResult]) -> float:
        """How good a grid cell is on valid; higher is better."""
        scores = summarise_parts([result["scores"] for result in results])
        metric = self.task.metric
        median = scores["valid"].get(metric, {}).get("median")
        return goodness(median, self.task.metrics[metric])

    def _with_model(self, cell: str, result: SeedResult) -> SeedResult:
        """The result of a run, which is trained again if its model was removed: the grid cell may
        not have been the best of an earlier grid."""
        has_weights = any(self._run_dir(cell, result["seed"]).glob("*.safetensors"))
        if has_weights or not leaves_model(result):
            return result
        return self._train(cell, result["seed"])

    def _train(self, cell: str, seed: int) -> SeedResult:
        """Trains a run and writes its result. If there are other grid cells, an error that stops
        the training is the result, unless memory ran out: that says nothing of the grid cell."""
        run_dir = self._run_dir(cell, seed)
        cell_identity = self._identity_of(cell)
        identity = {"seed": seed, **cell_identity}
        refuse_other_training(run_dir / UNFINISHED, identity)
        with resumable_directory(run_dir / UNFINISHED, identity):
            try:
                result = self.train_seed(run_dir, self.hyper_by_cell[cell], seed)
            except TrainingStopped as error:
                if len(self.hyper_by_cell) == 1 or isinstance(error, OutOfMemory):
                    raise
                print(f"{run_dir}: {error}; this cell counts as the worst")
                result = {"stopped": str(error), "scores": {"valid": {}}}
            result = {"seed": seed, IDENTITY_ENTRY: cell_identity, **result}
            if leaves_model(result):
                write_card(run_dir, dict(result))
            finish_run(run_dir, RUN_RESULT, result)
        return result

    def _remove_models(self, cell: str) -> None:
        """Removes the models of a grid cell that is not the best: a hundred would fill the disk.
        Scores and predictions stay."""
        manifests = list((self.directory / cell).glob(f"seed-*/{MANIFEST}"))
        for path in (self.directory / cell).glob("seed-*/**/*"):
            to_keep = path.name in (RUN_RESULT, TRAINING_LOG) or "predictions" in path.name
            if path.is_file() and not to_keep and path not in manifests:
                path.unlink()
        for manifest in manifests:
            forget_removed(manifest.parent)

    def _copy_model(self, source: Path) -> None:
        """Copies a model to the directory of the grid. The manifest comes last: after an
        interruption the copy is damaged, until the same command is run again."""
        for name in (*read_or_empty(source / MANIFEST)["files"], MANIFEST):
            with replacing(self.directory / name) as partial:
                shutil.copyfile(source / name, partial)

    def _grid_results(self, results: dict[str, list[SeedResult]], best: str) -> GridResults:
        """What `results.json` tells: what all grid cells gave, and the best of them in detail."""
        runs = results[best]
        grid_results = {
            IDENTITY_ENTRY: {**self._identity, "departures": list(self.task.departures)},
            "seeds": list(self.seeds),
            "metric": self.task.metric,
            "best": best,
            **summarise_parts([run["scores"] for run in runs]),
            "runs": runs,
            "machine": machine(self.device),
            "best_seed": best_seed(runs, self.task.metric, self.task.metrics),
        }
        if len(results) > 1:
            grid_results["cells"] = {
                cell: summarise_parts([run["scores"] for run in runs_of_cell])
                for cell, runs_of_cell in results.items()
            }
        entries: list[Literal["labels", "counts", "interval"]] = ["labels", "counts", "interval"]
        for name in entries:
            summary = summarise_parts([run.get(name, {}) for run in runs])
            if any(summary.values()):  # questions have no labels, say
                grid_results[name] = summary
        earlier = read_or_empty(self.directory / GRID_RESULTS)
        as_earlier = grid_results | {"machine": earlier.get("machine")}
        return as_earlier if to_json_types(as_earlier) == earlier else grid_results
