"""Scores of predictions for tables, and their summaries over seeds."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    f1_score,
    log_loss,
    matthews_corrcoef,
    precision_recall_fscore_support,
    r2_score,
    roc_auc_score,
)
from tqdm import tqdm

from exlm.errors import Diverged
from exlm.tasks.column_labels import LABEL_TYPES, TaskType

NAN = float("nan")
COVERAGE = 0.95  # of the intervals
# draws for the interval of one label at the end of a fine-tuning; several labels share them
QUICK_DRAWS = 300
LEAST_QUICK_DRAWS = 100
# from labels y and predictions p of one label; NaN if undefined
Metric = Callable[[np.ndarray, np.ndarray], float]
RowScorer = Callable[[np.ndarray], dict[str, float]]  # from positions of rows [n] to their metrics

# Probabilities of 0.5 and more stand for label 1. Constant labels or predictions leave some metrics
# undefined.
_BINARY: dict[str, Metric] = {
    "roc_auc": lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN,
    "average_precision": lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN,
    "accuracy": lambda y, p: np.mean(y == (p >= 0.5)),
    "f1": lambda y, p: f1_score(y, p >= 0.5, zero_division=0),
    "matthews": lambda y, p: matthews_corrcoef(y, p >= 0.5),
    "brier": lambda y, p: np.mean((y - p) ** 2),
    "log_loss": lambda y, p: log_loss(y, p.clip(0, 1), labels=[0, 1]),
}
_CLASSES: dict[str, Metric] = {
    "accuracy": lambda y, p: np.mean(y == p),
    "macro_f1": lambda y, p: f1_score(y, p, average="macro", zero_division=0),
    "matthews": matthews_corrcoef,
}
TOKEN_CLASSIFICATION = "token_classification"
BILOU = {"L": "E", "U": "S"}  # its letters for the last of several units, and for a single one
ENTITY_F1 = "entity_f1"  # of token classification with the classes of `has_entities`
METRICS: dict[TaskType, dict[str, Metric]] = {
    "binary": _BINARY,
    "multilabel": _BINARY,
    "multiclass": _CLASSES,
    TOKEN_CLASSIFICATION: _CLASSES,
    "regression": {
        "rmse": lambda y, p: np.sqrt(np.mean((y - p) ** 2)),
        "mae": lambda y, p: np.mean(np.abs(y - p)),
        "r2": lambda y, p: r2_score(y, p) if np.ptp(y) else NAN,
        "spearman": lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
        "pearson": lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
    },
}
IN_UNITS = {"rmse", "mae"}  # errors, in the units of the labels
LOWER_IS_BETTER = IN_UNITS | {"brier", "log_loss"}
NEEDS_BOTH_CLASSES = {"roc_auc", "average_precision"}  # else the label counts for nothing
ERRORS_IN_UNITS = (
    "rmse and mae are means over the labels, "
    "each in units of its standard deviation in the training rows"
)


def metric_names(task_type: TaskType, classes: Sequence[str] | None) -> list[str]:
    """The metrics of a task; the first one chooses the epoch where the user names none."""
    names = list(METRICS[task_type])
    if task_type == TOKEN_CLASSIFICATION and has_entities(classes):
        return [ENTITY_F1, *names]
    return names


def score_predictions(
    task_type: TaskType,
    labels: np.ndarray,
    predictions: np.ndarray,
    error_units: Sequence[float] | None = None,
    metrics: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> dict[str, float]:
    """All metrics of a task (`metric_names`), or those of `metrics`. Each is the mean over the
    label columns where it is defined, or NaN if there is none. Errors are measured in `error_units`
    [labels], else in those of the labels.

    Labels are [rows, labels], for multiclass class indices [rows, 1]; NaN means missing.
    Predictions are probabilities of label 1 [rows, labels], for multiclass of the classes [rows,
    classes], for regression values like the labels, for token_classification as in `as_rows`.
    `tasks_scored` counts the label columns that have both 0 and 1: others have no ROC curve. Raises
    Diverged if a prediction is not finite."""
    scores = {}
    names = list(metrics or metric_names(task_type, classes))
    if ENTITY_F1 in names and classes:
        scores[ENTITY_F1] = entity_f1(labels, predictions, classes)
        names.remove(ENTITY_F1)
    if error_units is not None:
        labels = labels / np.asarray(error_units)
        predictions = predictions / np.asarray(error_units)
    labels, predictions = as_rows(labels, predictions)
    undefined = np.sum(~np.isfinite(predictions))
    if undefined:
        raise diverged(f"{undefined} of {predictions.size} predictions are not finite")
    if LABEL_TYPES[task_type].predicts_every_class:
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
    for name in names:
        metric = METRICS[task_type][name]
        with warnings.catch_warnings():
            # A small part may have a single class, of which scikit-learn warns.
            warnings.simplefilter("ignore")
            values = np.array([metric(truth, prediction) for truth, prediction in columns])
        defined = values[~np.isnan(values)]
        scores[name] = float(defined.mean()) if len(defined) else NAN
    if "roc_auc" in METRICS[task_type]:
        scores["tasks_scored"] = float(sum(np.ptp(truth) > 0 for truth, _ in columns))
    return scores


def score_labels(
    task_type: TaskType, names: Sequence[str], labels: np.ndarray, predictions: np.ndarray
) -> dict[str, dict[str, float]]:
    """All metrics of every label by itself, in its own units, how many `rows` have it, and of
    classes how many are `positives`; {} if there is only one label."""
    if len(names) == 1:
        return {}
    scores = dict[str, dict[str, float]]()
    for name, of_label, predicted in zip(names, labels.T, predictions.T, strict=True):
        scores[name] = {"rows": float((~np.isnan(of_label)).sum())}
        if task_type == "multilabel":
            scores[name]["positives"] = float((of_label == 1).sum())
        scores[name] |= score_predictions(task_type, of_label[:, None], predicted[:, None])
    return scores


def score_classes(
    labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """How many `rows` (or units) have each class, and its precision, recall and F1, 0 where they
    are undefined; `score_entities` where the classes of units mark entities. Arguments as for
    `confusion`."""
    if predictions.ndim == 3 and has_entities(classes):
        return score_entities(labels, predictions, classes)
    truth, predicted = _true_and_most_probable(labels, predictions)
    precision, recall, f1, rows = precision_recall_fscore_support(
        truth, predicted, labels=range(len(classes)), zero_division=0
    )
    names = ("rows", "precision", "recall", "f1")
    table = np.stack([rows, precision, recall, f1], axis=1).tolist()
    return {
        name: dict(zip(names, row, strict=True)) for name, row in zip(classes, table, strict=True)
    }


def confusion(
    labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]
) -> dict[str, dict[str, int]]:
    """How many rows (or units) of each class are predicted to have which. Labels and predictions
    [rows, classes], or of units, as for `as_rows`."""
    truth, predicted = _true_and_most_probable(labels, predictions)
    counts = confusion_matrix(truth, predicted, labels=range(len(classes))).tolist()
    return {
        name: dict(zip(classes, row, strict=True))
        for name, row in zip(classes, counts, strict=True)
    }


def _true_and_most_probable(
    labels: np.ndarray, predictions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    labels, predictions = as_rows(labels, predictions)
    return labels[:, 0].astype(int), predictions.argmax(-1)


def score_entities(
    labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of the entities of every kind (0 where undefined), and how many
    `entities` there are; arguments as for `entity_f1`."""
    true, predicted = _true_and_predicted(labels, predictions, classes)
    scores = {}
    for kind in sorted({name[2:] for name in classes if name != "O"}):
        sets = [{entity for entity in side if entity[2] == kind} for side in (true, predicted)]
        right = len(sets[0] & sets[1])
        scores[kind] = {
            "entities": float(len(sets[0])),
            "precision": right / max(len(sets[1]), 1),
            "recall": right / max(len(sets[0]), 1),
            "f1": 2 * right / max(len(sets[0]) + len(sets[1]), 1),
        }
    return scores


