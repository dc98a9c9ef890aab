"""Question and context as tokens: overlapping windows, so that contexts of any length can be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.tasks.inference import Example
from exlm.tasks.squad import PROBLEM_COLUMNS, Questions

CHUNK = 1000  # questions that are tokenized at a time
LEAST_STEP = 16  # tokens that a window must move on by


@dataclass(frozen=True)
class QAConfig:
    """How contexts are read and answers chosen.

    Attributes:
        window: tokens that the model reads at a time: the question, a stretch of the context and special tokens.
        stride: tokens that consecutive windows of a context overlap by.
        max_answer: longest answer in tokens.
        n_best: spans that are kept for each question.
    """

    window: int = 384
    stride: int = 128
    max_answer: int = 30
    n_best: int = 20

    def __post_init__(self) -> None:
        for name, least in (("stride", 0), ("max_answer", 1), ("n_best", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.window < self.stride + 2 * LEAST_STEP:
            raise InputError(
                f"a window (task.max_length) has {self.window} tokens; it must have at least "
                f"{self.stride + 2 * LEAST_STEP}, {2 * LEAST_STEP} more than task.stride, to hold a question too"
            )


@dataclass(eq=False)
class Window:
    """Up to `QAConfig.window` tokens of a question and its context.

    Attributes:
        example: int32 arrays [S] by name: input_ids and, where the tokenizer makes them, token_type_ids.
        offsets: int32 [S, 2], the first character of each context token and the one after its last; -1 for tokens
            that are not of the context.
        question: index into the lists of `Questions`.
        null: position of CLS (or BOS), which stands for "no answer".
        start: position of the first token of the first reference answer; `null` where the window does not hold all of
            it, or there is none.
        end: position of its last token, likewise.
        trainable: false where the question has an answer and no window holds all of it.
    """

    example: Example
    offsets: np.ndarray
    question: int
    null: int
    start: int
    end: int
    trainable: bool = True


def make_windows(
    questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig
) -> tuple[list[Window], pd.DataFrame]:
    """Question first, context second, in as many windows as the context needs.

    Questions that leave no room for a context of more than one window are left out.

    Returns:
        the windows, those of a question one behind the other, and the problems: columns row, value and reason of
        questions that have no windows or cannot be learned from.

    Raises:
        InputError: if the tokenizer puts neither CLS nor BOS into its sequences.
    """
    windows: list[Window] = []
    problems: list[tuple[int, str, str]] = []
    for start in range(0, len(questions.ids), CHUNK):
        chosen = range(start, min(start + CHUNK, len(questions.ids)))
        too_long = _too_long(chosen, questions, tokenizer, config)
        problems += [(questions.rows[i], questions.questions[i], reason) for i, reason in too_long.items()]
        fitting = [i for i in chosen if i not in too_long]
        for i, group in groupby(_cut(fitting, questions, tokenizer, config), key=lambda window: window.question):
            windows += (of_question := list(group))
            if questions.answers is None or not questions.answers[i]:
                continue
            text, first = questions.answers[i][0]
            spans = answer_spans([window.offsets for window in of_question], text, first)
            for window, span in zip(of_question, spans, strict=True):
                window.start, window.end = span or (window.null, window.null)
                window.trainable = any(spans)
            if not any(spans):
                problems.append((questions.rows[i], text, "no window holds all of it; not used for training"))
    return windows, pd.DataFrame(problems, columns=PROBLEM_COLUMNS)


def answer_spans(offsets: list[np.ndarray], text: str, start: int) -> list[tuple[int, int] | None]:
    """The first and last token of an answer in each window of its context; None where a window does not hold it all.

    Args:
        offsets: [windows] arrays [S, 2] as in `Window`.
        text: the answer.
        start: its first character in the context.
    """
    hits = [np.flatnonzero((window[:, 0] < start + len(text)) & (window[:, 1] > start)) for window in offsets]
    found = [(window[hit, 0], window[hit, 1]) for window, hit in zip(offsets, hits, strict=True) if len(hit)]
    if not found:
        return [None] * len(offsets)
    # A token may begin before the answer or leave out its last space: its tokens are what any window has of it.
    first, last = min(begin[0] for begin, _ in found), max(end[-1] for _, end in found)
    return [
        (int(hit[0]), int(hit[-1])) if len(hit) and window[hit[0], 0] == first and window[hit[-1], 1] == last else None
        for window, hit in zip(offsets, hits, strict=True)
    ]


def _too_long(
    chosen: Sequence[int], questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig
) -> dict[int, str]:
    """Why questions do not fit, for those that do not."""

    def length(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    room = config.window - tokenizer.num_special_tokens_to_add(pair=True)
    reasons = {}
    for i in chosen:
        size = length(questions.questions[i])
        if size > room - config.stride - LEAST_STEP and size + length(questions.contexts[i]) > room:
            reasons[i] = f"a question longer than the window: of {config.window} tokens it takes {size}"
    return reasons


def _cut(
    chosen: list[int], questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig
) -> Iterator[Window]:
    """The windows of the chosen questions, in order, without their labels."""
    if not chosen:
        return
    encoding = tokenizer(
        [questions.questions[i] for i in chosen],
        [questions.contexts[i] for i in chosen],
        truncation="only_second",
        max_length=config.window,
        stride=config.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    marks = [token for token in (tokenizer.cls_token_id, tokenizer.bos_token_id) if token is not None]
    for number, sample in enumerate(encoding["overflow_to_sample_mapping"]):
        example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
        sequence = np.array([-1 if text is None else text for text in encoding.sequence_ids(number)])  # -1: special
        offsets = np.where(sequence[:, None] == 1, encoding["offset_mapping"][number], -1).astype(np.int32)
        nulls = [i for token in marks for i in np.flatnonzero((sequence == -1) & (example["input_ids"] == token))]
        if not nulls:
            raise InputError(
                "the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are missing"
            )
        null = int(nulls[0])
        yield Window(example, offsets, chosen[sample], null, null, null)
