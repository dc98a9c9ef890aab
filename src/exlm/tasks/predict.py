"""The commands for fine-tuned models: predictions for the rows of a file, and how good they are on
labelled rows."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.delimited import TableLayout
from exlm.data.frames import FileRows
from exlm.data.output_files import (
    describe_counts,
    find_writable_columns,
    output_layout,
    output_path,
    write_by_frames,
)
from exlm.data.writing import added_name, write_frame
from exlm.errors import InputError, note
from exlm.storage.files import GRID_RESULTS, read_or_empty, write_json
from exlm.storage.models import weight_hash
from exlm.tasks.baselines.saved import BaselineModel, SavedBaseline
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import with_intervals
from exlm.tasks.printing import print_report
from exlm.tasks.results import is_baseline, seed_directories
from exlm.tasks.rows.table import UNUSABLE
from exlm.tasks.tables.predictions import Predictions, PredictOptions
from exlm.tasks.tables.seed_models import SeedModel, open_encoder
from exlm.tasks.tables.table_predictor import make_table_predictor
from exlm.tasks.task_kinds import find_task_kind


def predict(
    model: str,
    input: str,
    output: str | None = None,
    **options: Any,
) -> Path:
    """Adds a fine-tuned model's predictions to a table, in constant memory; if interrupted, the
    same command goes on.

    A directory with several seeds is an ensemble: predictions are means, further columns have the
    standard deviations. For one label with classes, two columns have the predicted class and its
    probability (`confidence`). The column `in_training` says of every row whether its text or
    molecule was in the training, if the model keeps a record of it; `cut` says whether a text was
    too long and its end not read (molecules are not cut). If the label columns are
    present too, the metrics are printed; such a table, questions and an .xlsx file need memory as a
    whole.

    Args:
        model: output directory of `exlm finetune` or `exlm baseline`, or of one of its seeds.
        input: table or texts in any format of `exlm prepare`, questions also in SQuAD JSON; `-`
            is standard input with a text in each line, and `-.csv`, `-.jsonl`, ... with a table.
        output: .csv, .tsv, .jsonl, .parquet or .xlsx file to write; INPUT-MODEL-predictions.csv
            beside the input where absent.
        options: the settings of `PredictOptions`."""
    suffixes = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
    target = output_path(model, input, output, "predictions.csv", suffixes)
    predict_options = PredictOptions(**options)
    models = _seed_models(model, predict_options)
    task_kind = find_task_kind(models[0].saved_task.task_type)
    predictor = task_kind.make_predictor(models, input, predict_options)
    layout = output_layout(
        input,
        predict_options.header,
        target,
        predictor.label_columns,
        predict_options.sheet,
    )
    # pieces of a workbook cannot be joined
    if predictor.predict_rows and target.suffix != ".xlsx":
        identity = {
            "models": [
                (str(seed.directory), seed.saved_task, weight_hash(str(seed.directory)))
                for seed in models
            ],
            "options": predict_options,
        }
        write_rows = partial(_write_rows, predictor.predict_rows, layout)
        counts = write_by_frames(predict_options.file(input), target, identity, write_rows)
        print(f"{describe_counts(counts)}: {target}")
        return target
    if predictor.label_columns:  # questions may be in a file that is no table
        find_writable_columns(predict_options.file(input), target)  # refuses what cannot be written
    predictions = predictor.predict(False)
    frame = predictions.frame
    if target.suffix in (".parquet", ".xlsx"):  # whose programs count with numbers, not with texts
        frame = frame.assign(**predictions.label_numbers)
    write_frame(frame, target, layout=layout)
    print(f"{describe_counts(predictions.counts)}: {target}")
    if predictions.evaluation:
        report = _report(predictions, resamples=0, seed=0)
        _print_report(report, models[0].saved_task, predictions)
    if predictions.note:
        print(f"not scored: {predictions.note}")
    return target


def _write_rows(
    predict_rows: Callable[[FileRows], Predictions],
    layout: TableLayout,
    rows: FileRows,
    path: Path,
) -> dict[str, int]:
    """Writes the predictions for the rows of a frame into a piece of the output. Returns how many
    rows there are of every kind."""
    predictions = predict_rows(rows)
    begins_file = rows.frame.index[0] == 0
    write_frame(predictions.frame, path, header=begins_file, layout=layout)
    return predictions.counts


def can_predict(model: str) -> bool:
    """Whether a directory holds models that `exlm predict` takes."""
    run_dir = seed_directories(model)[0]
    return is_baseline(run_dir) or "task" in read_or_empty(run_dir / "config.json")


def explain_prediction(model: str, text: str, page: str) -> None:
    """Draws what the prediction of a fine-tuned model for one text rests on, as `explain` does for
    a file. InputError if there is no prediction."""
    options = PredictOptions(explain=page)
    models = _seed_models(model, options)
    saved_task = models[0].saved_task
    if not saved_task.text_column or saved_task.pair_column:
        raise InputError(
            f"{model} predicts for several texts at a time; give them in a file to exlm predict"
        )
    row = FileRows(pd.DataFrame({saved_task.text_column: [text]}))
    make_table_predictor(models, "the text", options, row).predict_rows(row)
    print(f"1 prediction: {page}")


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
        model: output directory of `exlm finetune` or `exlm baseline`, or of one of its seeds.
        input: a file as for `exlm predict`, with the label columns of the fine-tuning.
        output: .json file to write; INPUT-MODEL-evaluation.json beside the input where absent.
        resamples: draws of the bootstrap; 0 for no intervals.
        seed: seed of the draws.
        options: the settings of `PredictOptions`.

    Returns the content of the file: for every model and metric `value`, `low` and `high`, with
    several labels the metrics of every label (`labels`), and with several classes those of every
    class, or kind of entity (`classes`), and how many rows of each class are predicted to have
    which (`confusion`)."""
    target = output_path(model, input, output, "evaluation.json", (".json",))
    for name, value in (("resamples", resamples), ("seed", seed)):
        if value < 0:
            raise InputError(f"{name} is {value}; it must be 0 or more")
    predict_options = PredictOptions(**options)
    models = _seed_models(model, predict_options)
    saved_task = models[0].saved_task
    task_kind = find_task_kind(saved_task.task_type)
    predictions = task_kind.make_predictor(models, input, predict_options).predict(True)
    report = {"model": model, "input": input, **_report(predictions, resamples, seed)}
    write_json(target, report)
    problem_column = added_name(predictions.frame, "problem")
    why_unusable = f"without a prediction (the column {problem_column} of exlm predict says why)"
    print(describe_counts(predictions.counts).replace(UNUSABLE, why_unusable))
    _print_report(report, saved_task, predictions)
    print(f"everything is in {target}")
    return report