def has_entities(classes: Sequence[str] | None) -> TypeGuard[Sequence[str]]:
    """Whether classes mark entities: O, and others such as B-PER and I-PER."""
    entities = [name for name in classes or () if name != "O"]
    return bool(entities) and all(re.fullmatch("[BIESLU]-.+", name) for name in entities)


def entity_f1(labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]) -> float:
    """The F1 score of whole entities, as the package seqeval and the script conlleval define it;
    NaN if there are none. `classes` are those of `has_entities`.

    Labels [rows, units] and predictions [rows, units, classes] are NaN for units that do not count.
    An entity begins at B or S, behind E or S, and where the units before it are of another kind."""
    true, predicted = _true_and_predicted(labels, predictions, classes)
    count = len(true) + len(predicted)
    return 2 * len(true & predicted) / count if count else NAN


def _true_and_predicted(
    labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]
) -> tuple[set[tuple[int, int, str]], set[tuple[int, int, str]]]:
    """The entities of labels and those of predictions."""
    rows, columns = np.nonzero(~np.isnan(labels) & ~np.isnan(predictions[..., 0]))
    true = _entities(rows, labels[rows, columns].astype(int), classes)
    return true, _entities(rows, predictions[rows, columns].argmax(-1), classes)


def _entities(
    rows: np.ndarray, tags: np.ndarray, classes: Sequence[str]
) -> set[tuple[int, int, str]]:
    """The first unit, the number of units and the kind of every entity, from the row and the tag of
    every unit."""
    names = [classes[tag] for tag in tags]
    prefixes = [BILOU.get(name[0], name[0]) for name in names]
    units = pd.DataFrame({"row": rows, "prefix": prefixes, "kind": [name[2:] for name in names]})
    before = units.shift()
    goes_on = (
        units["prefix"].isin(["I", "E"])
        & before["prefix"].isin(["B", "I"])
        & (units["row"] == before["row"])
        & (units["kind"] == before["kind"])
    )
    inside = units["prefix"] != "O"
    begins = inside & ~goes_on
    sizes = np.bincount(begins.cumsum()[inside])[1:]
    return set(zip(np.flatnonzero(begins), sizes, units["kind"][begins], strict=True))


