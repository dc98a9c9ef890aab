"""Scores of predictions against labels that may be missing (NaN), and their summary over seeds."""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score, matthews_corrcoef, r2_score, roc_auc_score

from exlm.errors import Diverged
from exlm.tasks.table import TaskType

METRICS: dict[TaskType, tuple[str, ...]] = {
    "binary": ("roc_auc", "average_precision", "accuracy", "f1", "matthews"),
    "multilabel": ("roc_auc", "average_precision", "accuracy", "f1", "matthews"),
    "multiclass": ("accuracy", "macro_f1", "matthews"),
    "regression": ("rmse", "mae", "r2", "spearman", "pearson"),
}
MAIN_METRIC = {task_type: names[0] for task_type, names in METRICS.items()}
LOWER_IS_BETTER = {"rmse", "mae"}


def evaluate(task_type: TaskType, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Score predictions; missing labels are left out, task by task.

    labels: [rows, tasks], NaN = missing; multiclass: [rows, 1] class indices.
    predictions: [rows, tasks] probabilities of label 1, or values in the labels' units for regression;
        multiclass: [rows, classes] probabilities.

    binary, multilabel: roc_auc and average_precision, means over the tasks with both labels present
        (tasks_scored of them; NaN if none); accuracy, f1 of label 1 and Matthews correlation (0 where a row or
        column of the confusion matrix is empty) at 0.5, means over the tasks with a label.
    multiclass: accuracy, macro_f1 and matthews. regression: rmse, mae, r2, spearman and pearson, means over tasks;
        r2 and the correlations leave out tasks where they are undefined (constant values), and are NaN if none is
        left.

    Raises Diverged for predictions that are not finite, ValueError for shapes that do not match.
    """
    if not np.isfinite(predictions).all():
        raise Diverged(
            f"{np.sum(~np.isfinite(predictions))} of {predictions.size} predictions are not finite numbers;"
            " the model has diverged, train it with a lower learning rate"
        )
    if task_type == "multiclass":
        if labels.shape != (len(predictions), 1):
            raise ValueError(f"multiclass labels are [rows, 1] = [{len(predictions)}, 1], not {labels.shape}")
        predictions = predictions.argmax(axis=1)[:, None]
    if labels.shape != predictions.shape or labels.ndim != 2:
        raise ValueError(f"labels {labels.shape} and predictions {predictions.shape} are not both [rows, tasks]")
    present = ~np.isnan(labels)
    tasks = [(labels[rows, i], predictions[rows, i]) for i, rows in enumerate(present.T) if rows.any()]
    if task_type == "multiclass":
        return {
            "accuracy": _mean(np.mean(truth == guess) for truth, guess in tasks),
            "macro_f1": _mean(f1_score(truth, guess, average="macro", zero_division=0) for truth, guess in tasks),
            "matthews": _mean(matthews_corrcoef(truth, guess) for truth, guess in tasks),
        }
    if task_type == "regression":
        varied = [(truth, guess) for truth, guess in tasks if np.ptp(truth) > 0]
        rankable = [(truth, guess) for truth, guess in varied if np.ptp(guess) > 0]
        return {
            "rmse": _mean(np.sqrt(np.mean((truth - guess) ** 2)) for truth, guess in tasks),
            "mae": _mean(np.mean(np.abs(truth - guess)) for truth, guess in tasks),
            "r2": _mean(r2_score(truth, guess) for truth, guess in varied),
            "spearman": _mean(spearmanr(truth, guess).statistic for truth, guess in rankable),
            "pearson": _mean(pearsonr(truth, guess).statistic for truth, guess in rankable),
        }
    scored = [(truth, guess) for truth, guess in tasks if len(np.unique(truth)) == 2]
    return {
        "roc_auc": _mean(roc_auc_score(truth, guess) for truth, guess in scored),
        "average_precision": _mean(average_precision_score(truth, guess) for truth, guess in scored),
        "accuracy": _mean(np.mean(truth == (guess >= 0.5)) for truth, guess in tasks),
        "f1": _mean(f1_score(truth, guess >= 0.5, zero_division=0) for truth, guess in tasks),
        "matthews": _mean(matthews_corrcoef(truth, guess >= 0.5) for truth, guess in tasks),
        "tasks_scored": float(len(scored)),
    }


def _mean(values: Iterable[float]) -> float:
    scores = list(values)
    return float(np.mean(scores)) if scores else float("nan")


def summarise(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max of each metric over runs."""
    columns = {name: np.array([row[name] for row in rows], dtype=float) for name in (rows[0] if rows else {})}
    return {
        name: {
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(rows) > 1 else 0.0,
            "median": float(np.median(values)),
            "min": float(values.min()),
            "max": float(values.max()),
        }
        for name, values in columns.items()
    }
