"""Questions, their contexts and answers: read from SQuAD JSON or tables, and cut into windows."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_scalar
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerFast

from exlm.data.columns import check_columns
from exlm.data.frames import read_file
from exlm.data.open_files import plain_suffix, read_json
from exlm.data.tokenization import find_span_ends
from exlm.errors import InputError
from exlm.tasks.encoders.inference import Tokens, pad
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.encoders.training import ShuffledBatches

# The end of a message about a table of questions with other columns
RENAME = (
    "; rename its columns to question, context and, where they have answers, answer and "
    "answer_start (the first character of the answer in the context, from 0)"
)
COLUMNS = ["id", "question", "context", "answers", "remark", "problem"]
NOT_UNDERSTOOD = "no answers that are understood; write them as in SQuAD 2.0, or in a column answer"
MIN_STEP = 16  # each window must begin at least this many tokens after the window before


def read_questions(path: Path | str, labelled: bool = True) -> pd.DataFrame:
    """The questions of a SQuAD JSON (1.1 or 2.0), or of a table with the columns `question` and
    `context`.

    Answers are in the column `answer` of a table, or in `answers` as in the hub's copies of SQuAD
    ({text: [...], answer_start: [...]}). `id` and `answer_start` are optional. Without
    `answer_start`, the first occurrence counts. "" is no answer. An answer is dropped if the
    context does not have it where the file says.

    Returns all rows of the file, numbered from 0:
        id: the row where the file has none.
        question, context: "" where missing.
        answers: (text, first character in the context); None if they are missing or of no use.
        remark: what is wrong with the answers, "" if nothing.
        problem: why the question cannot be used, "" if it can; a `labelled` one needs answers.

    InputError if the file cannot be read or has no question that can be used."""
    rows = []
    for row, (record, problem) in enumerate(_records(path)):
        question = _text(record.get("question")).strip()
        context = _text(record.get("context"))
        answers, remark = _answers(record, context)
        if not problem and not (question and context):
            problem = "empty context" if question else "empty question"
        if labelled and answers is None:
            problem = problem or remark or NOT_UNDERSTOOD
        question_id = _text(record.get("id")).strip() or f"row {row + 1}"
        rows.append((question_id, question, context, answers, remark, problem))
    questions = pd.DataFrame(rows, columns=COLUMNS, dtype=object).rename_axis("row")
    if not (questions["problem"] == "").any():
        why = "it holds none"
        if rows:
            first = questions.iloc[0]
            why = f"first row 1, value {first.question[:80]!r}: {first.problem}; correct it"
        raise InputError(f"{path}: no question can be used, {why}")
    return questions


def _records(path: Path | str) -> list[tuple[dict[Any, Any], str]]:
    """For every question its fields, by SQuAD's names, and the problem of its row, or ""."""
    if plain_suffix(path) != ".json":
        rows = read_file(path)
        check_columns(rows.frame, path, "question", "context", way_out=RENAME)
        return list(zip(rows.frame.to_dict("records"), rows.problems_of_rows, strict=True))
    try:
        return [
            ({**record, "context": paragraph["context"]}, "")
            for article in read_json(path)["data"]
            for paragraph in article["paragraphs"]
            for record in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not SQuAD JSON ({error!r}); compare it with SQuAD 2.0"
        ) from None


def _answers(record: dict[Any, Any], context: str) -> tuple[list[tuple[str, int]] | None, str]:
    """The answers of a record that are at their places in the context, None if answers are missing
    or of no use; and what is wrong with them, or ""."""
    is_impossible = record.get("is_impossible") is True
    cells = record.get("answers")
    if cells is None and "answer" in record:
        cells = [{"text": record["answer"], "answer_start": record.get("answer_start")}]
    if cells is None:
        return [] if is_impossible else None, ""
    try:
        if isinstance(cells, dict):
            pairs = list(zip(cells["text"], cells["answer_start"], strict=True))
        else:
            pairs = [(cell["text"], cell["answer_start"]) for cell in cells]
        places = [_place(_text(text), start, context) for text, start in pairs if _text(text)]
    except (KeyError, TypeError, ValueError):
        return None, NOT_UNDERSTOOD
    answers = [(text, start) for text, start in places if start >= 0]
    if places and is_impossible:
        return None, "marked impossible but has answers"
    if places and not answers:
        return None, "no answer is at its place in the context"
    return answers, "" if len(answers) == len(places) else "an answer is not at its place; dropped"


def _place(text: str, start: Any, context: str) -> tuple[str, int]:
    """An answer and its first character in the context, -1 if it is not at its place."""
    number = pd.to_numeric(start, errors="coerce")
    if pd.isna(number):
        text = text.strip()
        return text, context.find(text)
    is_there = 0 <= number < len(context) and context.startswith(text, int(number))
    return text, int(number) if is_there else -1


def _text(value: Any) -> str:
    """A cell as text, "" where blank or missing. Half a character (a surrogate, which JSON can
    hold) is escaped."""
    missing = is_scalar(value) and pd.isna(value)
    text = "" if missing else str(value)
    return text.encode(errors="backslashreplace").decode() if text.strip() else ""


