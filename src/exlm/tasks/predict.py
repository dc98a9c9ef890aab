"""The commands for fine-tuned models: predictions for the rows of a file, and how good they are on
labelled rows."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.data.columns import listed
from exlm.data.frames import read_frames, write_frame
from exlm.data.parts import ROWS, in_words, output_path, write_in_parts
from exlm.errors import InputError
from exlm.storage.files import write_json
from exlm.storage.models import fingerprint
from exlm.tasks.classification import Classification
from exlm.tasks.encoders import saved_task
from exlm.tasks.grid import seed_directories
from exlm.tasks.predictions import PredictOptions, Score, SeedModel
from exlm.tasks.task import FinetuningTask, kind_of

COVERAGE = 0.95  # of the intervals


def predict(
    model: str,
    input: str,
    output: str | None = None,
    label_columns: list[str] | None = None,
    **options: Any,
) -> Path:
    """Adds a fine-tuned model's predictions to a table, in constant memory; if interrupted, the
    same command goes on.

    A directory with several seeds is an ensemble: predictions are means, further columns have the
    standard deviations. For one label with classes, two columns have the predicted class and its
    probability (`confidence`). If the label columns are present too, the metrics are printed; such
    a table, questions and an .xlsx file need memory as a whole.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: table or texts in any format of `exlm prepare`, questions also in SQuAD JSON; `-` is
            standard input.
        output: .csv, .tsv, .parquet or .xlsx file to write; INPUT-MODEL-predictions.csv beside the
            input where absent.
        label_columns: the columns of the labels, if they have other names than in the training.
        options: the settings of `PredictOptions`."""
    target = output_path(
        model, input, output, "predictions.csv", (".csv", ".tsv", ".parquet", ".xlsx")
    )
    predict_options = PredictOptions(label_columns=label_columns, **options)
    kind, models = _seed_models(model, predict_options)
    if issubclass(kind, Classification) and target.suffix != ".xlsx":
        first_rows = next(
            read_frames(input, predict_options.header, ROWS, sheet=predict_options.sheet)
        )
        trained_on = models[0].saved["label_columns"]
        if not set(predict_options.labels_in(first_rows, input, trained_on)) <= set(first_rows):
            counts = _predict_in_parts(kind, models, input, target, predict_options)
            print(f"{in_words(counts)}: {target}")
            return target
    predictions = kind.predict(models, input, predict_options)
    write_frame(predictions.frame, target)
    print(f"{in_words(predictions.counts)}: {target}")
    if predictions.scores:
        score = next(iter(predictions.scores.values()))
        values = score(predictions.labelled).items()
        words = "  ".join(f"{name} {value:.4f}" for name, value in values)
        print(f"{len(predictions.labelled)} labelled rows: {words}")
    if predictions.note:
        print(f"not scored: {predictions.note}")
    return target


def _predict_in_parts(
    kind: type[Classification],
    models: Sequence[SeedModel],
    input: str,
    target: Path,
    options: PredictOptions,
) -> dict[str, int]:
    """Writes the predictions for a table that has no labels, in constant memory; returns the counts
    of its rows."""

    def write(part: pd.DataFrame, path: Path) -> dict[str, int]:
        predictions = kind.predict(models, input, options, part)
        write_frame(predictions.frame, path, header=part.index[0] == 0)
        return predictions.counts

    identities = []
    for model in models:
        directory = str(model.directory)
        identities.append((directory, model.saved, fingerprint(directory)))
    settings = {"models": identities, "options": options}
    return write_in_parts(input, options.header, target, settings, write, options.sheet)


def evaluate(
    model: str,
    input: str,
    output: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    label_columns: list[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Scores a fine-tuned model on labelled data, with 95% bootstrap intervals, and prints a table.

    The intervals say how much the scores would vary with other rows from the same source, the seeds
    how much they vary with another training. `calibration_error` is how far probabilities are from
    how often they are right.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: a file as for `exlm predict`, with the label columns of the fine-tuning.
        output: .json file to write; INPUT-MODEL-evaluation.json beside the input where absent.
        resamples: draws of the bootstrap; 0 for no intervals.
        seed: seed of the draws.
        label_columns: the columns of the labels, if they have other names than in the training.
        options: the settings of `PredictOptions`.

    Returns the content of the file: for every model and metric `value`, `low` and `high`."""
    target = output_path(model, input, output, "evaluation.json", (".json",))
    if resamples < 0:
        raise InputError(f"resamples is {resamples}; it must be 0 (no intervals) or more")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be 0 or more")
    predict_options = PredictOptions(label_columns=label_columns, **options)
    kind, models = _seed_models(model, predict_options)
    predictions = kind.predict(models, input, predict_options)
    labelled = predictions.labelled
    if not len(labelled):
        names = listed(models[0].saved.get("label_columns", ["answer"]), 5)
        reason = predictions.note or (
            f"no row has a prediction and a label in {names}; "
            "name the column that has the labels with label_columns"
        )
        raise InputError(f"{input}: nothing can be scored: {reason}")
    metrics = {
        name: with_intervals(score, labelled, resamples, seed)
        for name, score in predictions.scores.items()
    }
    report = {
        "model": model,
        "input": input,
        "labelled": len(labelled),
        "resamples": resamples,
        "seed": seed,
        "metrics": metrics,
    }
    write_json(target, report)
    print(f"{in_words(predictions.counts)}; {len(labelled)} labelled")
    print(pd.DataFrame(metrics).map(_in_words).to_string())
    print(f"in brackets: {COVERAGE:.0%} bootstrap intervals over rows; everything is in {target}")
    return report


def with_intervals(
    score: Score, rows: np.ndarray, resamples: int, seed: int
) -> dict[str, dict[str, float]]:
    """Every metric on some rows: its `value`, and `low` and `high` on `resamples` draws of as many,
    where defined."""
    values = score(rows)
    generator = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw may lack a class
        draws = [score(generator.choice(rows, len(rows))) for _ in range(resamples)]
    drawn = pd.DataFrame(draws, columns=list(values))
    low = drawn.quantile((1 - COVERAGE) / 2)
    high = drawn.quantile((1 + COVERAGE) / 2)
    return {
        name: {"value": value, "low": low[name], "high": high[name]}
        for name, value in values.items()
    }


def _in_words(metric: dict[str, float]) -> str:
    """A number with its interval, if it has one."""
    value = metric["value"]
    low = metric["low"]
    high = metric["high"]
    if np.isfinite([value, low, high]).all() and low < high:
        return f"{value:.4f} ({low:.4f} to {high:.4f})"
    return f"{value:.4f}"


def _seed_models(
    model: str, options: PredictOptions
) -> tuple[type[FinetuningTask], list[SeedModel]]:
    """The kind of task of a fine-tuned model, and the model, or those of all its seeds. InputError
    if it is no such model."""
    saved_by_run = {run_dir: saved_task(str(run_dir)) for run_dir in seed_directories(model)}
    first_saved = next(iter(saved_by_run.values()))
    kind = kind_of(first_saved["task_type"])
    models = [
        SeedModel(run_dir, saved, kind.model_classes, options.device)
        for run_dir, saved in saved_by_run.items()
    ]
    return kind, models
