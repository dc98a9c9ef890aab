"""Exact match and F1 of extracted answers, by the definitions of the official SQuAD 2.0 script."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from exlm.errors import InputError
from exlm.tasks.squad import Answer, Questions

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without (ASCII) punctuation and articles, words separated by single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact_match(reference: str, predicted: str) -> float:
    """1 where both are equal once normalised, else 0."""
    return float(normalize_answer(reference) == normalize_answer(predicted))


def f1_score(reference: str, predicted: str) -> float:
    """Harmonic mean of precision and recall over normalised words; 1 or 0 where either has none, as they agree."""
    gold, guess = normalize_answer(reference).split(), normalize_answer(predicted).split()
    if not gold or not guess:
        return float(gold == guess)
    common = sum((Counter(gold) & Counter(guess)).values())
    precision, recall = common / len(guess), common / len(gold)
    return 2 * precision * recall / (precision + recall) if common else 0.0


def best_score(score: Callable[[str, str], float], references: Sequence[str], predicted: str) -> float:
    """The best over all references that are not empty once normalised; against "" where there are none."""
    gold = [reference for reference in references if normalize_answer(reference)] or [""]
    return max(score(reference, predicted) for reference in gold)


def apply_threshold(scores: np.ndarray, margin: np.ndarray, answerable: np.ndarray, threshold: float) -> np.ndarray:
    """[questions] scores if questions with a margin above `threshold` are not answered: right where there is no answer.

    Args:
        scores: [questions] of the answers' texts.
        margin: [questions] null score minus best score.
        answerable: [questions] bool, labelled with an answer.
        threshold: in the units of the margin.
    """
    return np.where(margin > threshold, (~answerable).astype(float), scores)


def find_best_threshold(
    scores: np.ndarray, margin: np.ndarray, answerable: np.ndarray, given: np.ndarray
) -> tuple[float, float]:
    """The best total that one threshold can reach, and that threshold (`find_best_thresh` of the official script).

    It starts from answering nothing, and answers one question after the other by rising margin. As there, equal
    margins are taken apart. Where nothing should be answered the threshold is 0, as there, or below all margins.

    Args:
        scores: [questions] of the answers' texts.
        margin: [questions] null score minus best score.
        answerable: [questions] bool, labelled with an answer.
        given: [questions] bool, the answer's text is not empty.

    Returns:
        the sum of the scores, and the threshold.
    """
    order = np.argsort(margin, kind="stable")
    gains = np.where(answerable, scores, -given.astype(float))[order]
    nothing = float((~answerable).sum())
    totals = nothing + np.cumsum(gains)
    best = int(totals.argmax()) if len(totals) else -1
    if best < 0 or totals[best] <= nothing:
        return nothing, float(min(0.0, np.nextafter(margin.min(initial=np.inf), -np.inf)))
    return float(totals[best]), float(margin[order[best]])


def evaluate_answers(questions: Questions, predictions: Sequence[Answer]) -> dict[str, float]:
    """Scores in percent, over all questions.

    Args:
        questions: with labels.
        predictions: one for each of the questions, in their order.

    Returns:
        em, f1: where "no answer" is given if its score is above that of the best span (threshold 0).
        has_answer_em, has_answer_f1, no_answer_accuracy: the same over answerable and unanswerable questions alone;
            NaN where there are none.
        best_em, best_em_threshold, best_f1, best_f1_threshold: with the threshold on null score minus best score that
            is best for these very questions.
        questions, has_answer: their numbers.

    Raises:
        InputError: if the questions have no labels.
        ValueError: if the numbers of questions and predictions differ.
    """
    if questions.answers is None:
        raise InputError("these questions have no answers to compare with; read them with their labels")
    rows = [*zip(questions.answers, predictions, strict=True)]
    answerable = np.array([bool(answers) for answers, _ in rows], dtype=bool)
    margin = np.array([prediction.null_minus_best for _, prediction in rows], dtype=float)
    given = np.array([bool(prediction.text) for _, prediction in rows], dtype=bool)
    result = {"questions": float(len(rows)), "has_answer": float(answerable.sum())}
    for name, score in (("em", exact_match), ("f1", f1_score)):
        texts = ([text for text, _ in answers] for answers, _ in rows)
        scores = np.array([best_score(score, gold, p.text) for gold, (_, p) in zip(texts, rows, strict=True)])
        final = apply_threshold(scores, margin, answerable, 0.0)
        total, threshold = find_best_threshold(scores, margin, answerable, given)
        result |= {name: _percent(final), f"has_answer_{name}": _percent(final[answerable])}
        result |= {f"best_{name}": 100.0 * total / max(len(rows), 1), f"best_{name}_threshold": threshold}
        result["no_answer_accuracy"] = _percent(final[~answerable])  # the same for both
    return result


def _percent(scores: np.ndarray) -> float:
    return 100.0 * float(scores.mean()) if len(scores) else float("nan")