@dataclass(frozen=True, eq=False)
class Window:
    """A question and as much of its context as the model reads at a time: S tokens.

    Attributes:
        row: row of the question.
        example: [S] by name: input_ids and, where the tokenizer makes them, token_type_ids.
        offsets: int32 [S, 2]: where a token of the context begins and ends in the context, by
            characters, accents included; -1 for other tokens.
        null: position of CLS (or BOS), which stands for "no answer".
        label: first and last token of the first answer; `null` twice if the window does not hold
            all of it, or there is none; None if no window of the question holds it."""

    row: int
    example: Tokens
    offsets: np.ndarray
    null: int
    label: tuple[int, int] | None


class QuestionFile(NamedTuple):
    """The questions of a file, as a model reads them."""

    questions: pd.DataFrame  # as `read_questions` gives them; too long ones have a `problem` too
    windows: list[Window]
    labelled: pd.DataFrame  # the questions that can be used and have answers, also too long ones

    @property
    def scored(self) -> np.ndarray:
        """The positions in `labelled` of the questions that the model can read."""
        return np.flatnonzero(self.labelled["problem"] == "")


def read_windows(
    path: Path | str, tokenizer: PreTrainedTokenizerFast, task: SavedTask, labelled: bool
) -> QuestionFile:
    """The questions of a file in windows (`read_questions`, `make_windows`)."""
    questions = read_questions(path, labelled)
    is_usable = questions["problem"] == ""
    windows = make_windows(questions[is_usable], tokenizer, task.max_length, task.stride)
    is_read = questions.index.isin({window.row for window in windows})
    too_long = f"longer than the window of {task.max_length} tokens"
    questions["problem"] = questions["problem"].where(is_read | ~is_usable, too_long)
    return QuestionFile(questions, windows, questions[is_usable & questions["answers"].notna()])


def make_windows(
    questions: pd.DataFrame, tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int
) -> list[Window]:
    """Cuts each context into windows of at most `max_length` tokens, which begin with the question.
    Neighbouring windows share `stride` tokens of the context. A question that is too long beside a
    long context has no window. Spaces around a context are left out, as saved tokenizers do by
    themselves. InputError if a window has neither a CLS nor a BOS token."""
    windows: list[Window] = []
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    columns = questions[["question", "context", "answers"]]
    for row, question, context, answers in columns.itertuples():
        size = len(tokenizer.tokenize(question, verbose=False))
        is_long = size > room - stride - MIN_STEP
        text = context.strip()
        if is_long and size + len(tokenizer.tokenize(text, verbose=False)) > room:
            continue
        encoding = tokenizer(
            question,
            text,
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        place = context.find(text)
        ends = place + find_span_ends(text, tokenizer)
        of_question = [
            _window(row, encoding, number, tokenizer, answers, place, ends)
            for number in range(len(encoding["input_ids"]))
        ]
        if answers and all(window.label == (window.null, window.null) for window in of_question):
            of_question = [replace(window, label=None) for window in of_question]
        windows += of_question
    return windows


def _window(
    row: int,
    encoding: BatchEncoding,
    number: int,
    tokenizer: PreTrainedTokenizerFast,
    answers: list[tuple[str, int]] | None,
    place: int,
    ends: np.ndarray,
) -> Window:
    """Window `number` of a question. The encoded text begins at `place` of the context; `ends` has
    where spans of the text end in the context, accents included (`find_span_ends`)."""
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
    # 0 for the question, 1 for the context, NaN for special tokens
    texts = np.array(encoding.sequence_ids(number), dtype=float)
    offsets = np.full((len(texts), 2), -1, dtype=np.int32)
    starts, stops = np.array(encoding["offset_mapping"][number])[texts == 1].T
    offsets[texts == 1] = np.column_stack([place + starts, ends[stops]])
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        positions = np.flatnonzero(np.isnan(texts) & (example["input_ids"] == token))
        if len(positions):
            null = int(positions[0])
            return Window(row, example, offsets, null, _label(offsets, null, answers))
    raise InputError(
        "the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are "
        "missing"
    )


def _label(
    offsets: np.ndarray, null: int, answers: list[tuple[str, int]] | None
) -> tuple[int, int]:
    """The first and the last token of the first answer, `null` twice if no tokens hold it."""
    if not answers:
        return null, null
    text, start = answers[0]
    # Spaces at the ends of an answer may have no token.
    start += len(text) - len(text.lstrip())
    stop = start + len(text.strip())
    begins, ends = offsets.T
    tokens = np.flatnonzero((begins < stop) & (ends > start)).tolist()
    holds_whole = tokens and begins[tokens[0]] <= start and ends[tokens[-1]] >= stop
    return (tokens[0], tokens[-1]) if holds_whole else (null, null)


def window_batches(
    windows: list[Window], tokenizer: PreTrainedTokenizerFast, batch_size: int, seed: int
) -> ShuffledBatches:
    """Batches of the windows that can be learned from, with the positions [B] of labels."""
    trainable = np.flatnonzero([window.label is not None for window in windows])
    if not len(trainable):
        raise InputError(
            "no window can be learned from; look at the problems of the questions and their windows"
        )

    def collate(numbers: np.ndarray) -> dict[str, Tensor]:
        batch = pad([windows[number].example for number in numbers], tokenizer, "right")
        starts, ends = torch.tensor([windows[number].label for number in numbers]).T
        return {**batch, "start_positions": starts, "end_positions": ends}

    lengths = [len(window.offsets) for window in windows]
    return ShuffledBatches(lengths, trainable, batch_size, seed, collate)
