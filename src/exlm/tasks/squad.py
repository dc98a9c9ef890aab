"""Questions on texts: SQuAD 1.1 and 2.0 as JSON or as the hub's Parquet, and tables of one's own.

Row numbers, in messages and in results, are 0-based questions in the order of the file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.readers import UNREADABLE, open_text
from exlm.errors import InputError
from exlm.tasks.frames import listed, plain_suffix, read_frame

PROBLEM_COLUMNS = ["row", "value", "reason"]

Problem = tuple[int, str, str]


@dataclass(frozen=True, eq=False)
class Questions:
    """The questions of a file that can be used, and what is wrong with the others. Lists are in step.

    Attributes:
        ids: of the questions; their row numbers where the file has none.
        questions: without white space around them.
        contexts: the texts that answers are cut out of, unchanged.
        answers: reference answers (text, first character in the context) of each question, none where it has no
            answer in its context; None for a file without labels.
        rows: row number of each question in the file.
        problems: columns row, value and reason of every answer and question that was dropped.
    """

    ids: list[str]
    questions: list[str]
    contexts: list[str]
    answers: list[list[tuple[str, int]]] | None
    rows: list[int]
    problems: pd.DataFrame

    @property
    def impossible(self) -> list[bool]:
        """Whether each question is labelled as having no answer."""
        return [not answers for answers in self.answers] if self.answers is not None else [False] * len(self.ids)


@dataclass(frozen=True)
class Answer:
    """What a model makes of one question.

    Attributes:
        text: the best span of the context; "" where no span could be scored.
        score: its start logit plus its end logit; -inf where there is none.
        null_score: the same of "no answer"; 0 where no window was read.
        n_best: distinct texts with probabilities, best first; "" stands for no answer.
    """

    text: str
    score: float
    null_score: float
    n_best: list[tuple[str, float]]

    @property
    def null_minus_best(self) -> float:
        """How much "no answer" is preferred; an answer is given where this is at most the threshold."""
        return self.null_score - self.score


class _Record(NamedTuple):
    id: str
    question: str
    context: str
    answers: list[tuple[str, Any]]  # text and its first character, as the file has it
    impossible: bool | None
    malformed: str | None = None


def read_questions(path: Path | str, labelled: bool = True) -> Questions:
    """Reads a file of questions, plain or compressed (.gz, .xz, .zst).

    Formats: SQuAD 1.1 or 2.0 (.json); CSV, TSV, JSONL or Parquet with columns `question`, `context` and, where
    labelled, `answer` and `answer_start` (optional: the first occurrence is taken without it), or `answers` as in the
    hub's copies of SQuAD ({text: [...], answer_start: [...]}); `id` is optional. An empty answer is none.

    Answers that are not at their place are dropped and listed in `problems`, and so are questions that lose all
    their answers that way, have no question or context, or are marked impossible and yet answered.

    Raises:
        InputError: if the file cannot be read, lacks something, has an id twice, or no question can be used.
    """
    path = Path(path)
    read = _squad_records if plain_suffix(path) == ".json" else _table_records
    questions = _collect(read(path, labelled), labelled, path)
    if not questions.ids:
        if questions.problems.empty:
            raise InputError(f"{path}: holds no question; give a file that does")
        row, value, reason = questions.problems.iloc[0]
        raise InputError(f"{path}: no question can be used, first row {row}, value {value!r}: {reason}; correct it")
    return questions


def _collect(records: Iterator[_Record], labelled: bool, path: Path) -> Questions:
    kept: list[tuple[int, _Record, list[tuple[str, int]]]] = []
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for row, record in enumerate(records):
        name = record.id or str(row)
        if name in seen:
            raise InputError(f"{path}: rows {seen[name]} and {row} have the same id {name!r}; make every id unique")
        seen[name] = row
        answers, found = _located(row, record) if labelled else ([], [])
        reason = _unusable(record, answers) if labelled else _unreadable(record)
        problems += found
        if reason:
            problems.append((row, record.question, f"{reason}; question left out"))
        else:
            kept.append((row, record._replace(id=name), answers))
    return Questions(
        ids=[record.id for _, record, _ in kept],
        questions=[record.question for _, record, _ in kept],
        contexts=[record.context for _, record, _ in kept],
        answers=[answers for *_, answers in kept] if labelled else None,
        rows=[row for row, *_ in kept],
        problems=pd.DataFrame(problems, columns=PROBLEM_COLUMNS),
    )


def _unreadable(record: _Record) -> str | None:
    """Why nothing can be asked, or None."""
    if record.malformed:
        return record.malformed
    if not record.question or not record.context.strip():
        return "empty context" if record.question else "empty question"
    try:
        (record.question + record.context).encode()
    except UnicodeEncodeError:  # JSON can escape half a character
        return "not valid Unicode text"
    return None


def _unusable(record: _Record, answers: list[tuple[str, int]]) -> str | None:
    """Why nothing can be learned or scored, or None."""
    if record.impossible and record.answers:
        return "marked impossible but has answers"
    if record.answers and not answers:
        return _unreadable(record) or "no answer is at its place"
    return _unreadable(record)


def _located(row: int, record: _Record) -> tuple[list[tuple[str, int]], list[Problem]]:
    """The answers at their place, and what is wrong with the others."""
    places = [(text, _place(record.context, text, start)) for text, start in record.answers]
    good = [(text, place) for text, place in places if isinstance(place, int)]
    return good, [(row, text, f"{place}; answer dropped") for text, place in places if isinstance(place, str)]


def _place(context: str, text: str, start: Any) -> int | str:
    """The first character of an answer, or why it has none."""
    if _missing(start):
        first = context.find(text)
        return first if first >= 0 else "the context does not contain it"
    try:
        number = float(start)  # a column with gaps may say 12.0
    except (TypeError, ValueError):
        number = float("nan")
    if not number.is_integer():
        return f"its start {start!r} is not a whole number"
    first = int(number)
    found = first >= 0 and context.startswith(text, first)
    return first if found else f"it is not at character {first} of the context"


def _missing(value: Any) -> bool:
    nothing = value is None or value is pd.NA or (isinstance(value, float) and value != value)
    return nothing or (isinstance(value, str) and not value.strip())


def _text(value: Any) -> str:
    return "" if _missing(value) else str(value)


def _table_records(path: Path, labelled: bool) -> Iterator[_Record]:
    frame = read_frame(path)
    columns = {str(name).lower(): frame[name].tolist() for name in frame.columns}
    absent = [name for name in ("question", "context") if name not in columns]
    if labelled and not {"answer", "answers"} & columns.keys():
        absent.append("answer")
    if absent:
        raise InputError(f"{path}: no column {listed(absent)}; it has: {listed(frame)}; rename or add it")
    for row in range(len(frame)):
        values = {name: column[row] for name, column in columns.items()}
        answers = _table_answers(values, row, path) if labelled else []
        name, question = (_text(values.get(key)).strip() for key in ("id", "question"))
        malformed = frame.attrs.get("malformed", {}).get(row)
        yield _Record(name, question, _text(values["context"]), answers, None, malformed)


def _table_answers(values: dict[str, Any], row: int, path: Path) -> list[tuple[str, Any]]:
    if "answers" not in values:
        text, start = _text(values["answer"]), values.get("answer_start")
        text = text.strip() if _missing(start) else text
        return [(text, start)] if text else []
    try:
        answers = values["answers"]
        pairs = [*zip(answers["text"], answers["answer_start"], strict=True)]
    except (TypeError, KeyError, ValueError):
        raise InputError(
            f"{path}: row {row} of the column 'answers' is not {{text: [...], answer_start: [...]}}; "
            "correct it, or use the columns answer and answer_start"
        ) from None
    return [(_text(text), start) for text, start in pairs if _text(text)]


def _squad_records(path: Path, labelled: bool) -> Iterator[_Record]:
    for a, article in enumerate(_get(_load_json(path), "data", list, "the file", path)):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, f"data[{a}]", path)):
            where = f"data[{a}].paragraphs[{p}]"
            context = _get(paragraph, "context", str, where, path)
            for q, item in enumerate(_get(paragraph, "qas", list, where, path)):
                place = f"{where}.qas[{q}]"
                question = _get(item, "question", str, place, path).strip()
                impossible = item.get("is_impossible")
                answers = _squad_answers(item, place, path) if labelled else []
                yield _Record(_text(item.get("id")), question, context, answers, impossible)


def _squad_answers(item: dict[str, Any], where: str, path: Path) -> list[tuple[str, Any]]:
    if item.get("is_impossible") and item.get("answers") is None:
        return []
    places = [(a, f"{where}.answers[{n}]") for n, a in enumerate(_get(item, "answers", list, where, path))]
    pairs = [(_get(a, "text", str, place, path), _get(a, "answer_start", int, place, path)) for a, place in places]
    return [(text, start) for text, start in pairs if text.strip()]


def _get(parent: Any, key: str, kind: type, where: str, path: Path) -> Any:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, kind):
        names = {list: "list", str: "text", int: "number"}
        raise InputError(f"{path} is not SQuAD JSON: {where} has no {names[kind]} {key!r}; compare it with SQuAD 2.0")
    return value


def _load_json(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with open_text(str(path)) as file:
            return json.load(file)
    except (*UNREADABLE, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read as JSON: {reason}; check that it is complete") from error
