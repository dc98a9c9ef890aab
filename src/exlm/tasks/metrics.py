"""Scores of predictions against labels that may be missing (NaN), and their summary over seeds."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score, matthews_corrcoef, r2_score, roc_auc_score

from exlm.errors import Diverged
from exlm.tasks.table import TaskType

Metric = Callable[[np.ndarray, np.ndarray], float]  # of the labels and the predictions of a task, none missing


def _varied(metric: Metric, predictions: bool = False) -> Metric:
    """A metric that is undefined (NaN) for constant labels, or also for constant predictions."""

    def value(truth: np.ndarray, guess: np.ndarray) -> float:
        constant = np.ptp(truth) == 0 or (predictions and np.ptp(guess) == 0)
        return float("nan") if constant else metric(truth, guess)

    return value


_BINARY: dict[str, Metric] = {  # of probabilities; from 0.5 on they stand for label 1
    "roc_auc": _varied(roc_auc_score),
    "average_precision": _varied(average_precision_score),
    "accuracy": lambda truth, guess: np.mean(truth == (guess >= 0.5)),
    "f1": lambda truth, guess: f1_score(truth, guess >= 0.5, zero_division=0),
    "matthews": lambda truth, guess: matthews_corrcoef(truth, guess >= 0.5),
}
METRICS: dict[TaskType, dict[str, Metric]] = {  # the first of a task type is the one that chooses epochs by default
    "binary": _BINARY,
    "multilabel": _BINARY,
    "multiclass": {
        "accuracy": lambda truth, guess: np.mean(truth == guess),
        "macro_f1": partial(f1_score, average="macro", zero_division=0),
        "matthews": matthews_corrcoef,
    },
    "regression": {
        "rmse": lambda truth, guess: np.sqrt(np.mean((truth - guess) ** 2)),
        "mae": lambda truth, guess: np.mean(np.abs(truth - guess)),
        "r2": _varied(r2_score),
        "spearman": _varied(lambda truth, guess: spearmanr(truth, guess).statistic, predictions=True),
        "pearson": _varied(lambda truth, guess: pearsonr(truth, guess).statistic, predictions=True),
    },
}
MAIN_METRIC = {task_type: next(iter(metrics)) for task_type, metrics in METRICS.items()}
LOWER_IS_BETTER = {"rmse", "mae"}
STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "std": lambda scores: np.std(scores, ddof=1) if len(scores) > 1 else 0.0,
    "median": np.median,
    "min": np.min,
    "max": np.max,
}


def evaluate(task_type: TaskType, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics of a task type: each is the mean over those tasks where it is defined, or NaN if there is none.

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
        values = np.array([metric(truth, guess) for truth, guess in tasks], dtype=float)
        defined = values[~np.isnan(values)]
        scores[name] = float(defined.mean()) if len(defined) else float("nan")
    if task_type in ("binary", "multilabel"):
        scores["tasks_scored"] = float(sum(len(np.unique(truth)) == 2 for truth, _ in tasks))
    return scores


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max of each metric over runs."""
    columns = {name: np.array([run[name] for run in runs], dtype=float) for name in runs[0]}
    return {name: {key: float(value(scores)) for key, value in STATISTICS.items()} for name, scores in columns.items()}
