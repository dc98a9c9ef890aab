"""Fine-tuning: labelled data, a split, a grid and several seeds; selection on valid, report on test
(or valid).

`results.json` (REPORT) has the results of all seeds, of a grid those of its best cell CELL (else
CELL is ""). Every `CELL/seed-N` has one model, what this seed gave (RESULT), its predictions and
its log."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Template
from tqdm import tqdm

from exlm.data.frames import write_frame
from exlm.describe.card import write_card
from exlm.errors import InputError, TrainingStopped
from exlm.ops.precision import used_precision
from exlm.storage.files import read, replacing, to_json_types, write_json, write_yaml
from exlm.storage.manifest import MANIFEST
from exlm.storage.runs import finished_result, identity, lock, machine, resumable_directory
from exlm.tasks.config import FinetuneConfig, TaskConfig, cells, fill_in, resolve
from exlm.tasks.encoders import encoder_fingerprint
from exlm.tasks.kinds import kind_of
from exlm.tasks.labelled import LabelledTask
from exlm.tasks.metrics import rank, summarise
from exlm.tasks.question_answering import QuestionAnswering
from exlm.tasks.supervised import UNFINISHED
from exlm.train import distributed

RESULT, REPORT = "result.json", "results.json"
Result = dict[str, Any]  # what one seed gave; "scores" holds the metrics of every split but train


def finetune(
    output: str,
    model: str,
    task: TaskConfig,
    train: FinetuneConfig = FinetuneConfig(),
    seeds: list[int] | None = None,
    from_scratch: bool = False,
    grid: dict[str, list[Any]] | None = None,
    start_from: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Fine-tunes a pre-trained model once per seed (and grid cell) and reports medians, means and
    spread.

    If it is interrupted, the same command goes on: with the other seeds, and in an unfinished one
    from its checkpoint.

    Args:
        output: directory; each seed's model goes to `seed-N`, with its predictions for every row.
            At the end, the model of the seed that is best on valid is copied to the directory
            itself.
        model: directory or hub name of the pre-trained model: ExLM, or any encoder that
            transformers knows.
        task: the labelled data and their split.
        train: hyper-parameters.
        seeds: seeds of the head, order, dropout and random splits; 0, 1 and 2 where absent.
        from_scratch: keep the architecture and tokenizer of `model` but start from random weights.
        grid: lists of values for hyper-parameters; every combination is run, the best on valid is
            reported.
        start_from: output of another fine-tuning; training starts from the encoder of its best seed
            (often from MNLI for RTE, MRPC and STS-B).
        device: auto, cpu, cuda or cuda:NUMBER.

    Returns the content of `results.json`: metrics of every seed, and for every split their median,
    mean and spread."""
    if distributed.launched():
        raise InputError(
            "fine-tuning is one process; start it without torchrun, and other tasks beside it"
        )
    if Path(model).resolve() == Path(output).resolve():
        raise InputError(f"output is the directory of the model, {model}; choose another one")
    start = str(best_seed_directory(start_from)) if start_from else None
    fingerprints = {"model_sha256": encoder_fingerprint(model)}
    fingerprints |= {"start_sha256": encoder_fingerprint(start)} if start else {}
    task, known = resolve(task)
    # what auto means differs between machines
    precision = used_precision(distributed.device(device), train.precision)
    named = {"model": model, "task": task, "from_scratch": from_scratch, "start_from": start_from}
    trainer = kind_of(task.task_type)(model, task, from_scratch, start)
    trainer.device = device
    hyper = fill_in(train, known, bool(trainer.task.molecules))
    settings = (
        {**named, "precision": precision, "task": identity(trainer.task)}
        | fingerprints
        | trainer.data_settings
    )
    recipe = {"output": output, **named, "train": hyper, "grid": grid}
    return run_task(
        Path(output), trainer, cells(hyper, grid or {}), seeds, to_json_types(settings), recipe
    )


