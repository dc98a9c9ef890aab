"""Predictions for the rows of a file; every row of the input appears in the output."""

from typing import Any

import pandas as pd

from exlm.tasks.encoders import saved_task
from exlm.tasks.finetuned import seed_directories
from exlm.tasks.frames import output_path, write_frame
from exlm.tasks.kinds import kind_of
from exlm.tasks.predictions import Member, Predictions, PredictOptions


def predict(model: str, input: str, output: str | None = None, **options: Any) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is an ensemble: predictions are means, further columns have the standard deviations.
    For one label with classes, two columns have the predicted class and its probability (`confidence`). If the label
    columns are present too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: a table or a list of texts, in any format that `exlm prepare` reads; `-` is standard input. For question
            answering also SQuAD JSON.
        output: .csv, .tsv or .parquet file to write; INPUT-predictions.csv beside the input where absent.
        options: the settings of `PredictOptions`.
    """
    target = output_path(input, output, "predictions.csv", (".csv", ".tsv", ".parquet"))
    found = predictions_of(model, input, PredictOptions(**options))
    write_frame(found.frame, target)
    print(f"{found.summary}: {target}")
    if found.scores:
        scores = next(iter(found.scores.values()))(found.labelled)
        values = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"{len(found.labelled)} labelled rows: {values}")
    if found.note:
        print(f"not scored: {found.note}")
    return found.frame


def predictions_of(model: str, input: str, options: PredictOptions) -> Predictions:
    """What a fine-tuned model, or the ensemble of its seeds, predicts for a file. InputError if it is no such model."""
    tasks = {run_dir: saved_task(str(run_dir)) for run_dir in seed_directories(model)}
    kind = kind_of(next(iter(tasks.values()))["task_type"])
    members = [Member(run_dir, task, kind.trainer.models, options.device) for run_dir, task in tasks.items()]
    return kind.predict(members, input, options)
