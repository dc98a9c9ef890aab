"""From questions to answers: cuts contexts into windows, trains on them, finds the best spans, and
lets models vote."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedTokenizerFast

from exlm.errors import Diverged, InputError
from exlm.model.objectives import span_loss
from exlm.ops.precision import in_precision
from exlm.tasks.inference import batches_by_length, model_inputs, pad
from exlm.tasks.supervised import ShuffledBatches
from exlm.tasks.table import Example

Problem = tuple[int, str, str]  # row, question or answer, what is wrong with it

MIN_STEP = 16  # each window must begin at least this many tokens after the one before
N_BEST = 20  # spans that are kept for each question


@dataclass(eq=False)
class Window:
    """A question and a piece of its context that the model reads at a time: S tokens."""

    row: int  # row of the question
    example: Example  # [S] by name: input_ids and, where the tokenizer makes them, token_type_ids
    # int32 [S, 2]: first character of a context token, one after its last; -1 for other tokens
    offsets: np.ndarray
    null: int  # position of CLS (or BOS), which stands for "no answer"
    # First and last token of the first reference answer. `null` twice if there is no answer, or if
    # another window holds all of the answer but this one does not. None if no window of the
    # question holds all of it.
    label: tuple[int, int] | None


def make_windows(
    questions: pd.DataFrame, tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int
) -> tuple[list[Window], list[Problem]]:
    """Cuts each context into as many windows of `max_length` tokens as it needs, which share
    `stride` tokens. Each begins with the question. Problems are questions that get no windows, as
    they are too long beside a long context, and those that cannot be learned from. InputError if a
    window has neither a CLS nor a BOS token."""
    windows, problems = list[Window](), list[Problem]()
    options = {
        "truncation": "only_second",
        "return_overflowing_tokens": True,
        "return_offsets_mapping": True,
    }
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    for row, question, context, answers in questions[
        ["question", "context", "answers"]
    ].itertuples():
        taken = len(tokenizer.tokenize(question, verbose=False))
        if (
            taken > room - stride - MIN_STEP
            and taken + len(tokenizer.tokenize(context, verbose=False)) > room
        ):
            problems.append(
                (row, question, f"longer than the window: of {max_length} tokens it takes {taken}")
            )
            continue
        encoding = tokenizer(question, context, max_length=max_length, stride=stride, **options)
        of_question = [
            _window(row, encoding, number, tokenizer)
            for number in range(len(encoding["input_ids"]))
        ]
        windows += of_question
        if answers and not _label(of_question, *answers[0]):
            problems.append(
                (row, answers[0][0], "no window holds all of it; not used for training")
            )
    return windows, problems


def _window(
    row: int, encoding: BatchEncoding, number: int, tokenizer: PreTrainedTokenizerFast
) -> Window:
    """One window of a question, labelled as if there were no answer."""
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
    # -1: a special token
    sequence = np.array([-1 if text is None else text for text in encoding.sequence_ids(number)])
    offsets = np.where(sequence[:, None] == 1, encoding["offset_mapping"][number], -1).astype(
        np.int32
    )
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        for null in np.flatnonzero((sequence == -1) & (example["input_ids"] == token)).tolist():
            return Window(row, example, offsets, null, (null, null))
    raise InputError(
        "the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are missing"
    )


def _label(windows: list[Window], text: str, start: int) -> bool:
    """Labels all windows of a question with its answer, which begins at character `start`. True if
    a window has it."""
    stop = start + len(text)
    touched = [
        np.flatnonzero((w.offsets[:, 0] < stop) & (w.offsets[:, 1] > start)) for w in windows
    ]
    characters = [
        window.offsets[tokens].ravel().tolist()
        for window, tokens in zip(windows, touched, strict=True)
    ]
    # A token may begin before the answer, or omit its last space. So the whole answer is all tokens
    # that touch it.
    ends = {min(chain(*characters), default=-1), max(chain(*characters), default=-1)}
    holders = [ends <= set(found) for found in characters]
    for window, tokens, holds in zip(windows, touched, holders, strict=True):
        no_answer = (window.null, window.null) if any(holders) else None
        window.label = (int(tokens[0]), int(tokens[-1])) if holds else no_answer
    return any(holders)


def window_batches(
    windows: list[Window], tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int
) -> ShuffledBatches:
    """Batches of the windows that can be learned from, with the positions [B] of labels in the
    padded rows."""
    trainable = np.flatnonzero([window.label is not None for window in windows])
    if not len(trainable):
        raise InputError(
            "no window can be learned from; look at the problems of the questions and their windows"
        )

    def collate(chosen: np.ndarray) -> dict[str, Tensor]:
        batch = pad([windows[i].example for i in chosen], tokenizer)
        labels = (
            torch.tensor([windows[i].label for i in chosen])
            + batch["attention_mask"].argmax(1)[:, None]
        )
        return batch | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}

    return ShuffledBatches(
        [len(window.offsets) for window in windows], trainable, batch_size, seed, collate
    )


def span_training_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over windows of the mean of the start's and the end's cross entropy, number of windows,
    0)."""
    output = model(**model_inputs(model, batch))
    start, end = output.start_logits.float(), output.end_logits.float()
    total = span_loss(start, end, batch["start_positions"], batch["end_positions"])
    return total, total.new_full((), len(start)), total.new_zeros(())


