"""The metrics of predictions for tables, and how scores are compared, written and summarised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    log_loss,
    matthews_corrcoef,
    r2_score,
    roc_auc_score,
)

NAN = float("nan")


@dataclass(frozen=True)
class Metric:
    """How the predictions for a column of labels are scored.

    Attributes:
        name: as recipes and results have it.
        score: from the labels y and the predictions p of a column, [n] each; NaN if undefined.
        is_error: whether lower is better. All others are shares, of 1 at most, which reports show
            in percent.
        in_units: whether it has the units of the labels.
        needs_both_classes: whether a column that has only one class counts for nothing."""

    name: str
    score: Callable[[np.ndarray, np.ndarray], float]
    is_error: bool = False
    in_units: bool = False
    needs_both_classes: bool = False


# Constant labels or predictions leave some metrics undefined. The first metric of each table
# chooses the epoch where the user names none.

# of labels 0 and 1 and the probabilities of 1, of which 0.5 and more stand for 1
BINARY_METRICS = (
    Metric(
        "roc_auc",
        lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN,
        needs_both_classes=True,
    ),
    Metric(
        "average_precision",
        lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN,
        needs_both_classes=True,
    ),
    Metric("accuracy", lambda y, p: np.mean(y == (p >= 0.5))),
    Metric("f1", lambda y, p: f1_score(y, p >= 0.5, zero_division=0)),
    Metric("matthews", lambda y, p: matthews_corrcoef(y, p >= 0.5)),
    Metric("brier", lambda y, p: np.mean((y - p) ** 2), is_error=True),
    Metric("log_loss", lambda y, p: log_loss(y, p.clip(0, 1), labels=[0, 1]), is_error=True),
)
# of classes and the most probable classes, by their indices
CLASS_METRICS = (
    Metric("accuracy", lambda y, p: np.mean(y == p)),
    Metric("macro_f1", lambda y, p: f1_score(y, p, average="macro", zero_division=0)),
    Metric("matthews", matthews_corrcoef),
)
NUMBER_METRICS = (
    Metric("rmse", lambda y, p: np.sqrt(np.mean((y - p) ** 2)), is_error=True, in_units=True),
    Metric("mae", lambda y, p: np.mean(np.abs(y - p)), is_error=True, in_units=True),
    Metric("r2", lambda y, p: r2_score(y, p) if np.ptp(y) else NAN),
    Metric("spearman", lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN),
    Metric("pearson", lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN),
)
ENTITY_F1 = "entity_f1"  # a share, of whole texts of labelled words (`entities.py`)

_METRICS = (*BINARY_METRICS, *CLASS_METRICS, *NUMBER_METRICS)
ERRORS = {metric.name for metric in _METRICS if metric.is_error}
SHARES = {metric.name for metric in _METRICS if not metric.is_error} | {ENTITY_F1}
IN_UNITS = {metric.name for metric in _METRICS if metric.in_units}
NEEDS_BOTH_CLASSES = {metric.name for metric in _METRICS if metric.needs_both_classes}
ERRORS_IN_UNITS = (
    "rmse and mae are means over the labels, "
    "each in units of its standard deviation in the training rows"
)


def goodness(score: float | None, metric: str) -> float:
    """A score turned so that higher is better. An undefined one (correlation with a constant, say)
    is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric in ERRORS else score


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


def in_digits(value: float) -> str:
    """A count as it is; a score with four decimals, or with three digits that count if it is
    smaller."""
    if isinstance(value, int):
        return str(value)
    is_small = 0 < abs(value) < 0.001
    return f"{value:.3g}" if is_small else f"{value:.4f}"
