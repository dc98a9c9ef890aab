"""Fine-tuning: labelled data, a split, a grid and several seeds; selection on valid, report on test (or valid)."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.storage import lock, plain, write_text, write_yaml
from exlm.tasks.classification import Classification
from exlm.tasks.config import FinetuneConfig, TaskConfig, fill_in, resolve
from exlm.tasks.encoders import encoder_fingerprint
from exlm.tasks.grid import best_seed_directory, cells, finished_runs, run_grid
from exlm.tasks.question_answering import QuestionAnswering, is_question_answering
from exlm.train import distributed
from exlm.train.precision import used_precision


def finetune(
    output: str,
    model: str,
    task: TaskConfig,
    train: FinetuneConfig = FinetuneConfig(),
    seeds: list[int] | None = None,
    from_scratch: bool = False,
    grid: dict[str, list[Any]] | None = None,
    start_from: str | None = None,
) -> dict[str, Any]:
    """Fine-tunes a pre-trained model once per seed (and grid cell) and reports medians, means and spread.

    Run again, it goes on where it was interrupted: a finished seed of a finished cell is not repeated.

    Args:
        output: directory; each seed's model goes to `seed-N`, with its predictions for every row.
        model: directory or hub name of the pre-trained model: ExLM, or any encoder that transformers knows.
        task: the labelled data and their split.
        train: hyper-parameters.
        seeds: of the head, order, dropout and random splits; 0, 1 and 2 where absent.
        from_scratch: keep the architecture and tokenizer of `model` but start from random weights.
        grid: lists of values for hyper-parameters; every combination is run, the best on valid is reported.
        start_from: output of another fine-tuning whose encoder to start from (as often done for RTE, MRPC and STS-B
            from MNLI); its best seed is taken.

    Returns:
        The content of `results.json`: metrics of every seed, and for every split their median, mean and spread.
    """
    seeds = [0, 1, 2] if seeds is None else seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds is {seeds}; give at least one, each once")
    if distributed.launched():
        raise InputError("fine-tuning is one process; start it without torchrun, and other tasks beside it")
    start = str(best_seed_directory(start_from)) if start_from else None
    fingerprints = {"model_sha256": encoder_fingerprint(model)}
    if start:
        fingerprints["start_sha256"] = encoder_fingerprint(start)
    task, known = resolve(task)
    settings = {"model": model, "task": task, "from_scratch": from_scratch, "start_from": start_from}
    settings["precision"] = used_precision(distributed.device(), train.precision)  # auto differs between machines
    kind: type[Trainer] = QuestionAnswering if is_question_answering(task) else Classification
    trainer = kind(model, task, from_scratch, start)
    hyper = fill_in(train, known, bool(trainer.task.molecules))
    chosen = cells(hyper, grid or {})
    _announce(trainer)
    compared = plain(settings | {"task": trainer.task} | fingerprints | trainer.data_settings)
    directory = Path(output)
    with lock(directory):
        finished_runs(directory, chosen, seeds, compared)
        recipe = {"output": output, **plain(settings), "train": hyper, "grid": grid, "seeds": seeds}
        write_yaml(directory / "recipe.yaml", recipe)
        write_text(directory / "invalid_rows.csv", trainer.invalid.to_csv(index=False))
        report = run_grid(directory, trainer.train_seed, chosen, seeds, compared, trainer.metric)
    _print_result(report, directory, start_from)
    return report


def _announce(trainer: Classification | QuestionAnswering) -> None:
    """Says what was understood of the data, and which rows have something wrong."""
    dataset, invalid = trainer.task.dataset, trainer.invalid
    print(f"{dataset}: {trainer.summary}")
    for difference in trainer.data_settings["departures"]:
        print(f"note: {difference}; scores do not compare with published ones")
    if not len(invalid):
        return
    examples = "; ".join(
        f"{row.part} row {row.row}, value {str(row.value)[:80]!r}: {row.reason}".strip()
        for row in invalid.head(3).itertuples()
    )
    if trainer.task.on_invalid == "error":
        raise InputError(f"{dataset}: {examples}; correct or remove it, or set task.on_invalid to skip")
    actions = [f"{count} {action}; " for action, count in invalid.get("action", pd.Series()).value_counts().items()]
    print(f"{len(invalid)} rows have something wrong ({''.join(actions)}see invalid_rows.csv), the first: {examples}")


def _print_result(report: dict[str, Any], directory: Path, start_from: str | None) -> None:
    """Prints the main metric, and which cell of how many it is of."""
    split = "test" if "test" in report else "valid"
    name, seeds = report["metric"], len(report["seeds"])
    value = "{median:.4f}".format(**report[split][name])
    if seeds > 1:
        spread = "{min:.4f} to {max:.4f}; mean {mean:.4f} +- {std:.4f}".format(**report[split][name])
        value += f" (median of {seeds} seeds, {spread})"
    defined = np.isfinite(report[split][name]["mean"])
    note = "" if defined else f" (not defined: the {split} part has only one class)"
    if split == "valid":
        note += "; valid also chose the epoch" + (" and the cell" if "cells" in report else "")
    if "cells" in report:
        note += f"; best of {len(report['cells'])} cells: {report['best']}"
    if "mismatched" in report:
        note += f"; mismatched {report['mismatched'][name]['median']:.4f}"
    if start_from:
        note += f"; started from {start_from}"
    print(f"{split} {name} {value}{note}; everything is in {directory}")
