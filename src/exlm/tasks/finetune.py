"""Fine-tuning: labelled data, a split, a grid and several seeds; selection on valid, report on test
(or valid).

`results.json` (`GridResults`) holds the results of all seeds. With a grid, they are those of the
best grid cell; the folder of a grid cell is CELL, without a grid there is none. Every `CELL/seed-N`
has one model, what this seed gave (`SeedResult`), its predictions and its log."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from exlm.errors import InputError
from exlm.ops.precision import used_precision
from exlm.storage.models import save_model, weight_files
from exlm.tasks.config import FinetuneConfig, TaskConfig, grid_cells
from exlm.tasks.encoders.loading import EncoderSource, encoder_hash
from exlm.tasks.encoders.training import train_best_epoch
from exlm.tasks.grid import DEFAULT_SEEDS, Grid
from exlm.tasks.results import GridResults, SeedResult
from exlm.tasks.rows.datasets import fill_in
from exlm.tasks.rows.task_files import resolve
from exlm.tasks.task_kinds import EncoderTask, find_task_kind
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
) -> GridResults:
    """Fine-tunes a pre-trained model once per seed (and grid cell) and reports medians, means and
    spread.

    If it is interrupted, the same command goes on: with the other seeds, and in an unfinished one
    from its checkpoint.

    Args:
        output: directory; each seed's model goes to `seed-N`, or with a grid to `seed-N` in the
            folder of its grid cell, with its predictions for rows with labels (where train has its
            own file: for those of the others).
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
    model_identity = {
        "model": model,
        "from_scratch": from_scratch,
        "model_sha256": encoder_hash(model),
        # what auto means differs between machines
        "precision": used_precision(devices.device(device), train.precision),
    }
    encoder = EncoderSource(model, from_scratch, device)
    cells = grid_cells(train, grid or {})
    for hyper in cells.values():
        encoder.check_hyper(resolved_task.task_type, hyper)
    encoder_task = find_task_kind(resolved_task.task_type).read_task(encoder, resolved_task)
    molecules = bool(encoder_task.task.config.molecules)
    runs = Grid(
        directory=Path(output),
        task=encoder_task.task,
        train_seed=partial(finetune_seed, encoder_task),
        hyper_by_cell={name: fill_in(hyper, defaults, molecules) for name, hyper in cells.items()},
        seeds=DEFAULT_SEEDS if seeds is None else seeds,
        model_identity=model_identity,
        device=devices.device(device).type,
    )
    recipe = {
        "output": output,
        "model": model,
        "task": task,
        "from_scratch": from_scratch,
        "train": fill_in(train, defaults, molecules),
        "grid": grid,
        "license": license,
    }
    return runs.run(recipe)


def finetune_seed(
    encoder_task: EncoderTask, run_dir: Path, hyper: FinetuneConfig, seed: int
) -> SeedResult:
    """Fine-tunes an encoder with a seed: keeps the epoch that is best on valid by the metric of the
    task, and saves the network in `run_dir`, with its predictions."""
    encoder = encoder_task.encoder
    supervision = encoder_task.supervise(seed, hyper)
    torch.manual_seed(seed)  # which draws the head
    network = encoder.load(supervision.saved_task, hyper, supervision.head_settings)
    metric = encoder_task.task.metric
    best_epoch = train_best_epoch(
        network,
        supervision,
        hyper,
        metric=metric,
        metrics=encoder_task.task.metrics,
        run_dir=run_dir,
        device=encoder.device,
    )
    outputs = supervision.predict(network)
    results = supervision.write_results(outputs, run_dir)
    network.config.task = supervision.calibrate_head(network, outputs).to_json()
    save_model(run_dir, network, encoder.tokenizer)
    return {
        "best_epoch": best_epoch,
        "weight_files": {"model": weight_files(encoder.name)},
        **results,
    }
