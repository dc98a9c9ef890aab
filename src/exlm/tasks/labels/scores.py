"""Scores of predictions, which score is better, and how much scores would vary with other rows."""

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from exlm.errors import Diverged
from exlm.tasks.labels.entities import entity_f1, has_entities
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.tasks.labels.metrics import ANSWER_METRICS, ENTITY_F1, Metric

BOOTSTRAP_LEVEL = 0.95  # the share of samples whose scores lie in an interval
# samples for the interval of one label at the end of a fine-tuning; several labels share them
QUICK_RESAMPLES = 300
LEAST_QUICK_RESAMPLES = 100
LEAST_USED_SHARE = 0.1  # of the samples: with fewer that can be used, there is no interval
RowScorer = Callable[[np.ndarray], dict[str, float]]  # from positions of rows [n] to their scores


class Scores(dict[str, float]):
    """Scores by metric, and of how many labels, or classes of them, some are means (`terms`)."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = dict[str, int]()


def metric_names(label_type: LabelType, class_names: Sequence[str] | None) -> list[str]:
    """The metrics of a task; the first one chooses the epoch where the user names none."""
    marks_entities = has_entities(class_names)
    return [name for name in label_type.metrics if name != ENTITY_F1 or marks_entities]


def find_metrics(task_type: str | None) -> Mapping[str, Metric]:
    """How to read the scores of a finished task, by the names of metrics; {} if this version does
    not have the task type. None is a table whose task type was not recorded: metrics that several
    types of labels have differ in their functions alone."""
    if task_type == "question_answering":
        return ANSWER_METRICS
    metrics = dict[str, Metric]()
    for name, label_type in LABEL_TYPES.items():
        if task_type in (None, name):
            metrics |= label_type.metrics
    return metrics


def goodness(score: float | None, metric: Metric) -> float:
    """A score turned so that higher is better; an undefined one (correlation with a constant, say)
    is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric.is_error else score


def score_predictions(
    label_type: LabelType,
    labels: np.ndarray,
    predictions: np.ndarray,
    *,
    error_scales: Sequence[float] | None = None,
    metrics: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Scores:
    """The scores by all metrics of a task (`metric_names`), or by `metrics`: means over the label
    columns where they are defined, NaN if there is none. `tasks_scored` counts the label columns
    that have both 0 and 1: others have no ROC curve. Raises Diverged if a prediction is not finite.

    Args:
        labels, predictions: as the `LabelType` says, labels [rows, labels] NaN where missing.
        error_scales: [labels] the divisors of errors, if there are any."""
    names = metrics or metric_names(label_type, class_names)
    scores = Scores()
    if ENTITY_F1 in names and class_names:
        scores[ENTITY_F1] = entity_f1(labels, predictions, class_names)
    if error_scales is not None:
        labels = labels / np.asarray(error_scales)
        predictions = predictions / np.asarray(error_scales)
    labels, predictions = label_type.as_rows(labels, predictions)
    undefined_count = np.sum(~np.isfinite(predictions))
    if undefined_count:
        raise diverged(f"{undefined_count} of {predictions.size} predictions are not finite")
    predictions = label_type.to_score(predictions)
    columns = []
    for truth, prediction in zip(labels.T, predictions.T, strict=True):
        is_labelled = ~np.isnan(truth)
        if is_labelled.any():
            columns.append((truth[is_labelled], prediction[is_labelled]))
    with warnings.catch_warnings():
        # A small part may have a single class, of which scikit-learn warns, or no label.
        warnings.simplefilter("ignore")
        for name, metric in label_type.metrics.items():
            if name in names and name not in scores:
                values = [metric.function(truth, prediction) for truth, prediction in columns]
                scores[name] = float(np.nanmean(values))
                scores.terms[name] = sum(
                    metric.terms(*column)
                    for column, value in zip(columns, values, strict=True)
                    if not np.isnan(value)
                )
    if "roc_auc" in label_type.metrics:
        scores["tasks_scored"] = sum(bool(np.ptp(truth) > 0) for truth, _ in columns)
    return scores


def with_intervals(
    score: RowScorer, rows: np.ndarray, resamples: int, seed: int = 0, progress: str | None = None
) -> dict[str, dict[str, float]]:
    """Every score on some rows: its `value`, and `low` and `high` over those of the `resamples`
    samples of as many rows that can be used (`draws`), where enough can. A sample cannot be used
    for a score that is not defined there, or a mean over labels or classes of which the sample
    lacks one: the mean over the others is another quantity."""
    values = score(rows)
    generator = np.random.default_rng(seed)
    samples = tqdm(range(resamples), progress, unit="sample", delay=2, disable=not progress)
    scores = [
        _without_other_means(score(generator.choice(rows, len(rows))), values) for _ in samples
    ]
    of_samples = pd.DataFrame(scores, columns=list(values))
    draws = of_samples.notna().sum()
    are_enough = draws >= LEAST_USED_SHARE * resamples
    low = of_samples.quantile((1 - BOOTSTRAP_LEVEL) / 2).where(are_enough)
    high = of_samples.quantile((1 + BOOTSTRAP_LEVEL) / 2).where(are_enough)
    return {
        name: {"value": value, "low": low[name], "high": high[name], "draws": int(draws[name])}
        for name, value in values.items()
    }


def _without_other_means(scores: dict[str, float], whole: dict[str, float]) -> dict[str, float]:
    """The scores of a sample, NaN for means over fewer labels or classes than those of `whole`."""
    if not isinstance(scores, Scores) or not isinstance(whole, Scores):
        return scores
    other_means = [name for name, terms in scores.terms.items() if terms < whole.terms[name]]
    return scores | dict.fromkeys(other_means, np.nan)


def quick_interval(
    score: RowScorer, rows: np.ndarray, metric: str, label_count: int
) -> dict[str, float]:
    """`low` and `high` of a score from few samples, fewer with many labels; `resamples` says how
    many could be used."""
    resamples = max(LEAST_QUICK_RESAMPLES, QUICK_RESAMPLES // label_count)
    interval = with_intervals(score, rows, resamples)[metric]
    return {"low": interval["low"], "high": interval["high"], "resamples": interval["draws"]}


def diverged(finding: str) -> Diverged:
    """The error for a model whose outputs are no numbers, as the `finding` says."""
    return Diverged(f"{finding}; the model has diverged, train it with a lower learning rate")
