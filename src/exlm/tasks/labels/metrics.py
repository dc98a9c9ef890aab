"""The metrics of predictions, and how scores are compared, written and summarised."""

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
ENTITY_F1 = "entity_f1"  # of whole texts of labelled words (`entities.py`)


@dataclass(frozen=True)
class Metric:
    """What the scores of a metric say.

    Attributes:
        is_share: whether it is at most 1, so that reports show it in percent.
        is_error: whether lower is better.
        in_units: whether it has the units of the labels.
        needs_both_classes: whether a column that has only one class counts for nothing."""

    is_share: bool = False
    is_error: bool = False
    in_units: bool = False
    needs_both_classes: bool = False


# by the name that recipes and results have
METRICS = {
    "roc_auc": Metric(is_share=True, needs_both_classes=True),
    "average_precision": Metric(is_share=True, needs_both_classes=True),
    "accuracy": Metric(is_share=True),
    "f1": Metric(is_share=True),
    "macro_f1": Metric(is_share=True),
    "matthews": Metric(is_share=True),
    "brier": Metric(is_error=True),
    "log_loss": Metric(is_error=True),
    "rmse": Metric(is_error=True, in_units=True),
    "mae": Metric(is_error=True, in_units=True),
    "r2": Metric(is_share=True),
    "spearman": Metric(is_share=True),
    "pearson": Metric(is_share=True),
    ENTITY_F1: Metric(is_share=True),
}
# From the labels y and the predictions p of a column, [n] each, to their score. Constant labels or
# predictions leave some metrics undefined, which is NaN. The first metric of each table chooses the
# epoch where the user names none.
ScoreFunction = Callable[[np.ndarray, np.ndarray], float]
# of labels 0 and 1 and the probabilities of 1, of which 0.5 and more stand for 1
BINARY_METRICS: dict[str, ScoreFunction] = {
    "roc_auc": lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN,
    "average_precision": lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN,
    "accuracy": lambda y, p: np.mean(y == (p >= 0.5)),
    "f1": lambda y, p: f1_score(y, p >= 0.5, zero_division=0),
    "matthews": lambda y, p: matthews_corrcoef(y, p >= 0.5),
    "brier": lambda y, p: np.mean((y - p) ** 2),
    "log_loss": lambda y, p: log_loss(y, p.clip(0, 1), labels=[0, 1]),
}
# of classes and the most probable classes, by their indices
CLASS_METRICS: dict[str, ScoreFunction] = {
    "accuracy": lambda y, p: np.mean(y == p),
    "macro_f1": lambda y, p: f1_score(y, p, average="macro", zero_division=0),
    "matthews": matthews_corrcoef,
}
NUMBER_METRICS: dict[str, ScoreFunction] = {
    "rmse": lambda y, p: np.sqrt(np.mean((y - p) ** 2)),
    "mae": lambda y, p: np.mean(np.abs(y - p)),
    "r2": lambda y, p: r2_score(y, p) if np.ptp(y) else NAN,
    "spearman": lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
    "pearson": lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN,
}
ERRORS_IN_UNITS = (
    "rmse and mae are means over the labels, "
    "each in units of its standard deviation in the training rows"
)


def metric_of(name: str) -> Metric:
    """What the scores of a metric say; of one that is not in METRICS, as those of answers, only
    that higher is better."""
    return METRICS.get(name, Metric())


def goodness(score: float | None, metric: str) -> float:
    """A score turned so that higher is better. An undefined one (correlation with a constant, say)
    is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric_of(metric).is_error else score


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
