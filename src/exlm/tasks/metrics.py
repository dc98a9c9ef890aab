"""Scores of predictions for tables, and their summaries over seeds."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    matthews_corrcoef,
    r2_score,
    roc_auc_score,
)

from exlm.errors import Diverged
from exlm.tasks.table import TaskType

NAN = float("nan")
# from labels y and predictions p of one label; NaN if undefined
Metric = Callable[[np.ndarray, np.ndarray], float]

# Probabilities of 0.5 and more stand for label 1. Constant labels or predictions leave some metrics
# undefined.
_BINARY: dict[str, Metric] = {
    "roc_auc": lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN,
    "average_precision": lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN,
    "accuracy": lambda y, p: np.mean(y == (p >= 0.5)),
    "f1": lambda y, p: f1_score(y, p >= 0.5, zero_division=0),
    "matthews": lambda y, p: matthews_corrcoef(y, p >= 0.5),
}
_CLASSES: dict[str, Metric] = {
    "accuracy": lambda y, p: np.mean(y == p),
    "macro_f1": lambda y, p: f1_score(y, p, average="macro", zero_division=0),
    "matthews": matthews_corrcoef,
}
# For these types, predictions are probabilities of classes; all others are scored as they are.
UNITS = "token_classification"
TYPES_WITH_CLASSES = {"multiclass", UNITS}
ENTITY_F1 = "entity_f1"  # a metric of UNITS whose classes are those of `has_entities`
METRICS: dict[TaskType, dict[str, Metric]] = {
    "binary": _BINARY,
    "multilabel": _BINARY,
    "multiclass": _CLASSES,
    "token_classification": _CLASSES,
    "regression": {
        "rmse": lambda y, p: np.sqrt(np.mean((y - p) ** 2)),
        "mae": lambda y, p: np.mean(np.abs(y - p)),
        "r2": lambda y, p: r2_score(y, p) if np.ptp(y) else NAN,
        "spearman": lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
        "pearson": lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
    },
}
LOWER_IS_BETTER = {"rmse", "mae"}


def metric_names(task_type: TaskType, classes: Sequence[str] | None) -> list[str]:
    """The metrics of a task; the first one chooses the epoch where the user names none."""
    names = list(METRICS[task_type])
    return [ENTITY_F1, *names] if task_type == UNITS and has_entities(classes) else names


def score_predictions(
    task_type: TaskType,
    labels: np.ndarray,
    predictions: np.ndarray,
    classes: Sequence[str] | None = None,
) -> dict[str, float]:
    """All METRICS of a task type. Each is the mean over the label columns where it is defined, or
    NaN if there is none.

    Labels are [rows, labels], for multiclass class indices [rows, 1]; NaN means missing.
    Predictions are probabilities of label 1 [rows, labels], for multiclass of the classes [rows,
    classes], for regression values like the labels, for token_classification as in `as_rows`.
    `tasks_scored` counts the label columns that have both 0 and 1: others have no ROC curve. Raises
    Diverged if a prediction is not finite."""
    scores = {}
    if task_type == UNITS and has_entities(classes):
        scores[ENTITY_F1] = entity_f1(labels, predictions, classes)
    labels, predictions = as_rows(labels, predictions)
    undefined = np.sum(~np.isfinite(predictions))
    if undefined:
        raise diverged(f"{undefined} of {predictions.size} predictions are not finite")
    if task_type in TYPES_WITH_CLASSES:
        predictions = predictions.argmax(axis=1)[:, None]
    if labels.shape != predictions.shape or labels.ndim != 2:
        raise ValueError(
            f"labels {labels.shape} and predictions {predictions.shape} are not both [rows, labels]"
        )
    columns = []
    for truth, prediction in zip(labels.T, predictions.T, strict=True):
        labelled = ~np.isnan(truth)
        if labelled.any():
            columns.append((truth[labelled], prediction[labelled]))
    for name, metric in METRICS[task_type].items():
        with warnings.catch_warnings():
            # A small part may have a single class, of which scikit-learn warns.
            warnings.simplefilter("ignore")
            values = np.array([metric(truth, prediction) for truth, prediction in columns])
        defined = values[~np.isnan(values)]
        scores[name] = float(defined.mean()) if len(defined) else NAN
    if "roc_auc" in METRICS[task_type]:
        scores["tasks_scored"] = float(sum(np.ptp(truth) > 0 for truth, _ in columns))
    return scores


def has_entities(classes: Sequence[str] | None) -> TypeGuard[Sequence[str]]:
    """Whether classes mark entities: O, and others such as B-PER and I-PER."""
    entities = [name for name in classes or () if name != "O"]
    return bool(entities) and all(re.fullmatch("[BIES]-.+", name) for name in entities)


def entity_f1(labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]) -> float:
    """The F1 score of whole entities, as the package seqeval and the script conlleval define it;
    NaN if there are none. `classes` are those of `has_entities`.

    Labels [rows, units] and predictions [rows, units, classes] are NaN for units that do not count.
    An entity begins at B or S, behind E or S, and where the units before it are of another kind."""
    true_tags = np.where(np.isnan(predictions[..., 0]), np.nan, labels)
    rows, columns = np.nonzero(~np.isnan(true_tags))
    true_sizes, true_kinds = _entities(rows, true_tags[rows, columns].astype(int), classes)
    predicted_tags = predictions[rows, columns].argmax(-1)
    predicted_sizes, predicted_kinds = _entities(rows, predicted_tags, classes)
    hits = (true_sizes > 0) & (true_sizes == predicted_sizes) & (true_kinds == predicted_kinds)
    entities = np.sum(true_sizes > 0) + np.sum(predicted_sizes > 0)
    return float(2 * hits.sum() / entities) if entities else NAN


def _entities(
    rows: np.ndarray, tags: np.ndarray, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """How many units the entity has that begins at every unit, 0 if none does, and its kind:
    [units] each, from the row and the tag of every unit."""
    prefixes = np.array([name[0] for name in classes])[tags]
    kinds = np.array([name[2:] for name in classes])[tags]
    inside = prefixes != "O"
    goes_on = np.zeros(len(tags), dtype=bool)
    goes_on[1:] = (
        inside[1:]
        & inside[:-1]
        & (rows[1:] == rows[:-1])
        & (kinds[1:] == kinds[:-1])
        & np.isin(prefixes[1:], ("I", "E"))
        & np.isin(prefixes[:-1], ("B", "I"))
    )
    begins = inside & ~goes_on
    sizes = np.zeros(len(tags), dtype=int)
    numbers = np.cumsum(begins)[inside] - 1
    sizes[begins] = np.bincount(numbers, minlength=int(begins.sum()))
    return sizes, kinds


def diverged(finding: str) -> Diverged:
    """The error for a model whose outputs are no numbers, as the `finding` says."""
    return Diverged(f"{finding}; the model has diverged, train it with a lower learning rate")


def as_rows(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows, units] and predictions [rows, units, classes] with one row for each unit that
    has both, [n, 1] and [n, classes]. Labels and predictions of whole rows are returned as they
    are."""
    if predictions.ndim == 2:
        return labels, predictions
    both = ~np.isnan(labels) & ~np.isnan(predictions[..., 0])
    return labels[both][:, None], predictions[both]


def goodness(score: float | None, metric: str) -> float:
    """A score turned so that higher is better. An undefined one (correlation with a constant, say)
    is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric in LOWER_IS_BETTER else score


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max of each metric over
    runs."""
    summary = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs], dtype=float)
        summary[name] = {
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(runs) > 1 else 0.0,
            "median": float(np.median(values)),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    return summary
