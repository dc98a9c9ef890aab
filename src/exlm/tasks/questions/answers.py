"""From the outputs of a model to answers: the best spans, the votes of several models, and exact
match and F1 as in the official script of SQuAD 2.0."""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from exlm.model.downstream import span_loss
from exlm.ops.loss import LossSum
from exlm.tasks.encoders.inference import SCORING, batch_outputs, model_inputs
from exlm.tasks.labels.scores import RowScorer, diverged
from exlm.tasks.questions.questions import QuestionFile, Window

N_BEST = 20  # spans that are kept for each question


def span_training_loss(network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
    """Summed over windows: the mean of the start's and the end's cross entropy."""
    output = network(**model_inputs(network, batch))
    start = output.start_logits.float()
    end = output.end_logits.float()
    total, count = span_loss(start, end, batch["start_positions"], batch["end_positions"])
    return LossSum(total, count, total.new_zeros(()))


def best_spans(start: Tensor, end: Tensor, longest: int) -> list[tuple[float, int, int]]:
    """The N_BEST spans of at most `longest` tokens, from the logits [S] of starts and ends: (sum of
    both logits, first token, last token)."""
    # [S, longest]: the logit of each end that a span may have, by its distance from the start
    ends = nn.functional.pad(end, (0, longest), value=-torch.inf).unfold(0, longest, 1)[:-1]
    sums = (start[:, None] + ends).flatten()
    best_sums, indices = sums.topk(min(N_BEST, len(sums)))
    spans = []
    for logit, index in zip(best_sums.tolist(), indices.tolist(), strict=True):
        first, distance = divmod(index, longest)
        if logit > -np.inf:
            spans.append((logit, first, first + distance))
    return spans


def answer(
    network: nn.Module,
    questions: pd.DataFrame,
    windows: list[Window],
    tokenizer: PreTrainedTokenizerFast,
    max_answer: int,
    precision: str = SCORING,
) -> pd.DataFrame:
    """What a network answers: the best spans (up to `max_answer` tokens) of every question over all
    its windows, by the logits of starts and ends. The logit of "no answer" is the lowest of all
    windows.

    Returns a row for each question. One without windows has "", NaN and no candidates.
        answer: the text of the best span, "" if there is none.
        null_minus_best: the logit of "no answer" minus the logit of the best span.
        candidates: texts with probabilities, best first; "" stands for no answer and is last.

    Raises Diverged if a logit is not a number."""

    def span_logits(**batch: Tensor) -> Tensor:
        output = network(**batch)
        return torch.stack([output.start_logits, output.end_logits], 1)

    windows_of_row: defaultdict[int, list[tuple[Window, np.ndarray]]] = defaultdict(list)
    examples = [window.example for window in windows]
    for numbers, batch_logits in batch_outputs(
        network, span_logits, examples, tokenizer, precision, padding_side="right"
    ):
        for number, logits in zip(numbers, batch_logits, strict=True):
            window = windows[number]
            windows_of_row[window.row].append((window, logits[:, : len(window.offsets)]))
    answers = [
        _best_answer(context, windows_of_row[row], max_answer)
        for row, context in zip(questions.index, questions["context"], strict=True)
    ]
    return pd.DataFrame(answers, questions.index, ["answer", "null_minus_best", "candidates"])


def _best_answer(
    context: str, windows: list[tuple[Window, np.ndarray]], max_answer: int
) -> tuple[str, float, dict[str, float]]:
    """The row that `answer` returns for a question, from its windows and their logits [2, S]."""
    if not windows:
        return "", np.nan, {}
    if any(np.isnan(logits).any() for _, logits in windows):
        raise diverged("the logits are not numbers")
    null_logit = min(float(logits[:, window.null].sum()) for window, logits in windows)
    # the logit of every span by where it begins and ends, in characters of the context
    spans: dict[tuple[int, int], float] = {}
    for window, logits in windows:
        tokens = np.flatnonzero(window.offsets[:, 0] >= 0)
        offsets = window.offsets[tokens].tolist()
        start, end = torch.from_numpy(logits[:, tokens])
        for logit, first, last in best_spans(start, end, max_answer):
            span = (offsets[first][0], offsets[last][1])
            spans[span] = max(logit, spans.get(span, logit))
    by_logit = sorted(spans.items(), key=lambda item: (-item[1], item[0]))
    # The same text counts once. A span of white space is no answer.
    texts: dict[str, float] = {}
    for (first, stop), logit in by_logit[:N_BEST]:
        texts.setdefault(context[first:stop].strip(), logit)
    texts.pop("", None)
    best_text, best_logit = next(iter(texts.items()), ("", -np.inf))
    probabilities = softmax([*texts.values(), null_logit]).tolist()
    candidates = dict(zip([*texts, ""], probabilities, strict=True))
    return best_text, null_logit - best_logit, candidates


def vote(questions: pd.DataFrame, answers_of_models: list[pd.DataFrame]) -> pd.DataFrame:
    """A table with id, question, answer ("" for none), probability and null_minus_best, from what
    `answer` returned for each model. The answer is the candidate with the highest mean probability.
    Numbers are means over the models, NaN for a question that no model has read; of several models
    `probability std` is the standard deviation."""
    columns = [answers["candidates"] for answers in answers_of_models]
    best = [_best_candidate(candidates) for candidates in zip(*columns, strict=True)]
    probabilities = np.array([probabilities for _, probabilities in best])  # [questions, models]
    margins = np.column_stack([answers["null_minus_best"] for answers in answers_of_models])
    table = questions[["id", "question"]].assign(
        answer=[text for text, _ in best],
        probability=probabilities.mean(1),
        null_minus_best=margins.mean(1),
    )
    if len(answers_of_models) > 1:
        table["probability std"] = probabilities.std(1, ddof=1)
    return table


def _best_candidate(candidates_of_models: Sequence[dict[str, float]]) -> tuple[str, np.ndarray]:
    """The text with the highest mean probability, and its probabilities [models]."""
    texts = list(dict.fromkeys(chain(*candidates_of_models)))
    if not texts:  # no model has read the question
        return "", np.full(len(candidates_of_models), np.nan)
    probabilities = np.array(
        [[candidates.get(text, 0.0) for candidates in candidates_of_models] for text in texts]
    )  # [texts, models]
    best = probabilities.mean(1).argmax()
    return texts[best], probabilities[best]


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
    """The scores of every question (of `read_questions`) by itself, from what `answer` returned.

    Returns a row for each question:
        em, f1: of its best span, from 0 to 1.
        null_minus_best: as in `answers`.
        answerable: whether the question has an answer.
        answered: whether there is a best span.
        refused: whether "no answer" is given: as `answers` say, or else where null_minus_best is
            above the threshold 0."""
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


def make_scorer(file: QuestionFile, answers: pd.DataFrame) -> RowScorer:
    """What scores some of the labelled questions of a file, by the answers of a model."""
    return partial(summarise_answers, score_answers(file.labelled, answers))


def summarise_answers(
    scored: pd.DataFrame, rows: np.ndarray | slice = slice(None)
) -> dict[str, float]:
    """The scores of some questions together, in percent, from the scores of each (`score_answers`).

    Returns:
        em, f1: of the answers that are given (threshold 0, or an ensemble's vote). has_answer_em,
            has_answer_f1 and no_answer_accuracy are over answerable or unanswerable questions
            alone, NaN if there is none.
        questions, has_answer: how many questions there are, and how many of them have an answer.
        best_em, best_em_threshold, best_f1, best_f1_threshold: what `best_threshold` gives."""
    scored = scored.iloc[rows]
    answerable = scored["answerable"].to_numpy()
    refused = scored["refused"].to_numpy(dtype=bool)
    scores: dict[str, float] = {"questions": len(scored), "has_answer": int(answerable.sum())}
    for name in ("em", "f1"):
        # a refusal is right where there is no answer
        scores_given = pd.Series(np.where(refused, ~answerable, scored[name]))
        best_total, threshold = best_threshold(scored, name)
        scores[name] = 100.0 * scores_given.mean()
        scores[f"has_answer_{name}"] = 100.0 * scores_given[answerable].mean()
        scores[f"best_{name}"] = 100.0 * best_total / len(scored)
        scores[f"best_{name}_threshold"] = threshold
        # The same for em and f1: without a reference, either all or nothing is right.
        scores["no_answer_accuracy"] = 100.0 * scores_given[~answerable].mean()
    return scores


def best_threshold(scored: pd.DataFrame, name: str) -> tuple[float, float]:
    """The highest sum of the scores `name` that a threshold on null_minus_best can give, and the
    threshold, as `find_best_thresh` of the official script searches it: first no question is
    answered, then one more at a time, by rising null_minus_best. If it is best to answer none, the
    threshold is <= 0."""
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