def _print_report(report: dict[str, Any], saved_task: SavedTask, predictions: Predictions) -> None:
    assert predictions.evaluation is not None
    print_report(
        report,
        saved_task,
        positives=predictions.evaluation.positives,
        seen_column=added_name(predictions.frame, "in_training"),
    )


def _report(predictions: Predictions, resamples: int, seed: int) -> dict[str, Any]:
    """How many rows are scored, and their scores: what `evaluate` returns but for `model` and
    `input`. The calibration error has no interval: samples repeat rows, which makes it larger."""
    evaluation = predictions.evaluation
    assert evaluation is not None
    metrics = {}
    for name, score in evaluation.scorers.items():
        progress = f"intervals of {name}"
        metrics[name] = with_intervals(score, evaluation.rows, resamples, seed, progress)
        for bound in ("low", "high", "draws"):
            metrics[name].get("calibration_error", {}).pop(bound, None)
    return {
        "labelled": len(evaluation.rows),
        "unknown_labels": evaluation.unknown_labels,
        "unusable": predictions.counts.get(UNUSABLE, 0),
        "in_training": evaluation.seen_rows,
        "resamples": resamples,
        "seed": seed,
        "metrics": metrics,
        **evaluation.details,
    }


def _seed_models(model: str, options: PredictOptions) -> list[SeedModel]:
    """A fine-tuned model, or those of all its seeds. InputError if it is no such model."""
    run_dirs = seed_directories(model)
    if run_dirs != [Path(model)] and not (Path(model) / GRID_RESULTS).exists():
        seeds = ", ".join(run_dir.name for run_dir in run_dirs)
        note(f"the fine-tuning in {model} is not finished; only {seeds} predict")
    models = [_open_model(run_dir, options.device) for run_dir in run_dirs]
    for seed_model in models:
        find_task_kind(seed_model.saved_task.task_type)  # InputError if there is no such type
    return models


def _open_model(run_dir: Path, device: str) -> SeedModel:
    if is_baseline(run_dir):
        baseline = SavedBaseline.read(run_dir)
        return BaselineModel(run_dir, baseline.task, baseline)
    return open_encoder(run_dir, device)