def run_task(
    directory: Path,
    task: LabelledTask | QuestionAnswering,
    grid: Mapping[str, Any],
    seeds: list[int] | None,
    settings: dict[str, Any],
    recipe: dict[str, Any],
) -> dict[str, Any]:
    """Runs the grid (`run_grid`), prints what was found in the data and what came out; returns
    `results.json`."""
    seeds = [0, 1, 2] if seeds is None else seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {seeds}; give at least one, each once")
    if (directory / RESULT).is_file() or any(directory.glob("checkpoint-*")):
        raise InputError(
            f"{directory} holds a pre-training, which would be overwritten; choose another output"
        )
    dataset, invalid = task.task.dataset, task.invalid
    print(f"{dataset}: {task.summary}")
    for difference in task.data_settings["departures"]:
        print(f"note: {difference}; scores do not compare with published ones")
    if len(invalid):
        first = invalid.iloc[0]
        example = (
            f"{first.part} row {first.row}, value {str(first.value)[:80]!r}: {first.reason}".strip()
        )
        if task.task.on_invalid == "error":
            raise InputError(
                f"{dataset}: {example}; correct or remove it, or set task.on_invalid to skip"
            )
        actions = "".join(
            f"{n} {action}; "
            for action, n in invalid.get("action", pd.Series()).value_counts().items()
        )
        print(
            f"{len(invalid)} rows have something wrong ({actions}see invalid_rows.csv), the first: {example}"
        )
    with lock(directory):
        # a run that is refused changes nothing here
        finished_runs(directory, grid, seeds, settings)
        write_yaml(directory / "recipe.yaml", recipe | {"seeds": seeds})
        write_frame(invalid, directory / "invalid_rows.csv")
        report = run_grid(directory, task.train_seed, grid, seeds, settings, task.metric)
    template = Template(Path(__file__).with_name("result.txt").read_text(encoding="utf-8"))
    print(template.render(report, report=report, directory=directory))
    return report


def finished_runs(
    directory: Path, grid: Mapping[str, Any], seeds: Sequence[int], settings: dict[str, Any]
) -> dict[tuple[str, int], Result | None]:
    """The results of all runs by cell and seed, None for a run that is not finished; InputError if
    settings differ."""
    return {
        (name, seed): finished_result(run_dir / RESULT, "settings", _with_hyper(settings, hyper))
        for name, hyper in grid.items()
        for seed in seeds
        for run_dir in [directory / name / f"seed-{seed}"]
    }


def _with_hyper(settings: dict[str, Any], hyper: Any) -> dict[str, Any]:
    """The settings that two runs must share to be the same, with those hyper-parameters that change
    the numbers."""
    numbers = identity(hyper) if is_dataclass(hyper) else to_json_types(hyper)
    return settings | {"train": numbers}


