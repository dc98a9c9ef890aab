"""The metrics of predictions, and how the scores of several runs are summarised."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
NO_CLASS = -1  # in place of the most probable class of a unit that the tokenizer reads as nothing
# From the labels y and the predictions p of a label column, [n] each, to their score. Constant
# labels or predictions leave some metrics undefined, which is NaN.
MetricFunction = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Metric:
    """A metric and what its scores say. Higher scores are better, but for errors.

    Attributes:
        function: what computes the score of a label column; NaN for a metric of whole texts or
            answers, which is computed elsewhere.
        best: the best score, of which reports show percent; the worst may be below 0, as of
            correlations. None: reports show the score itself.
        is_error: whether lower scores are better.
        terms: of how many numbers the score of a label column is the mean."""

    function: MetricFunction = lambda y, p: NAN
    best: float | None = None
    is_error: bool = False
    terms: Callable[[np.ndarray, np.ndarray], int] = lambda y, p: 1

    @property
    def factor(self) -> float:
        """What reports multiply scores by."""
        return 1.0 if self.best is None else 100 / self.best

    @property
    def digits(self) -> int:
        """How many digits after the decimal point reports show."""
        return 3 if self.best is None else 1


up_to_1 = partial(Metric, best=1)
error = partial(Metric, is_error=True)
# The metrics of a type of labels, by the names of recipes and results. The first chooses the epoch
# where the user names none. Here y are labels 0 and 1, and p probabilities of 1. What compares the
# two classes is undefined where there is only one.
BINARY_METRICS = {
    "roc_auc": up_to_1(lambda y, p: roc_auc_score(y, p) if np.ptp(y) else NAN),
    "average_precision": up_to_1(lambda y, p: average_precision_score(y, p) if np.ptp(y) else NAN),
    "accuracy": up_to_1(lambda y, p: np.mean(y == (p >= 0.5))),
    "f1": up_to_1(lambda y, p: f1_score(y, p >= 0.5, zero_division=0) if np.ptp(y) else NAN),
    "matthews": up_to_1(lambda y, p: matthews_corrcoef(y, p >= 0.5) if np.ptp(y) else NAN),
    "brier": error(lambda y, p: np.mean((y - p) ** 2)),
    "log_loss": error(lambda y, p: log_loss(y, p.clip(0, 1), labels=[0, 1])),
}


def _scored_classes(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The classes that are true or predicted; NO_CLASS is none."""
    return np.union1d(y, p[p != NO_CLASS])


def _macro_f1(y: np.ndarray, p: np.ndarray) -> float:
    """The mean of the F1 of all scored classes."""
    return f1_score(y, p, labels=_scored_classes(y, p), average="macro", zero_division=0)


# y are classes, and p the most probable classes, by their indices
CLASS_METRICS = {
    "accuracy": up_to_1(lambda y, p: np.mean(y == p)),
    "macro_f1": up_to_1(_macro_f1, terms=lambda y, p: len(_scored_classes(y, p))),
    "matthews": up_to_1(lambda y, p: matthews_corrcoef(y, p) if np.ptp(y) else NAN),
}
UNIT_METRICS = {ENTITY_F1: up_to_1(), **CLASS_METRICS}  # the first, if classes mark entities
NUMBER_METRICS = {
    "rmse": error(lambda y, p: np.sqrt(np.mean((y - p) ** 2))),
    "mae": error(lambda y, p: np.mean(np.abs(y - p))),
    "r2": up_to_1(lambda y, p: r2_score(y, p) if np.ptp(y) else NAN),
    "spearman": up_to_1(lambda y, p: spearmanr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN),
    "pearson": up_to_1(lambda y, p: pearsonr(y, p).statistic if np.ptp(y) and np.ptp(p) else NAN),
}
# in percent already (`questions/answers.py`)
ANSWER_METRICS = dict.fromkeys(("f1", "em", "best_f1", "best_em"), Metric(best=100))


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max over runs of each
    metric that all of them have; NaN if it is not defined for one of them."""
    summary = {}
    for name in [name for name in runs[0] if all(name in run for run in runs)]:
        values = np.array([run[name] for run in runs], dtype=float)
        spread = np.ptp(values)
        # the mean of equal numbers is another one, by rounding
        summary[name] = {
            "mean": float(values[0] if spread == 0 else values.mean()),
            "std": float(values.std(ddof=1) if spread > 0 else spread),
            "median": float(np.median(values)),
            "min": float(values.min()),
            "max": float(values.max()),
        }
    return summary
