"""Scores of predictions against labels that may be missing (NaN), and their summary over seeds."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score, matthews_corrcoef, r2_score, roc_auc_score

from exlm.errors import Diverged
from exlm.tasks.table import TaskType

NAN = float("nan")
Metric = Callable[[np.ndarray, np.ndarray], float]  # of the labels y and predictions p of one task; NaN if undefined

# Probabilities of 0.5 and more stand for label 1. Constant labels or predictions leave some metrics undefined.
_BINARY: dict[str, Metric] = {
    "roc_auc": lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN,
    "average_precision": lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN,
    "accuracy": lambda y, p: np.mean(y == (p >= 0.5)),
    "f1": lambda y, p: f1_score(y, p >= 0.5, zero_division=0),
    "matthews": lambda y, p: matthews_corrcoef(y, p >= 0.5),
}
METRICS: dict[TaskType, dict[str, Metric]] = {
    "binary": _BINARY,
    "multilabel": _BINARY,
    "multiclass": {
        "accuracy": lambda y, p: np.mean(y == p),
        "macro_f1": lambda y, p: f1_score(y, p, average="macro", zero_division=0),
        "matthews": matthews_corrcoef,
    },
    "regression": {
        "rmse": lambda y, p: np.sqrt(np.mean((y - p) ** 2)),
        "mae": lambda y, p: np.mean(np.abs(y - p)),
        "r2": lambda y, p: r2_score(y, p) if np.ptp(y) else NAN,
        "spearman": lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
        "pearson": lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
    },
}
MAIN_METRIC = {task_type: next(iter(metrics)) for task_type, metrics in METRICS.items()}
LOWER_IS_BETTER = {"rmse", "mae"}


def evaluate(task_type: TaskType, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """All METRICS of a task type: each the mean over those tasks where it is defined, NaN if there is none.

    Missing labels are left out, task by task. For binary and multilabel, `tasks_scored` counts the tasks that have
    both labels: only they have a roc_auc and an average_precision.

    labels: [rows, tasks], NaN = missing; multiclass: [rows, 1] class indices.
    predictions: [rows, tasks] probabilities of label 1, or values in the labels' units for regression;
        multiclass: [rows, classes] probabilities.

    Raises Diverged for predictions that are not finite, ValueError for shapes that do not match.
    """
    if not np.isfinite(predictions).all():
        raise Diverged(
            f"{np.sum(~np.isfinite(predictions))} of {predictions.size} predictions are not finite numbers;"
            " the model has diverged, train it with a lower learning rate"
        )
    if task_type == "multiclass":
        predictions = predictions.argmax(axis=1)[:, None]
    if labels.shape != predictions.shape or labels.ndim != 2:
        raise ValueError(f"labels {labels.shape} and predictions {predictions.shape} are not both [rows, tasks]")
    present = ~np.isnan(labels)
    tasks = [(labels[rows, i], predictions[rows, i]) for i, rows in enumerate(present.T) if rows.any()]
    scores = {}
    for name, metric in METRICS[task_type].items():
        values = np.array([metric(*task) for task in tasks])
        defined = values[~np.isnan(values)]
        scores[name] = float(defined.mean()) if len(defined) else NAN
    if task_type in ("binary", "multilabel"):
        scores["tasks_scored"] = float(sum(np.ptp(truth) > 0 for truth, _ in tasks))
    return scores


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max of each metric over runs."""
    summary = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs], dtype=float)
        deviation = values.std(ddof=1) if len(runs) > 1 else 0.0
        numbers = (values.mean(), deviation, np.median(values), values.min(), values.max())
        summary[name] = dict(zip(("mean", "std", "median", "min", "max"), map(float, numbers), strict=True))
    return summary