def best_spans(start: Tensor, end: Tensor, longest: int) -> list[tuple[float, int, int]]:
    """The N_BEST spans of at most `longest` of the S tokens: (sum of start and end logit, first
    token, last token)."""
    ends = nn.functional.pad(end, (0, longest), value=-torch.inf).unfold(0, longest, 1)[:-1]
    sums = (start[:, None] + ends).flatten()
    scores, index = sums.topk(min(N_BEST, len(sums)))
    found = zip(
        scores.tolist(), (index // longest).tolist(), (index % longest).tolist(), strict=True
    )
    return [(score, first, first + more) for score, first, more in found if score > -np.inf]


def answer(
    model: nn.Module,
    questions: pd.DataFrame,
    windows: list[Window],
    tokenizer: PreTrainedTokenizerFast,
    max_answer: int,
    precision: str = "auto",
) -> pd.DataFrame:
    """Finds the best spans (up to `max_answer` tokens) of every question over all its windows, by
    the start_logits and end_logits [B, S] of a model. The score of "no answer" is the lowest that
    any window gives.

    Returns one row for each question, also for those without windows: answer (the best span's text,
    "" if there is none), null_minus_best (how much higher, in logits, "no answer" scores than the
    best span) and candidates (texts with probabilities, best first; "" stands for no answer and is
    last). Raises Diverged if a logit is not a number."""
    model.eval()
    device = next(model.parameters()).device
    found: dict[Any, list[tuple[Window, Tensor]]] = defaultdict(list)
    for numbers in batches_by_length(model, [window.example for window in windows]):
        batch = pad([windows[number].example for number in numbers], tokenizer)
        with torch.inference_mode(), in_precision(device, precision):
            output = model(**model_inputs(model, batch))
            logits = torch.stack([output.start_logits, output.end_logits], 1).float().cpu()
        for number, values, real in zip(
            numbers, logits, batch["attention_mask"].bool(), strict=True
        ):
            found[windows[number].row].append((windows[number], values[:, real]))
    answers = [
        _best_answer(context, found[row], max_answer)
        for row, context in questions["context"].items()
    ]
    return pd.DataFrame(answers, questions.index, ["answer", "null_minus_best", "candidates"])


def _best_answer(
    context: str, found: list[tuple[Window, Tensor]], max_answer: int
) -> tuple[str, float, dict[str, float]]:
    """The row that `answer` returns for one question, from its windows and their start and end
    logits [2, S]."""
    if not found:
        return "", np.inf, {"": 1.0}
    if any(logits.isnan().any() for _, logits in found):
        raise Diverged(
            "the model's logits are not numbers; it has diverged, train it with a lower learning rate"
        )
    null_score = min(float(logits[:, window.null].sum()) for window, logits in found)
    spans: dict[tuple[int, int], float] = {}  # scores by (first character, the one after the last)
    for window, logits in found:
        tokens = np.flatnonzero(window.offsets[:, 0] >= 0)
        start, end = logits[:, tokens]
        for score, first, last in best_spans(start, end, max_answer):
            span = int(window.offsets[tokens[first], 0]), int(window.offsets[tokens[last], 1])
            spans[span] = max(score, spans.get(span, score))
    texts: dict[str, float] = {}  # the same text counts once
    for (first, last), score in sorted(spans.items(), key=lambda item: (-item[1], item[0]))[
        :N_BEST
    ]:
        texts.setdefault(context[first:last].strip(), score)
    texts.pop("", None)  # a span of white space is no answer
    best, score = next(iter(texts.items()), ("", -np.inf))
    scores = np.array([*texts.values(), null_score])
    weights = np.exp(scores - scores.max())
    return (
        best,
        null_score - score,
        dict(zip([*texts, ""], (weights / weights.sum()).tolist(), strict=True)),
    )


def vote(questions: pd.DataFrame, runs: list[pd.DataFrame]) -> pd.DataFrame:
    """A table with id, question, answer ("" for none), probability and null_minus_best. The last
    two are means over `runs` (what `answer` returned for each model). The answer is the candidate
    with the highest mean probability. If there are several models, `probability std` is the
    standard deviation of theirs."""
    votes = []
    for candidates in zip(*(run["candidates"] for run in runs), strict=True):
        texts = list(dict.fromkeys(chain(*candidates)))
        shares = np.array([[one.get(text, 0.0) for text in texts] for one in candidates])
        means = (shares / len(runs)).sum(0)
        best = means.argmax()
        votes.append((texts[best], means[best], shares[:, best]))
    table = questions[["id", "question"]].copy()
    table["answer"], table["probability"], by_run = zip(*votes, strict=True)
    table["null_minus_best"] = np.column_stack([run["null_minus_best"] for run in runs]).mean(1)
    if len(runs) > 1:
        table["probability std"] = np.std(by_run, 1, ddof=1)
    return table
