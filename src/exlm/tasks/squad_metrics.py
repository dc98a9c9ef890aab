"""Exact match and F1 of extracted answers, by the definitions of the official SQuAD 2.0 script."""

import re
import string
from collections import Counter

import numpy as np
import pandas as pd

METRICS = ("f1", "em", "best_f1", "best_em")  # that can choose the best epoch
ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> list[str]:
    """The words in lower case, without (ASCII) punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split()


def em_and_f1(reference: list[str], predicted: list[str]) -> tuple[float, float]:
    """Whether two answers have the same words, and the harmonic mean of the words' precision and recall."""
    same = float(reference == predicted)
    common = sum((Counter(reference) & Counter(predicted)).values())
    if not common:
        return same, same
    precision, recall = common / len(predicted), common / len(reference)
    return same, 2 * precision * recall / (precision + recall)


def evaluate_answers(questions: pd.DataFrame, answers: pd.DataFrame) -> dict[str, float]:
    """Scores in percent, over all questions.

    Args:
        questions: with labels, as `read_questions` returns them.
        answers: with the columns answer and null_minus_best, as `answer` returns them for these questions or more.

    Returns:
        em, f1: where "no answer" is given if its score is above that of the best span (threshold 0).
        has_answer_em, has_answer_f1, no_answer_accuracy: the same over answerable and unanswerable questions alone;
            NaN where there are none.
        best_em, best_em_threshold, best_f1, best_f1_threshold: with the threshold on null score minus best score that
            is best for these very questions, found as by `find_best_thresh` of the official script: it starts from
            answering nothing, and answers one question after the other by rising margin, equal ones too. Where nothing
            should be answered the threshold is 0, or below all margins.
        questions, has_answer: their numbers.
    """

    def percent(scores: np.ndarray) -> float:
        return 100.0 * float(scores.mean()) if len(scores) else float("nan")

    answers = answers.loc[questions.index]
    margin = answers["null_minus_best"].to_numpy(dtype=float)
    order = np.argsort(margin, kind="stable")
    answerable = questions["answers"].map(bool).to_numpy(dtype=bool)
    nothing = float((~answerable).sum())  # the total if no question is answered
    penalty = np.where(answers["answer"] == "", 0.0, -1.0)  # of answering a question that has no answer
    scores = np.zeros((len(questions), 2))
    for i, (gold, text) in enumerate(zip(questions["answers"], answers["answer"], strict=True)):
        references = [words for reference, _ in gold if (words := normalize_answer(reference))] or [[]]
        scores[i] = np.max([em_and_f1(words, normalize_answer(text)) for words in references], axis=0)
    result = {"questions": float(len(questions)), "has_answer": float(answerable.sum())}
    for name, values in zip(("em", "f1"), scores.T, strict=True):
        final = np.where(margin > 0, ~answerable, values)
        result |= {name: percent(final), f"has_answer_{name}": percent(final[answerable])}
        totals = nothing + np.cumsum(np.where(answerable, values, penalty)[order])
        best = int(totals.argmax())
        total, threshold = totals[best], margin[order[best]]
        if total <= nothing:
            total, threshold = nothing, min(0.0, np.nextafter(margin.min(), -np.inf))
        result |= {f"best_{name}": 100.0 * float(total) / len(questions), f"best_{name}_threshold": float(threshold)}
        result["no_answer_accuracy"] = percent(final[~answerable])  # the same for both
    return result
