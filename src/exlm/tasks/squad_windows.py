"""Question and context as tokens: overlapping windows, so that contexts of any length can be read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from transformers import BatchEncoding, PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.tasks.squad import PROBLEM_COLUMNS, Problem, Questions

CHUNK = 1000  # questions that are tokenized at a time
LEAST_STEP = 16  # tokens that a window must move on by


@dataclass(frozen=True)
class QAConfig:
    """How contexts are read and answers chosen.

    Attributes:
        window: tokens that the model reads at a time: question, part of the context and special tokens.
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


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows of up to `window` tokens (each S of its own), those of a question one behind the other.

    Attributes:
        examples: [W] int32 arrays [S] by name: input_ids and, where the tokenizer makes them, token_type_ids.
        offsets: [W] int32 arrays [S, 2]: first character of each context token and the one after its last; -1 for
            tokens that are not of the context.
        question: [W] index into the lists of `Questions`, ascending.
        null: [W] position of CLS (or BOS), which stands for "no answer".
        starts: [W] position of the first token of the first reference answer; `null` where the window does not hold
            all of it, or there is none.
        ends: [W] position of its last token, likewise.
        trainable: [W] false where the question has an answer and no window holds all of it.
        problems: columns row, value and reason of questions that have no windows or cannot be learned from.
    """

    examples: list[dict[str, np.ndarray]]
    offsets: list[np.ndarray]
    question: np.ndarray
    null: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    trainable: np.ndarray
    problems: pd.DataFrame


class _Window(NamedTuple):
    example: dict[str, np.ndarray]
    offsets: np.ndarray
    question: int
    null: int
    span: tuple[int, int]
    trainable: bool


def make_windows(questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig) -> Windows:
    """Question first, context second, in as many windows as the context needs.

    Questions that leave no room for a context of more than one window are left out, and listed in `problems`.

    Raises:
        InputError: if the tokenizer puts neither CLS nor BOS into its sequences.
    """
    windows: list[_Window] = []
    problems: list[Problem] = []
    for start in range(0, len(questions.ids), CHUNK):
        chosen = list(range(start, min(start + CHUNK, len(questions.ids))))
        reasons = _crowded(chosen, questions, tokenizer, config)
        problems += [(questions.rows[i], questions.questions[i], reason) for i, reason in reasons.items()]
        for i, cut in _cut([i for i in chosen if i not in reasons], questions, tokenizer, config):
            answers = questions.answers[i][:1] if questions.answers is not None else []
            spans = answer_spans([offsets for _, offsets, _ in cut], *answers[0]) if answers else [None] * len(cut)
            learnable = not answers or any(spans)
            if not learnable:
                problems.append((questions.rows[i], answers[0][0], "no window holds all of it; not used for training"))
            windows += [
                _Window(example, offsets, i, null, span or (null, null), learnable)
                for (example, offsets, null), span in zip(cut, spans, strict=True)
            ]
    return _stacked(windows, problems)


def answer_spans(offsets: list[np.ndarray], text: str, start: int) -> list[tuple[int, int] | None]:
    """The first and last token of an answer in each window of its context; None where a window lacks a part of it.

    Args:
        offsets: [windows] arrays [S, 2] as in `Windows`.
        text: the answer.
        start: its first character in the context.
    """
    hits = [np.flatnonzero((part[:, 0] < start + len(text)) & (part[:, 1] > start)) for part in offsets]
    found = [(part[hit, 0], part[hit, 1]) for part, hit in zip(offsets, hits, strict=True) if len(hit)]
    if not found:
        return [None] * len(offsets)
    # A token may begin before the answer or leave out its last space: its tokens are what any window has of it.
    first, last = min(begin[0] for begin, _ in found), max(end[-1] for _, end in found)
    return [
        (int(hit[0]), int(hit[-1])) if len(hit) and part[hit[0], 0] == first and part[hit[-1], 1] == last else None
        for part, hit in zip(offsets, hits, strict=True)
    ]


def _crowded(
    chosen: list[int], questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig
) -> dict[int, str]:
    """Why questions do not fit, for those that do not."""

    def lengths(texts: list[str]) -> list[int]:
        return [len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]

    room = config.window - tokenizer.num_special_tokens_to_add(pair=True)
    sizes = dict(zip(chosen, lengths([questions.questions[i] for i in chosen]), strict=True))
    large = [i for i in chosen if room - sizes[i] < config.stride + LEAST_STEP]
    contexts = dict(zip(large, lengths([questions.contexts[i] for i in large]), strict=True))
    return {
        i: f"a question longer than the window: of {config.window} tokens it takes {sizes[i]}"
        for i in large
        if sizes[i] + contexts[i] > room
    }


_Cut = tuple[dict[str, np.ndarray], np.ndarray, int]  # example, offsets, position of CLS


def _cut(
    chosen: list[int], questions: Questions, tokenizer: PreTrainedTokenizerFast, config: QAConfig
) -> Iterator[tuple[int, list[_Cut]]]:
    """Each chosen question with its windows."""
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
    cuts: dict[int, list[_Cut]] = {i: [] for i in chosen}
    for number, sample in enumerate(encoding["overflow_to_sample_mapping"]):
        cuts[chosen[sample]].append(_window(encoding, number, tokenizer))
    yield from cuts.items()


def _window(encoding: BatchEncoding, number: int, tokenizer: PreTrainedTokenizerFast) -> _Cut:
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
    sequence = encoding.sequence_ids(number)
    context = np.array([part == 1 for part in sequence])
    offsets = np.where(context[:, None], encoding["offset_mapping"][number], -1).astype(np.int32)
    special = np.array([part is None for part in sequence])
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        places = np.flatnonzero(special & (example["input_ids"] == (-1 if token is None else token)))
        if len(places):
            return example, offsets, int(places[0])
    raise InputError("the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are missing")


def _stacked(windows: list[_Window], problems: list[Problem]) -> Windows:
    return Windows(
        examples=[window.example for window in windows],
        offsets=[window.offsets for window in windows],
        question=np.array([window.question for window in windows], dtype=np.int64),
        null=np.array([window.null for window in windows], dtype=np.int64),
        starts=np.array([window.span[0] for window in windows], dtype=np.int64),
        ends=np.array([window.span[1] for window in windows], dtype=np.int64),
        trainable=np.array([window.trainable for window in windows], dtype=bool),
        problems=pd.DataFrame(problems, columns=PROBLEM_COLUMNS),
    )