def run_grid(
    directory: Path,
    train_seed: Callable[[Path, Any, int], Result],
    grid: Mapping[str, Any],
    seeds: Sequence[int],
    settings: dict[str, Any],
    metric: str,
) -> dict[str, Any]:
    """Runs every cell with every seed in `CELL/seed-N`. Finished runs are skipped; InputError if
    they had other `settings` or hyper-parameters. Writes and returns `results.json`.

    The best cell has the best median of `metric` on valid; only its weights are kept, and those of
    its best seed are copied to `directory`. A cell whose training stops with an error (it diverges,
    say) counts as the worst."""
    finished = finished_runs(directory, grid, seeds, settings)
    runs: dict[str, list[Result]] = {}
    summaries: dict[str, dict[str, Any]] = {}  # by cell, split and metric: mean, median, ...

    def train(name: str, seed: int) -> Result:
        run_dir = directory / name / f"seed-{seed}"
        begun: Result = {"seed": seed, "settings": _with_hyper(settings, grid[name])}
        with resumable_directory(run_dir / UNFINISHED, begun):
            try:
                result = begun | train_seed(run_dir, grid[name], seed)
            except TrainingStopped as error:
                if len(grid) == 1:
                    raise
                print(f"{run_dir}: {error}; this cell counts as the worst")
                result = begun | {"stopped": str(error), "scores": {"valid": {}}}
            if "best_epoch" in result:  # it has a model
                write_card(run_dir, result)
            write_json(run_dir / RESULT, result)
        return result

    medians, best = dict[str, float](), next(iter(grid))
    # a kill may have left its checkpoints
    for name, seed in (run for run, result in finished.items() if result):
        shutil.rmtree(directory / name / f"seed-{seed}" / UNFINISHED, ignore_errors=True)
    for name in tqdm(grid, desc="grid", unit="cell", disable=len(grid) == 1):
        runs[name] = [finished[name, seed] or train(name, seed) for seed in seeds]
        summaries[name] = _summary(runs[name])
        medians[name] = rank(summaries[name]["valid"].get(metric, {}).get("median"), metric)
        previous, best = best, max(best, name, key=medians.__getitem__)  # of equal cells, the first
        # a hundred runs would fill the disk; scores and predictions stay
        for worse in {previous, name} - {best}:
            for path in (directory / worse).glob("seed-*/*"):
                if (
                    path.is_file()
                    and path.name not in (RESULT, "log.jsonl")
                    and "predictions" not in path.name
                ):
                    path.unlink()
    # a cell that was not the best of an earlier grid has lost its weights
    for i, seed in enumerate(seeds):
        if "best_epoch" in runs[best][i] and not any(
            (directory / best / f"seed-{seed}").glob("*.safetensors")
        ):
            runs[best][i] = train(best, seed)
    if stopped := [run["stopped"] for run in runs[best] if "stopped" in run]:
        raise TrainingStopped(f"no cell of the grid could be trained; {best}: {stopped[0]}")
    summaries[best] = _summary(runs[best])
    report = {
        "settings": settings,
        "seeds": list(seeds),
        "metric": metric,
        "best": best,
        **summaries[best],
    }
    report |= {"runs": runs[best], "machine": machine()} | (
        {"cells": summaries} if len(grid) > 1 else {}
    )
    report["best_seed"] = best_seed(report)
    if any(runs[best][0].get("labels", {}).values()):
        report["labels"] = _summary(runs[best], "labels")
    if "best_epoch" in runs[best][0]:
        source = directory / best / f"seed-{report['best_seed']}"
        # The manifest comes last: after an interruption the copy is damaged, until the same command
        # is run again.
        for name in (*read(source / MANIFEST)["files"], MANIFEST):
            with replacing(directory / name) as partial:
                shutil.copyfile(source / name, partial)
    write_json(directory / REPORT, report)
    if "best_epoch" in runs[best][0]:
        write_card(directory)
    return report


def _summary(runs: Sequence[Result], what: str = "scores") -> dict[str, Any]:
    """Summarises the scores of all seeds by split. If the training of one has stopped, none of the
    cell is defined."""
    runs = [run for run in runs if "stopped" in run][:1] or runs
    return {split: summarise([run[what][split] for run in runs]) for split in runs[0][what]}


def best_seed(report: dict[str, Any]) -> int:
    """The seed of a report that is best on valid; of equal ones, the first."""
    return max(
        report["runs"],
        key=lambda run: rank(run["scores"]["valid"][report["metric"]], report["metric"]),
    )["seed"]


def seed_directories(path: str) -> list[Path]:
    """The directories of a fine-tuning's models, one per seed (of the best cell), or `path` itself
    if it has none."""
    directory, report = Path(path), read(Path(path) / REPORT)
    found = [directory / report["best"] / f"seed-{seed}" for seed in report.get("seeds", ())]
    found = found or sorted(directory.glob("seed-*"))
    return [run_dir for run_dir in found if (run_dir / "config.json").is_file()] or [directory]


def best_seed_directory(path: str) -> Path:
    """The directory of the model whose seed is best on valid; `path` itself if it has no
    directories of seeds."""
    run_dirs = seed_directories(path)
    if len(run_dirs) == 1:
        return run_dirs[0]
    if not (report := read(Path(path) / REPORT)):
        raise InputError(
            f"the fine-tuning in {path} is not finished; run the same command again, then start from it"
        )
    return Path(path) / report["best"] / f"seed-{best_seed(report)}"