def with_intervals(
    score: RowScorer, rows: np.ndarray, resamples: int, seed: int = 0, progress: str | None = None
) -> dict[str, dict[str, float]]:
    """Every metric on some rows: its `value`, and `low` and `high` on `resamples` draws of as many,
    where defined. A calibration error has none: draws repeat rows, which raises it."""
    values = score(rows)
    generator = np.random.default_rng(seed)
    draws = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw may lack a class
        for _ in tqdm(range(resamples), progress, unit="draw", delay=2, disable=not progress):
            draws.append(score(generator.choice(rows, len(rows))))
    drawn = pd.DataFrame(draws, columns=list(values))
    low = drawn.quantile((1 - COVERAGE) / 2)
    high = drawn.quantile((1 + COVERAGE) / 2)
    intervals = {name: {"low": low[name], "high": high[name]} for name in values}
    intervals["calibration_error"] = {}
    return {name: {"value": value, **intervals[name]} for name, value in values.items()}


def quick_interval(
    score: RowScorer, rows: np.ndarray, metric: str, labels: int
) -> dict[str, float]:
    """`low` and `high` of a metric, from few draws, and from fewer where many labels cost time."""
    resamples = max(LEAST_QUICK_DRAWS, QUICK_DRAWS // labels)
    interval = with_intervals(score, rows, resamples)[metric]
    return {"low": interval["low"], "high": interval["high"]}


def in_digits(value: float) -> str:
    """A score with four decimals, or with three digits that count if it is smaller."""
    is_small = 0 < abs(value) < 0.001
    return f"{value:.3g}" if is_small else f"{value:.4f}"


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
