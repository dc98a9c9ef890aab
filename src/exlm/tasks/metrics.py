"""Scores of predictions and of answers (exact match and F1, as in the official SQuAD 2.0 script);
their summaries."""

import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
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
# from labels y and predictions p of one task; NaN if undefined
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
MAIN_METRIC = {task_type: next(iter(metrics)) for task_type, metrics in METRICS.items()}
LOWER_IS_BETTER = {"rmse", "mae"}
ANSWER_METRICS = ("f1", "em", "best_f1", "best_em")  # those that may choose the best epoch


def evaluate(task_type: TaskType, labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """All METRICS of a task type. Each is the mean over the tasks where it is defined, or NaN if
    there is none.

    Labels are [rows, tasks], for multiclass class indices [rows, 1]; NaN means missing. Predictions
    are probabilities of label 1 [rows, tasks], for multiclass of the classes [rows, classes], for
    regression values like the labels, for token_classification as in `as_rows`. `tasks_scored`
    counts the tasks with both labels: others have no ROC curve."""
    labels, predictions = as_rows(labels, predictions)
    if not np.isfinite(predictions).all():
        share = f"{np.sum(~np.isfinite(predictions))} of {predictions.size} predictions"
        raise Diverged(
            f"{share} are not finite; the model has diverged, train it with a lower learning rate"
        )
    if METRICS[task_type] is _CLASSES:
        predictions = predictions.argmax(axis=1)[:, None]
    if labels.shape != predictions.shape or labels.ndim != 2:
        raise ValueError(
            f"labels {labels.shape} and predictions {predictions.shape} are not both [rows, tasks]"
        )
    present = ~np.isnan(labels)
    tasks = [
        (labels[rows, i], predictions[rows, i]) for i, rows in enumerate(present.T) if rows.any()
    ]
    scores = {}
    for name, metric in METRICS[task_type].items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small part may have one class only
            values = np.array([metric(*task) for task in tasks])
        defined = values[~np.isnan(values)]
        scores[name] = float(defined.mean()) if len(defined) else NAN
    if task_type in ("binary", "multilabel"):
        scores["tasks_scored"] = float(sum(np.ptp(truth) > 0 for truth, _ in tasks))
    return scores


def as_rows(labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows, units] and predictions [rows, units, classes] with one row for each unit that
    has both, [n, 1] and [n, classes]. Labels and predictions of whole rows are returned as they
    are."""
    if predictions.ndim == 2:
        return labels, predictions
    both = ~np.isnan(labels) & ~np.isnan(predictions[..., 0])
    return labels[both][:, None], predictions[both]


def rank(score: float | None, metric: str) -> float:
    """A score turned so that higher is better. An undefined one (correlation with a constant, say)
    is the worst."""
    if score is None or not np.isfinite(score):
        return -np.inf
    return -score if metric in LOWER_IS_BETTER else score


def normalize_answer(text: str) -> list[str]:
    """The words in lower case, without (ASCII) punctuation and articles."""
    without_punctuation = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", without_punctuation).split()


def em_and_f1(reference: list[str], predicted: list[str]) -> tuple[float, float]:
    """Whether two answers have the same words, and the harmonic mean of the words' precision and
    recall."""
    same = float(reference == predicted)
    common = sum((Counter(reference) & Counter(predicted)).values())
    if not common:
        return same, same
    precision, recall = common / len(predicted), common / len(reference)
    return same, 2 * precision * recall / (precision + recall)


def score_answers(questions: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """For every question (from `read_questions`) em and f1 of its best span in `answers` (from
    `answer`), from 0 to 1, its null_minus_best, whether it has an answer (`answerable`), and
    whether there is a best span (`answered`)."""
    answers = answers.loc[questions.index]
    scores = []
    for gold, text in zip(questions["answers"], answers["answer"], strict=True):
        references = [words for reference, _ in gold if (words := normalize_answer(reference))] or [
            []
        ]
        scores.append(
            np.max([em_and_f1(words, normalize_answer(text)) for words in references], axis=0)
        )
    return pd.DataFrame(scores, questions.index, ["em", "f1"]).assign(
        null_minus_best=answers["null_minus_best"].astype(float),
        answerable=questions["answers"].map(bool).astype(bool),
        answered=answers["answer"] != "",
    )


def summarise_answers(scored: pd.DataFrame, rows: Any = slice(None)) -> dict[str, float]:
    """The scores of some questions together, in percent, from the scores of each (`score_answers`).

    Returns:
        em, f1: "no answer" is given where it scores above the best span (threshold 0).
            has_answer_em, has_answer_f1 and no_answer_accuracy are over answerable or unanswerable
            questions alone, NaN if there is none.
        questions, has_answer: how many questions there are, and how many of them have an answer.
        best_em, best_em_threshold, best_f1, best_f1_threshold: with the threshold on
            null_minus_best that is best for these very questions. It is searched as in
            `find_best_thresh` of the official script: first no question is answered, then one more
            at a time, by rising null_minus_best. If no answers at all are best, it is <= 0."""
    scored = scored.iloc[rows]
    margin, answerable = scored["null_minus_best"].to_numpy(), scored["answerable"].to_numpy()
    order = np.argsort(margin, kind="stable")
    nothing = float((~answerable).sum())  # the sum of scores if no question is answered
    penalty = np.where(scored["answered"], -1.0, 0.0)  # for answering a question that has no answer
    result = {"questions": float(len(scored)), "has_answer": float(answerable.sum())}
    for name in ("em", "f1"):
        values = scored[name].to_numpy()
        final = pd.Series(np.where(margin > 0, ~answerable, values))
        result |= {
            name: 100.0 * final.mean(),
            f"has_answer_{name}": 100.0 * final[answerable].mean(),
        }
        totals = nothing + np.cumsum(np.where(answerable, values, penalty)[order])
        best = int(totals.argmax())
        total, threshold = totals[best], margin[order[best]]
        if total <= nothing:
            total, threshold = nothing, min(0.0, np.nextafter(margin.min(), -np.inf))
        result |= {
            f"best_{name}": 100.0 * float(total) / len(scored),
            f"best_{name}_threshold": float(threshold),
        }
        result["no_answer_accuracy"] = 100.0 * final[~answerable].mean()  # the same for both
    return result


def summarise(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, sample standard deviation (0 for a single run), median, min and max of each metric over
    runs."""
    summary = {}
    for name in runs[0]:
        values = np.array([run[name] for run in runs], dtype=float)
        deviation = values.std(ddof=1) if len(runs) > 1 else 0.0
        numbers = dict(
            mean=values.mean(),
            std=deviation,
            median=np.median(values),
            min=values.min(),
            max=values.max(),
        )
        summary[name] = {statistic: float(number) for statistic, number in numbers.items()}
    return summary
