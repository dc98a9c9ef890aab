"""The commands for fine-tuned models: predictions for the rows of a file, and how good they are on
labelled rows."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.data.columns import listed
from exlm.data.frames import ROWS, in_words, output_path, read_frames, write_frame, write_in_parts
from exlm.errors import InputError
from exlm.storage.files import write_json
from exlm.storage.models import fingerprint
from exlm.tasks.encoders import saved_task
from exlm.tasks.finetune import seed_directories
from exlm.tasks.kinds import kind_of
from exlm.tasks.predictions import Member, PredictOptions, Score, predict_table

COVERAGE = 0.95  # of the intervals


def predict(model: str, input: str, output: str | None = None, **options: Any) -> Path:
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
        options: the settings of `PredictOptions`."""
    target = output_path(
        model, input, output, "predictions.csv", (".csv", ".tsv", ".parquet", ".xlsx")
    )
    kind, members = _models(model, chosen := PredictOptions(**options))
    in_parts = kind.predict is predict_table and target.suffix != ".xlsx"
    if in_parts and not {*members[0].task["label_columns"]} <= {
        *next(read_frames(input, chosen.header, ROWS))
    }:

        def write(part: pd.DataFrame, path: Path) -> dict[str, int]:
            found = predict_table(members, input, chosen, part)
            write_frame(found.frame, path, header=part.index[0] == 0)
            return found.counts

        models = [
            (str(one.directory), one.task, fingerprint(str(one.directory))) for one in members
        ]
        counts = write_in_parts(
            input, chosen.header, target, {"models": models, "options": chosen}, write
        )
        print(f"{in_words(counts)}: {target}")
        return target
    found = kind.predict(members, input, chosen)
    write_frame(found.frame, target)
    print(f"{in_words(found.counts)}: {target}")
    if found.scores:
        scores = next(iter(found.scores.values()))(found.labelled)
        values = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"{len(found.labelled)} labelled rows: {values}")
    if found.note:
        print(f"not scored: {found.note}")
    return target


def evaluate(
    model: str,
    input: str,
    output: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
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
        options: the settings of `PredictOptions`.

    Returns the content of the file: for every model and metric `value`, `low` and `high`."""
    target = output_path(model, input, output, "evaluation.json", (".json",))
    if resamples < 0:
        raise InputError(f"resamples is {resamples}; it must be 0 (no intervals) or more")
    kind, members = _models(model, chosen := PredictOptions(**options))
    found = kind.predict(members, input, chosen)
    if not len(found.labelled):
        wanted = listed(members[0].task.get("label_columns", ["answer"]), 5)
        reason = (
            found.note
            or f"no row has a prediction and a label in {wanted}; rename the column that has the labels"
        )
        raise InputError(f"{input}: nothing can be scored: {reason}")
    metrics = {
        name: with_intervals(score, found.labelled, resamples, seed)
        for name, score in found.scores.items()
    }
    settings = {
        "model": model,
        "input": input,
        "labelled": len(found.labelled),
        "resamples": resamples,
        "seed": seed,
    }
    write_json(target, report := settings | {"metrics": metrics})
    cells = {
        name: {metric: _cell(values) for metric, values in of.items()}
        for name, of in metrics.items()
    }
    print(f"{in_words(found.counts)}; {len(found.labelled)} labelled")
    print(pd.DataFrame(cells).to_string())
    print(f"in brackets: {COVERAGE:.0%} bootstrap intervals over rows; everything is in {target}")
    return report


def with_intervals(
    score: Score, rows: np.ndarray, resamples: int, seed: int
) -> dict[str, dict[str, float]]:
    """Every metric on some rows: its `value`, and `low` and `high` on `resamples` draws of as many,
    where defined."""
    values, generator = score(rows), np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw may lack a class
        draws = [score(generator.choice(rows, len(rows))) for _ in range(resamples)]
    drawn = pd.DataFrame(draws, columns=list(values))
    low, high = (drawn.quantile((1 + side * COVERAGE) / 2) for side in (-1, 1))
    return {
        name: {"value": value, "low": low[name], "high": high[name]}
        for name, value in values.items()
    }


def _cell(found: dict[str, float]) -> str:
    """A number with its interval, if it has one."""
    varies = np.isfinite([*found.values()]).all() and found["low"] < found["high"]
    return ("{value:.4f} ({low:.4f} to {high:.4f})" if varies else "{value:.4f}").format_map(found)


def _models(model: str, options: PredictOptions) -> tuple[Any, list[Member]]:
    """A fine-tuned model, or the ensemble of its seeds, and the kind of its task. InputError if it
    is no such model."""
    tasks = {run_dir: saved_task(str(run_dir)) for run_dir in seed_directories(model)}
    kind = kind_of(next(iter(tasks.values()))["task_type"])
    return kind, [
        Member(run_dir, task, kind.models, options.device) for run_dir, task in tasks.items()
    ]
