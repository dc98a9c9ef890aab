"""Predictions for the rows of a table; every row of the input appears in the output."""

from typing import Any

import numpy as np
import pandas as pd

from exlm.errors import InputError
from exlm.tasks.encoders import load_finetuned, saved_task
from exlm.tasks.finetune import seed_directories
from exlm.tasks.frames import output_path, read_frame, with_columns, write_frame
from exlm.tasks.inference import predict_rows, prediction_columns, tokenize_rows
from exlm.tasks.metrics import evaluate
from exlm.tasks.question_answering import answer_file
from exlm.tasks.table import make_table
from exlm.train import distributed


def predict(model: str, input: str, output: str | None = None, text_column: str | None = None) -> pd.DataFrame:
    """Adds a fine-tuned model's predictions to a table.

    A directory with several seeds is an ensemble: predictions are means, further columns have the standard deviations.
    Rows that cannot be used stay in the output, marked in the column `problem`. If the label columns are present
    too, the metrics are printed.

    Args:
        model: output directory of `exlm finetune`, or of one of its seeds.
        input: CSV, TSV, JSONL or Parquet file; for question answering also SQuAD JSON.
        output: .csv, .tsv or .parquet file to write; INPUT-predictions.csv beside the input where absent.
        text_column: column of the SMILES or text; found by its name where absent.
    """
    target = output_path(input, output, "predictions.csv", (".csv", ".tsv", ".parquet"))
    run_dirs = [str(path) for path in seed_directories(model)]
    task = saved_task(run_dirs[0])
    if task["task_type"] == "question_answering":
        return answer_file(run_dirs, input, target, task)
    frame = read_frame(input)
    column = text_column or (task["text_column"] if task["text_column"] in frame else None)
    table = make_table(frame, input, column, [], pair_column=task["pair_column"])
    runs = []
    for run_dir in run_dirs:
        network, tokenizer = load_finetuned(run_dir, "classification")
        rows = tokenize_rows(table, tokenizer, task["max_length"], task["molecules"])
        distributed.to_device(network)
        runs.append(predict_rows(network, rows, np.flatnonzero(rows.usable), task, tokenizer))
    predictions = np.mean(runs, 0)
    columns: dict[str, Any] = {}
    for i, name in enumerate(prediction_columns(task)):
        columns[name] = predictions[:, i]
        if len(runs) > 1:
            columns[f"{name} std"] = np.std(runs, 0, ddof=1)[:, i]
    result = with_columns(frame, columns | {"problem": rows.problems})
    write_frame(result, target)
    print(f"{rows.usable.sum()} rows predicted, {(~rows.usable).sum()} marked in the column problem: {target}")
    if not all(name in frame for name in task["label_columns"]):
        return result
    known = table.text_column, task["label_columns"], task["task_type"], task["classes"]
    try:
        labels = make_table(frame, input, *known).labels
        scored = rows.usable & ~np.isnan(labels).all(1)
        scores = evaluate(task["task_type"], labels[scored], predictions[scored])
        print(f"{scored.sum()} labelled rows: " + "  ".join(f"{name} {score:.4f}" for name, score in scores.items()))
    except InputError as error:
        print(f"not scored: {error}")
    return result
