"""Exact match and F1 of answers to questions, as in the official script of SQuAD 2.0."""

import re
import string
from collections import Counter

import numpy as np
import pandas as pd

ANSWER_METRICS = ("f1", "em", "best_f1", "best_em")  # those that may choose the best epoch


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
    precision = common / len(predicted)
    recall = common / len(reference)
    return same, 2 * precision * recall / (precision + recall)


def score_answers(questions: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """For every question (from `read_questions`) em and f1 of its best span in `answers` (from
    `answer`), from 0 to 1, its null_minus_best, whether it has an answer (`answerable`), whether
    there is a best span (`answered`), and whether "no answer" is given (`refused`): as `answers`
    have it, or where null_minus_best is above the threshold 0."""
    answers = answers.loc[questions.index]
    scores = []
    for references, text in zip(questions["answers"], answers["answer"], strict=True):
        # A reference without words is none; a question without references has the empty answer.
        reference_words = [normalize_answer(reference) for reference, _ in references]
        reference_words = [words for words in reference_words if words] or [[]]
        predicted = normalize_answer(text)
        scores.append(np.max([em_and_f1(words, predicted) for words in reference_words], axis=0))
    return pd.DataFrame(scores, questions.index, ["em", "f1"]).assign(
        null_minus_best=answers["null_minus_best"].astype(float),
        answerable=questions["answers"].map(bool).astype(bool),
        answered=answers["answer"] != "",
        refused=answers.get("refused", answers["null_minus_best"] > 0),
    )


def summarise_answers(
    scored: pd.DataFrame, rows: np.ndarray | slice = slice(None)
) -> dict[str, float]:
    """The scores of some questions together, in percent, from the scores of each (`score_answers`).

    Returns:
        em, f1: those of the answers that are given (threshold 0, or an ensemble's vote).
            has_answer_em, has_answer_f1 and no_answer_accuracy are over answerable or unanswerable
            questions alone, NaN if there is none.
        questions, has_answer: how many questions there are, and how many of them have an answer.
        best_em, best_em_threshold, best_f1, best_f1_threshold: those of `best_threshold`."""
    scored = scored.iloc[rows]
    answerable = scored["answerable"].to_numpy()
    refused = scored["refused"].to_numpy(dtype=bool)
    # em and f1 of the answers that are given
    final = {name: pd.Series(np.where(refused, ~answerable, scored[name])) for name in ("em", "f1")}

    def summary(name: str) -> dict[str, float]:
        best_total, threshold = best_threshold(scored, name)
        return {
            name: 100.0 * final[name].mean(),
            f"has_answer_{name}": 100.0 * final[name][answerable].mean(),
            f"best_{name}": 100.0 * best_total / len(scored),
            f"best_{name}_threshold": threshold,
        }

    return {
        "questions": float(len(scored)),
        "has_answer": float(answerable.sum()),
        **summary("em"),
        # The same for em and f1: without a reference, either all or nothing is right.
        "no_answer_accuracy": 100.0 * final["em"][~answerable].mean(),
        **summary("f1"),
    }


def best_threshold(scored: pd.DataFrame, name: str) -> tuple[float, float]:
    """The highest sum of the scores `name` that a threshold on null_minus_best can give to these
    very questions, and that threshold.

    It is searched as in `find_best_thresh` of the official script: first no question is answered,
    then one more at a time, by rising null_minus_best. If no answers at all are best, the threshold
    is <= 0."""
    answerable = scored["answerable"].to_numpy()
    margin = scored["null_minus_best"].to_numpy()
    # To answer a question that has no answer costs the point for its refusal.
    penalty = np.where(scored["answered"], -1.0, 0.0)
    gains = np.where(answerable, scored[name], penalty)
    order = np.argsort(margin, kind="stable")
    none_answered = float((~answerable).sum())
    totals = none_answered + np.cumsum(gains[order])
    best = int(totals.argmax())
    if totals[best] <= none_answered:
        return none_answered, float(min(0.0, np.nextafter(margin.min(), -np.inf)))
    return float(totals[best]), float(margin[order[best]])
