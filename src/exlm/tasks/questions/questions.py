"""Questions, their contexts and answers: read from SQuAD JSON or tables, and cut into windows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_scalar
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerFast

from exlm.data.columns import check_columns, check_different
from exlm.data.files import plain_suffix, read_json
from exlm.data.frames import read_file
from exlm.errors import InputError
from exlm.tasks.encoders.inference import Tokens, pad
from exlm.tasks.encoders.supervised import ShuffledBatches
from exlm.tasks.labels.column_labels import note_unscored

MIN_STEP = 16  # each window must begin at least this many tokens after the one before


class QuestionProblem(NamedTuple):
    """Why a question or one of its answers cannot be used."""

    row: int
    value: str  # the question or the answer
    problem: str


def read_questions(
    path: Path | str, labelled: bool = True
) -> tuple[pd.DataFrame, list[QuestionProblem]]:
    """Reads questions from SQuAD JSON (1.1 or 2.0), or a table with the columns `question` and
    `context`.

    A labelled table also has `answer`, or `answers` as in the hub's copies of SQuAD ({text: [...],
    answer_start: [...]}). `id` and `answer_start` are optional. Without `answer_start`, the first
    occurrence counts. "" is no answer. An answer is dropped if the context does not have it where
    the file says. A question is left out if it loses all its answers that way, if it is empty or
    has no context, or if it is marked impossible but has answers.

    Returns the questions that can be used, indexed by their row from 0, and the problems of all
    others and of dropped answers. Questions have id (the row where the file has none), question,
    context and answers: (text, first character in the context). InputError if the file cannot be
    read, has an id twice, or no question that can be used."""
    usable: dict[int, tuple[Any, ...]] = {}
    problems: list[QuestionProblem] = []
    row_of_id: dict[str, int] = {}
    for row, (record, row_problem) in enumerate(_records(path, labelled)):
        question_id = _text(record.get("id")).strip() or f"row {row + 1}"
        question = _text(record.get("question")).strip()
        context = _text(record.get("context"))
        try:
            references = _references(record, context) if labelled else []
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{path}: row {row + 1} has no answers that are understood; write them as in SQuAD "
                f"2.0, or as columns answer and answer_start"
            ) from None
        first_row = row_of_id.setdefault(question_id, row)
        if first_row != row:
            raise InputError(
                f"{path}: rows {first_row + 1} and {row + 1} have the same id {question_id!r}; "
                "make every id unique"
            )
        answers = [(text, start) for text, start in references if start >= 0]
        for text, start in references:
            if start < 0:
                misplaced = "the context does not have it where it should; answer dropped"
                problems.append(QuestionProblem(row, text, misplaced))
        is_impossible = record.get("is_impossible") is True
        problem = row_problem or _problem(question, context, references, is_impossible)
        if problem:
            problems.append(QuestionProblem(row, question, f"{problem}; question left out"))
        else:
            usable[row] = (question_id, question, context, answers)
    if not usable:
        why = "it holds none"
        if problems:
            row, value, problem = problems[0]
            why = f"first row {row + 1}, value {str(value)[:80]!r}: {problem}; correct it"
        raise InputError(f"{path}: no question can be used, {why}")
    columns = ["id", "question", "context", "answers"]
    questions = pd.DataFrame([*usable.values()], columns=columns, dtype=object)
    return questions.set_axis(pd.Index([*usable], name="row")), problems


def _problem(
    question: str, context: str, references: list[tuple[str, int]], is_impossible: bool
) -> str:
    """Why a question cannot be used, "" if it can."""
    if references and is_impossible:
        return "marked impossible but has answers"
    if not question:
        return "empty question"
    if not context:
        return "empty context"
    if references and all(start < 0 for _, start in references):
        return "no answer is at its place"
    return ""


def read_answered_questions(path: Path | str) -> pd.DataFrame | None:
    """The questions of a labelled file, as `read_questions` gives them; a note counts those whose
    answers cannot be used. None if the file has no answers. InputError for answers that are not
    understood, or if no question can be used with them."""
    records = _records(path, labelled=False)
    cells = [record.get(name) for record, _ in records for name in ("answer", "answers")]
    if not any(map(_text, cells)):
        return None
    questions, problems = read_questions(path)
    if not any(questions["answers"]):
        return None
    unscored = {row: problem for row, _, problem in problems if row not in questions.index}
    rows = pd.RangeIndex(max([*questions.index, *unscored]) + 1)
    note_unscored(unscored, rows, path)
    return questions


def _records(path: Path | str, labelled: bool) -> list[tuple[dict[Any, Any], str]]:
    """For every question, its fields (by SQuAD's names or the file's columns) and the problem of
    its row, or ""."""
    if plain_suffix(path) == ".json":
        return [(record, "") for record in _squad_records(path)]
    rows = read_file(path)
    names = [str(name) for name in rows.frame]
    # in any case, but a column that has the very name is not replaced
    names = [name if name.lower() in names else name.lower() for name in names]
    check_different(names, path)
    frame = rows.frame.set_axis(names, axis=1)
    answer = "answers" if "answers" in frame else "answer"
    check_columns(frame, path, "question", "context", answer if labelled else None)
    records = frame.to_dict("records")
    return [(record, rows.problems.get(row, "")) for row, record in enumerate(records)]


def _squad_records(path: Path | str) -> list[dict[Any, Any]]:
    try:
        return [
            {**record, "context": paragraph["context"]}
            for article in read_json(path)["data"]
            for paragraph in article["paragraphs"]
            for record in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not SQuAD JSON ({error!r}); compare it with SQuAD 2.0"
        ) from None


def _references(record: dict[Any, Any], context: str) -> list[tuple[str, int]]:
    """The answers of a record and their first characters in the context, -1 for an answer that is
    not where it should be. KeyError, TypeError or ValueError for answers of another form."""
    answers = record.get("answers")
    if answers is None and record.get("is_impossible") is True:
        return []
    if answers is None:
        answers = [{"text": record["answer"], "answer_start": record.get("answer_start")}]
    if isinstance(answers, dict):
        pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
    else:
        pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
    references = []
    for cell, place in pairs:
        text = _text(cell)
        start = pd.to_numeric(place, errors="coerce")
        if pd.isna(start):
            text = text.strip()
            start = context.find(text)
        elif not (0 <= start < len(context) and context.startswith(text, int(start))):
            start = -1
        if text:
            references.append((text, int(start)))
    return references


def _text(value: Any) -> str:
    """A cell as text, "" where blank or missing. Half a character (a surrogate, which JSON can
    hold) is escaped."""
    missing = is_scalar(value) and pd.isna(value)
    text = "" if missing else str(value)
    return text.encode(errors="backslashreplace").decode() if text.strip() else ""


@dataclass(eq=False)
class Window:
    """A question and a piece of its context that the model reads at a time: S tokens.

    Attributes:
        row: row of the question.
        example: [S] by name: input_ids and, where the tokenizer makes them, token_type_ids.
        offsets: int32 [S, 2]: first character of a context token, one after its last; -1 for other
            tokens.
        null: position of CLS (or BOS), which stands for "no answer".
        label: first and last token of the first reference answer. `null` twice if there is no
            answer, or if another window holds all of the answer but this one does not. None if no
            window of the question holds all of it."""

    row: int
    example: Tokens
    offsets: np.ndarray
    null: int
    label: tuple[int, int] | None


def make_windows(
    questions: pd.DataFrame, tokenizer: PreTrainedTokenizerFast, max_length: int, stride: int
) -> tuple[list[Window], list[QuestionProblem]]:
    """Cuts each context into as many windows of `max_length` tokens as it needs, which share
    `stride` tokens. Each begins with the question. Problems are questions that get no windows, as
    they are too long beside a long context, and those that cannot be learned from. InputError if a
    window has neither a CLS nor a BOS token."""
    windows: list[Window] = []
    problems: list[QuestionProblem] = []
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    columns = questions[["question", "context", "answers"]]
    for row, question, context, answers in columns.itertuples():
        size = len(tokenizer.tokenize(question, verbose=False))
        is_long = size > room - stride - MIN_STEP
        if is_long and size + len(tokenizer.tokenize(context, verbose=False)) > room:
            problem = f"longer than the window: of {max_length} tokens it takes {size}"
            problems.append(QuestionProblem(row, question, problem))
            continue
        encoding = tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        count = len(encoding["input_ids"])
        question_windows = [_window(row, encoding, number, tokenizer) for number in range(count)]
        windows += question_windows
        if answers:
            text, start = answers[0]
            _label_windows(question_windows, text, start)
            if all(window.label is None for window in question_windows):
                problem = "no window holds all of it; not used for training"
                problems.append(QuestionProblem(row, text, problem))
    return windows, problems


def _window(
    row: int, encoding: BatchEncoding, number: int, tokenizer: PreTrainedTokenizerFast
) -> Window:
    """One window of a question, labelled as if there were no answer."""
    names = [name for name in ("input_ids", "token_type_ids") if name in encoding]
    example = {name: np.array(encoding[name][number], dtype=np.int32) for name in names}
    # 0 for the question, 1 for the context, NaN for special tokens
    texts = np.array(encoding.sequence_ids(number), dtype=float)
    offsets = np.array(encoding["offset_mapping"][number], dtype=np.int32)
    offsets[texts != 1] = -1
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        positions = np.flatnonzero(np.isnan(texts) & (example["input_ids"] == token))
        if len(positions):
            null = int(positions[0])
            return Window(row, example, offsets, null, label=(null, null))
    raise InputError(
        "the tokenizer puts neither CLS nor BOS before or behind its texts, for answers that are "
        "missing"
    )


def _label_windows(windows: list[Window], text: str, start: int) -> None:
    """Labels all windows of a question with its answer, which begins at character `start`."""
    stop = start + len(text)
    # A token may begin before the answer, or omit its last space. So the whole answer is all tokens
    # that touch it, in any window.
    begins, ends = np.concatenate([window.offsets for window in windows]).T
    touches = (begins < stop) & (ends > start)
    whole = (begins[touches].min(initial=stop), ends[touches].max(initial=start))
    holds_whole = False
    for window in windows:
        begins, ends = window.offsets.T
        tokens = np.flatnonzero((begins < stop) & (ends > start)).tolist()
        if tokens and (begins[tokens[0]], ends[tokens[-1]]) == whole:
            window.label = (tokens[0], tokens[-1])
            holds_whole = True
    if not holds_whole:
        for window in windows:
            window.label = None


def rows_with_windows(questions: pd.DataFrame, windows: list[Window]) -> np.ndarray:
    """The positions of the questions that a model can read, which alone are scored."""
    return np.flatnonzero(questions.index.isin({window.row for window in windows}))


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

    def collate(numbers: np.ndarray) -> dict[str, Tensor]:
        batch = pad([windows[number].example for number in numbers], tokenizer)
        padding_on_the_left = batch["attention_mask"].argmax(1)
        labels = torch.tensor([windows[number].label for number in numbers])
        starts, ends = (labels + padding_on_the_left[:, None]).T
        return {**batch, "start_positions": starts, "end_positions": ends}

    lengths = [len(window.offsets) for window in windows]
    return ShuffledBatches(lengths, trainable, batch_size, seed, collate)
