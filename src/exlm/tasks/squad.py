"""Questions on texts: SQuAD 1.1 and 2.0 as JSON or as the hub's Parquet, and tables of one's own.

Row numbers, in messages and in results, are 0-based questions in the order of the file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.readers import UNREADABLE, open_text
from exlm.errors import InputError
from exlm.tasks.frames import listed, plain_suffix, read_frame

PROBLEM_COLUMNS = ["row", "value", "reason"]


@dataclass(frozen=True, eq=False)
class Questions:
    """The questions of a file that can be used, and what is wrong with the others. The lists have one order.

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
        null_score: the same of "no answer"; 0 where the question has no window.
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


def read_questions(path: Path | str, labelled: bool = True) -> Questions:
    """Reads a file of questions, plain or compressed (.gz, .xz, .zst).

    Formats: SQuAD 1.1 or 2.0 (.json); CSV, TSV, JSONL or Parquet with columns `question`, `context` and, where
    labelled, `answer` and `answer_start` (optional: the first occurrence is taken without it), or `answers` as in the
    hub's copies of SQuAD ({text: [...], answer_start: [...]}); `id` is optional. An empty answer is none.

    Answers that do not stand where the file says are dropped and listed in `problems`, and so are questions that lose
    all their answers that way, have no question or context, or are marked impossible and yet answered.

    Raises:
        InputError: if the file cannot be read, lacks something, has an id twice, or no question can be used.
    """
    path = Path(path)
    records = (_squad_records if plain_suffix(path) == ".json" else _table_records)(path, labelled)
    kept: list[tuple[str, str, str, list[tuple[str, int]], int]] = []
    problems: list[tuple[int, str, str]] = []
    row_of_id: dict[str, int] = {}
    for row, record in enumerate(records):
        name, question, context = (_text(record.get(key)) for key in ("id", "question", "context"))
        name, question = name or str(row), question.strip()
        if name in row_of_id:
            raise InputError(
                f"{path}: rows {row_of_id[name]} and {row} have the same id {name!r}; make every id unique"
            )
        row_of_id[name] = row
        answers: list[tuple[str, int]] = []
        for text, start in record["references"]:
            found = _first_character(context, text, start)
            if isinstance(found, int):
                answers.append((text, found))
            else:
                problems.append((row, text, f"{found}; answer dropped"))
        reason = record["malformed"] or _problem(question, context)
        if record["references"] and record["is_impossible"]:
            reason = "marked impossible but has answers"
        elif record["references"] and not answers:
            reason = reason or "no answer is at its place"
        if reason:
            problems.append((row, question, f"{reason}; question left out"))
        else:
            kept.append((name, question, context, answers, row))
    if not kept and not problems:
        raise InputError(f"{path}: holds no question; give a file that does")
    if not kept:
        row, value, reason = problems[0]
        raise InputError(f"{path}: no question can be used, first row {row}, value {value!r}: {reason}; correct it")
    ids, questions, contexts, references, rows = (list(column) for column in zip(*kept, strict=True))
    table = pd.DataFrame(problems, columns=PROBLEM_COLUMNS)
    return Questions(ids, questions, contexts, references if labelled else None, rows, table)


def _problem(question: str, context: str) -> str | None:
    """Why nothing can be asked, or None."""
    if not question or not context.strip():
        return "empty context" if question else "empty question"
    try:
        (question + context).encode()
    except UnicodeEncodeError:  # JSON can escape half a character
        return "not valid Unicode text"
    return None


def _first_character(context: str, text: str, start: Any) -> int | str:
    """Where an answer begins, or why it does not stand where the file says."""
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


def _table_records(path: Path, labelled: bool) -> Iterator[dict[str, Any]]:
    """The rows of a table, with their `references`: answers and first characters as the file has them."""
    frame = read_frame(path)
    columns = {str(name).lower(): frame[name].tolist() for name in frame.columns}
    absent = [name for name in ("question", "context") if name not in columns]
    if labelled and not {"answer", "answers"} & columns.keys():
        absent.append("answer")
    if absent:
        raise InputError(f"{path}: no column {listed(absent)}; it has: {listed(frame)}; rename or add it")
    for row, cells in enumerate(zip(*columns.values(), strict=True)):
        record = dict(zip(columns, cells, strict=True))
        pairs: list[tuple[Any, Any]] = []
        if labelled and "answers" in record:
            try:
                pairs = [*zip(record["answers"]["text"], record["answers"]["answer_start"], strict=True)]
            except (TypeError, KeyError, ValueError):
                raise InputError(
                    f"{path}: row {row} of the column 'answers' is not {{text: [...], answer_start: [...]}}; "
                    "correct it, or use the columns answer and answer_start"
                ) from None
        elif labelled:
            text, start = _text(record["answer"]), record.get("answer_start")
            pairs = [(text.strip() if _missing(start) else text, start)]
        references = [(_text(text), start) for text, start in pairs if _text(text)]
        record |= {"id": _text(record.get("id")).strip(), "references": references, "is_impossible": False}
        yield record | {"malformed": frame.attrs.get("malformed", {}).get(row)}


def _squad_records(path: Path, labelled: bool) -> Iterator[dict[str, Any]]:
    """The questions of a SQuAD file, with `context` and `references` as those of a table."""

    def get(parent: Any, key: str, wanted: type, where: str) -> Any:
        value = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(value, wanted):
            name = {list: "list", str: "text", int: "number"}[wanted]
            raise InputError(f"{path} is not SQuAD JSON: {where} has no {name} {key!r}; compare it with SQuAD 2.0")
        return value

    for a, article in enumerate(get(_load_json(path), "data", list, "the file")):
        for p, paragraph in enumerate(get(article, "paragraphs", list, f"data[{a}]")):
            where = f"data[{a}].paragraphs[{p}]"
            context = get(paragraph, "context", str, where)
            for q, item in enumerate(get(paragraph, "qas", list, where)):
                name = f"{where}.qas[{q}]"
                get(item, "question", str, name)
                impossible, references = bool(item.get("is_impossible")), []
                if labelled and not (impossible and item.get("answers") is None):
                    for n, answer in enumerate(get(item, "answers", list, name)):
                        text = get(answer, "text", str, f"{name}.answers[{n}]")
                        start = get(answer, "answer_start", int, f"{name}.answers[{n}]")
                        references += [(text, start)] if text.strip() else []
                record = {"context": context, "references": references, "is_impossible": impossible}
                yield item | record | {"malformed": None}


def _load_json(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with open_text(str(path)) as file:
            return json.load(file)
    except (*UNREADABLE, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read as JSON: {reason}; check that it is complete") from error
