"""What the training of a seed leaves beside a model: predictions, scores and a record of what it
learned from."""

from functools import partial
from pathlib import Path

import numpy as np
import rdkit

from exlm.data.writing import add_columns, write_frame
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import quick_interval
from exlm.tasks.results import SeedResult
from exlm.tasks.rows.hashes import rows_hash, split_hash
from exlm.tasks.rows.splits import RowSplit, part_of_rows
from exlm.tasks.rows.table import LabelledTable
from exlm.tasks.tables.labelled_predictions import LabelledPredictions
from exlm.tasks.tables.prediction_columns import prediction_columns
from exlm.tasks.tables.table_task import TableTask


def write_results(
    task: TableTask,
    split: RowSplit,
    saved_task: SavedTask,
    predictions: np.ndarray,
    run_dir: Path,
) -> SeedResult:
    """Writes the predictions of a seed [rows, outputs] and the texts of train. Returns the scores,
    counts and sizes of the parts; the interval is of test, or of valid if there is no test."""
    table = task.table
    _write_table(task, split, saved_task, predictions, run_dir / "predictions.csv")
    task.earlier_texts.write_with(table, split["train"], run_dir)
    labelled = LabelledPredictions(saved_task, table.labels.values, predictions)
    main_part = "test" if "test" in split else "valid"
    interval = quick_interval(
        partial(labelled.score, metrics=[task.metric]),
        split[main_part],
        task.metric,
        label_count=len(table.labels.columns),
    )
    is_seen = task.is_seen(split)
    scored_parts = {name: rows for name, rows in split.items() if name != "train"}
    result: SeedResult = {
        "split": {name: len(rows) for name, rows in split.items()},
        "split_sha256": split_hash(split),
        "file_sha256": task.file_sha256,
        "left_out": int((~table.usable).sum()),
        "label_columns": table.labels.columns,
        "rdkit": rdkit.__version__,
        "scores": {name: labelled.score(rows) for name, rows in scored_parts.items()},
        "counts": {name: _counts(table, rows) for name, rows in scored_parts.items()},
        "rows_sha256": {name: rows_hash(table, rows) for name, rows in scored_parts.items()},
        "interval": {main_part: interval},
        "in_train": {name: int(is_seen[rows].sum()) for name, rows in scored_parts.items()},
        "labels": {
            part: {
                name: scores[task.metric] for name, scores in labelled.score_labels(rows).items()
            }
            for part, rows in scored_parts.items()
        },
    }
    if task.earlier_run is not None:
        result["in_earlier_training"] = task.count_seen_earlier(split)
    return result


def _write_table(
    task: TableTask, split: RowSplit, saved_task: SavedTask, predictions: np.ndarray, path: Path
) -> None:
    """Writes the rows with their predictions, except for a train part that has its own file."""
    table = task.table
    is_seen = task.is_seen(split)
    if task.is_seen_earlier is not None:
        is_seen |= task.is_seen_earlier
    columns = {
        "split": part_of_rows(split, len(predictions)),
        **prediction_columns(saved_task, [predictions], table),
        **task.merged_labels,
        "in_training": is_seen,
        "problem": table.problems,
    }
    frame = add_columns(table.frame, columns, task.config.dataset, "the training")
    frame = frame[task.rows_to_predict(split)]
    write_frame(frame, path, layout=task.layout)


def _counts(table: LabelledTable, rows: np.ndarray) -> dict[str, float]:
    """How many rows a part has; of two classes also how many are positive, of several labels how
    many the rarest and the most frequent label have."""
    counts: dict[str, float] = {"rows": len(rows)}
    if table.labels.type.is_binary:
        counts["positives"] = int((table.labels.values[rows] == 1).sum())
    if len(table.labels.columns) > 1:
        labelled = (~np.isnan(table.labels.values[rows])).sum(0)
        counts["fewest_of_a_label"] = int(labelled.min())
        counts["most_of_a_label"] = int(labelled.max())
    return counts
