"""Fine-tuning: labelled data, a split, a grid and several seeds; selection on valid, report on test
(or valid).

`results.json` (`GridReport`) holds the results of all seeds. With a grid, they are those of the
best grid cell; the folder of a grid cell is CELL, without a grid there is none. Every `CELL/seed-N`
has one model, what this seed gave (`RunResult`), its predictions and its log."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.frames import write_frame
from exlm.errors import InputError, note
from exlm.identity import identity_of
from exlm.ops.precision import used_precision
from exlm.storage.files import RUN_RESULT, to_json_types, write_yaml
from exlm.storage.runs import lock
from exlm.tasks.config import FinetuneConfig, TaskConfig, grid_cells
from exlm.tasks.encoders.loading import EncoderSource, encoder_hash
from exlm.tasks.grid import Grid
from exlm.tasks.printed_report import describe_report
from exlm.tasks.results import GridReport
from exlm.tasks.rows.datasets import data_name, fill_in, resolve
from exlm.tasks.rows.table import first_reported_row
from exlm.tasks.task import Task, find_task_type
from exlm.train import devices


def finetune(
    output: str,
    model: str,
    task: TaskConfig,
    train: FinetuneConfig = FinetuneConfig(),
    seeds: list[int] | None = None,
    from_scratch: bool = False,
    grid: dict[str, list[Any]] | None = None,
    device: str = "auto",
    license: str | None = None,
) -> GridReport:
    """Fine-tunes a pre-trained model once per seed (and grid cell) and reports medians, means and
    spread.

    If it is interrupted, the same command goes on: with the other seeds, and in an unfinished one
    from its checkpoint.

    Args:
        output: directory; each seed's model goes to `seed-N`, with its predictions for rows with
            labels (where train has its own file: for those of the others).
            At the end, the model of the seed that is best on valid is copied to the directory
            itself.
        model: directory or hub name of the pre-trained model: ExLM, or another for which
            transformers has a head of this task. Of the output of another fine-tuning (often on
            MNLI for RTE, MRPC and STS-B) the encoder of the best seed is taken, and a warning
            counts the rows of valid and test that were in its training.
        task: the labelled data and their split.
        train: hyper-parameters.
        seeds: seeds of the head, order, dropout and random splits; 0, 1 and 2 where absent.
        from_scratch: keep the architecture and tokenizer of `model` but start from random weights.
        grid: lists of values for hyper-parameters; every combination is run, the best on valid is
            reported.
        device: auto, cpu, cuda or cuda:NUMBER.
        license: licence of the weights, for the model's card, as the Hugging Face hub names it
            (apache-2.0).

    Returns the content of `results.json`: scores of every seed, and for every part their median,
    mean and spread."""
    if devices.started_by_torchrun():
        raise InputError(
            "fine-tuning is one process; start it without torchrun, and other tasks beside it"
        )
    if Path(model).resolve() == Path(output).resolve():
        raise InputError(f"output is the directory of the model, {model}; choose another one")
    resolved_task, defaults = resolve(task)
    identity = {
        "model": model,
        "from_scratch": from_scratch,
        "model_sha256": encoder_hash(model),
        # what auto means differs between machines
        "precision": used_precision(devices.device(device), train.precision),
    }
    encoder = EncoderSource(model, from_scratch)
    finetuning = find_task_type(resolved_task.task_type).read(encoder, resolved_task, device)
    molecules = bool(finetuning.config.molecules)
    hyper_by_cell = {
        name: fill_in(hyper, defaults, molecules)
        for name, hyper in grid_cells(train, grid or {}).items()
    }
    recipe = {
        "output": output,
        "model": model,
        "task": task,
        "from_scratch": from_scratch,
        "train": fill_in(train, defaults, molecules),
        "grid": grid,
        "license": license,
    }
    return run_task(Path(output), finetuning, hyper_by_cell, seeds, identity, recipe)


def run_task(
    directory: Path,
    task: Task,
    hyper_by_cell: Mapping[str, Any],
    seeds: list[int] | None,
    identity: dict[str, Any],
    recipe: dict[str, Any],
) -> GridReport:
    """Runs all grid cells, whose hyper-parameters are given by name, prints what was inferred from
    the data and what came out; returns `results.json`. `identity` is what runs must share besides
    the task's."""
    seeds = [0, 1, 2] if seeds is None else seeds
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"seeds is {seeds}; give at least one, each once, and none below 0")
    if (directory / RUN_RESULT).is_file() or any(directory.glob("checkpoint-*")):
        raise InputError(
            f"{directory} holds a pre-training, which would be overwritten; choose another output"
        )
    print(f"{data_name(task.config)}: {task.summary}")
    for departure in task.departures:
        note(f"{departure}; scores do not compare with published ones")
    if recipe["task"].label_columns:  # the command line cuts names at their commas
        recipe = recipe | {"task": replace(recipe["task"], label_columns=task.config.label_columns)}
    if len(task.reported_rows):
        _print_reported_rows(task.reported_rows, task.config)
    with lock(directory):
        grid = Grid(
            directory=directory,
            train_seed=task.train_seed,
            grid_cells=hyper_by_cell,
            seeds=seeds,
            identity=to_json_types({**identity, "task": identity_of(task.config), **task.identity}),
            metric=task.metric,
            departures=task.departures,
        )
        # a run that is refused changes nothing here
        for seed in seeds:
            results = [grid.finished(name, seed) for name in hyper_by_cell]
            if not all(results):
                task.announce(seed)
        write_yaml(directory / "recipe.yaml", recipe | {"seeds": seeds})
        write_frame(task.reported_rows, directory / "invalid_rows.csv")
        report = grid.run()
    print(describe_report(report, directory))
    return report


def _print_reported_rows(reported_rows: pd.DataFrame, config: TaskConfig) -> None:
    """Prints how many rows were left out, cut or kept with something wrong, and the first of each;
    InputError if the user does not want such rows."""
    if config.on_invalid == "error":
        raise InputError(
            f"{config.dataset}: {first_reported_row(reported_rows)}; "
            "correct or remove it, or set task.on_invalid to skip"
        )
    for action, rows in reported_rows.groupby("action"):
        count = len(rows.drop_duplicates(["part", "row"]))  # a question may have several problems
        first = first_reported_row(rows)
        print(f"rows {action}: {count} (see invalid_rows.csv), the first: {first}")
