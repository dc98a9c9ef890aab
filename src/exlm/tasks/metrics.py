"""Scores of predictions against labels that may be missing (NaN), and their summary over seeds."""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, f1_score, r2_score, roc_auc_score

from exlm.errors import InputError
from exlm.tasks.table import TaskType

MAIN_METRIC: dict[TaskType, tuple[str, bool]] = {  # name, higher is better
    "binary": ("roc_auc", True),
    "multilabel": ("roc_auc", True),
    "multiclass": ("accuracy", True),
    "regression": ("rmse", False),
}


def evaluate(task_type: TaskType, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Score predictions; missing labels are left out, task by task.

    labels: [rows, tasks], NaN = missing; multiclass: [rows, 1] class indices.
    predictions: [rows, tasks] probabilities of label 1, or values in the labels' units for regression;
        multiclass: [rows, classes] probabilities.

    binary, multilabel: roc_auc and average_precision, means over the tasks with both labels present
        (tasks_scored of them; NaN if none), and accuracy at 0.5, mean over the tasks with a label.
    multiclass: accuracy and macro_f1. regression: rmse, mae, r2 and spearman, means over tasks; r2 and
        spearman leave out tasks where they are undefined (constant values), and are NaN if none is left.

    Raises InputError for predictions that are not finite, ValueError for shapes that do not match.
    """
    if not np.isfinite(predictions).all():
        raise InputError(
            f"{np.sum(~np.isfinite(predictions))} of {predictions.size} predictions are not finite numbers;"
            " the model has diverged, train it with a lower learning rate"
        )
    if task_type == "multiclass":
        return _evaluate_multiclass(labels, predictions)
    pairs = [pair for pair in _labelled_pairs(labels, predictions) if len(pair[0])]
    return _evaluate_regression(pairs) if task_type == "regression" else _evaluate_binary(pairs)


def summarise(rows: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Mean and sample standard deviation (ddof=1; 0.0 for a single run) of each metric over runs."""
    columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}
    spread = {name: float(values.std(ddof=1)) if len(rows) > 1 else 0.0 for name, values in columns.items()}
    return {name: (float(values.mean()), spread[name]) for name, values in columns.items()}


Pair = tuple[np.ndarray, np.ndarray]  # labels and predictions of one task's labelled rows


def _labelled_pairs(labels: np.ndarray, predictions: np.ndarray) -> list[Pair]:
    if labels.shape != predictions.shape or labels.ndim != 2:
        raise ValueError(f"labels {labels.shape} and predictions {predictions.shape} are not both [rows, tasks]")
    present = ~np.isnan(labels).T
    return [(labels[mask, task], predictions[mask, task]) for task, mask in enumerate(present)]


def _evaluate_binary(pairs: list[Pair]) -> dict[str, float]:
    scored = [pair for pair in pairs if _has_both(pair[0])]
    return {
        "roc_auc": _mean(roc_auc_score(*pair) for pair in scored),
        "average_precision": _mean(average_precision_score(*pair) for pair in scored),
        "accuracy": _mean(np.mean(truth == (guess >= 0.5)) for truth, guess in pairs),
        "tasks_scored": float(len(scored)),
    }


def _evaluate_multiclass(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    if labels.shape != (len(predictions), 1):
        raise ValueError(f"multiclass labels are [rows, 1] = [{len(predictions)}, 1], not {labels.shape}")
    present = ~np.isnan(labels[:, 0])
    if not present.any():
        return {"accuracy": np.nan, "macro_f1": np.nan}
    truth, guess = labels[present, 0].astype(int), predictions[present].argmax(axis=1)
    macro_f1 = f1_score(truth, guess, average="macro", zero_division=0)
    return {"accuracy": float(np.mean(truth == guess)), "macro_f1": float(macro_f1)}


def _evaluate_regression(pairs: list[Pair]) -> dict[str, float]:
    varied = [pair for pair in pairs if np.ptp(pair[0]) > 0]
    rankable = [pair for pair in varied if np.ptp(pair[1]) > 0]
    return {
        "rmse": _mean(np.sqrt(np.mean((truth - guess) ** 2)) for truth, guess in pairs),
        "mae": _mean(np.mean(np.abs(truth - guess)) for truth, guess in pairs),
        "r2": _mean(r2_score(*pair) for pair in varied),
        "spearman": _mean(spearmanr(*pair).statistic for pair in rankable),
    }


def _has_both(truth: np.ndarray) -> bool:
    return len(np.unique(truth)) == 2


def _mean(values: Iterable[float]) -> float:
    scores = list(values)
    return float(np.mean(scores)) if scores else float("nan")
