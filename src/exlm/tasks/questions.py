"""Questions on texts: SQuAD 1.1 and 2.0 as JSON or as the hub's Parquet, and tables of one's own.

Row numbers, in messages and in results, are 0-based questions in the order of the file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.data.readers import UNREADABLE, open_text
from exlm.errors import InputError
from exlm.tasks.frames import listed, plain_suffix, read_frame

Problem = tuple[int, str, str]  # row, question or answer, what is wrong with it
Record = tuple[str, str, str, list[tuple[str, Any]], str]  # id, question, context, (answer, start) pairs, what is wrong


def read_questions(path: Path | str, labelled: bool = True) -> tuple[pd.DataFrame, list[Problem]]:
    """Reads a file of questions, plain or compressed (.gz, .xz, .zst).

    Formats: SQuAD 1.1 or 2.0 (.json); CSV, TSV, JSONL or Parquet with columns `question`, `context` and, where
    labelled, `answer` and `answer_start` (optional: the first occurrence is taken without it), or `answers` as in the
    hub's copies of SQuAD ({text: [...], answer_start: [...]}); `id` is optional. An empty answer is none.

    Answers that do not stand where the file says are dropped. Questions are left out that lose all their answers that
    way, have no question or context, are no valid Unicode, or are marked impossible and yet answered.

    Returns:
        the questions that can be used, and the problems of all others and of the dropped answers. The columns of the
        questions are id (the row number where the file has none), question, context (unchanged: answers are cut out
        of it) and answers, a list of reference answers (text, first character in the context), empty where the
        context does not answer the question. The index is the row number.

    Raises:
        InputError: if the file cannot be read, lacks something, has an id twice, or no question can be used.
    """
    path = Path(path)
    kept: dict[int, tuple[Any, ...]] = {}
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    records = (_json_records if plain_suffix(path) == ".json" else _table_records)(path, labelled)
    for row, (name, question, context, references, fault) in enumerate(records):
        name, question = name or str(row), question.strip()
        if (first := row_of_id.setdefault(name, row)) != row:
            raise InputError(f"{path}: rows {first} and {row} have the same id {name!r}; make every id unique")
        answers: list[tuple[str, int]] = []
        for text, start in references:
            found = _first_character(context, text, start)
            if isinstance(found, int):
                answers.append((text, found))
            else:
                problems.append((row, _printable(text), f"{found}; answer dropped"))
        if not fault and not (question and context.strip()):
            fault = "empty context" if question else "empty question"
        if not fault and (whole := name + question + context) != _printable(whole):
            fault = "not valid Unicode text"
        if not fault and references and not answers:
            fault = "no answer is at its place"
        if fault:
            problems.append((row, _printable(question), f"{fault}; question left out"))
        else:
            kept[row] = (name, question, context, answers)
    if not kept and not problems:
        raise InputError(f"{path}: holds no question; give a file that does")
    if not kept:
        row, value, reason = problems[0]
        raise InputError(f"{path}: no question can be used, first row {row}, value {value!r}: {reason}; correct it")
    questions = pd.DataFrame([*kept.values()], columns=["id", "question", "context", "answers"], dtype=object)
    return questions.set_axis(pd.Index([*kept], name="row")), problems


def _printable(text: str) -> str:
    """The text in valid Unicode: JSON can escape half a character."""
    return text.encode(errors="backslashreplace").decode()


def _first_character(context: str, text: str, start: Any) -> int | str:
    """Where an answer begins, or why it does not stand where the file says."""
    if not _text(start):
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


def _text(value: Any) -> str:
    """A cell as text, "" where it is blank or missing."""
    missing = value is None or value is pd.NA or (isinstance(value, float) and value != value)
    return "" if missing or not str(value).strip() else str(value)


def _table_records(path: Path, labelled: bool) -> Iterator[Record]:
    frame = read_frame(path)
    columns = {str(name).lower() for name in frame}
    absent = [name for name in ("question", "context") if name not in columns]
    if labelled and not {"answer", "answers"} & columns:
        absent.append("answer")
    if absent:
        raise InputError(f"{path}: no column {listed(absent)}; it has: {listed(frame)}; rename or add it")
    for row, cells in enumerate(frame.rename(columns=lambda name: str(name).lower()).to_dict("records")):
        pairs: list[tuple[Any, Any]] = []
        if labelled and "answers" in cells:
            try:
                pairs = [*zip(cells["answers"]["text"], cells["answers"]["answer_start"], strict=True)]
            except (TypeError, KeyError, ValueError):
                raise InputError(
                    f"{path}: row {row} of the column 'answers' is not {{text: [...], answer_start: [...]}}; "
                    "correct it, or use the columns answer and answer_start"
                ) from None
        elif labelled:
            text, start = _text(cells["answer"]), cells.get("answer_start")
            pairs = [(text if _text(start) else text.strip(), start)]
        references = [(_text(text), start) for text, start in pairs if _text(text)]
        name, question, context = (_text(cells.get(column)) for column in ("id", "question", "context"))
        yield name.strip(), question, context, references, frame.attrs.get("malformed", {}).get(row, "")


def _json_records(path: Path, labelled: bool) -> Iterator[Record]:
    def get(parent: Any, key: str, wanted: type, where: str) -> Any:
        value = parent.get(key) if isinstance(parent, dict) else None
        if not isinstance(value, wanted):
            kind = {list: "list", str: "text", int: "number"}[wanted]
            raise InputError(f"{path} is not SQuAD JSON: {where} has no {kind} {key!r}; compare it with SQuAD 2.0")
        return value

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with open_text(str(path)) as file:
            document = json.load(file)
    except (*UNREADABLE, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be read as JSON: {reason}; check that it is complete") from error
    for a, article in enumerate(get(document, "data", list, "the file")):
        for p, paragraph in enumerate(get(article, "paragraphs", list, f"data[{a}]")):
            where = f"data[{a}].paragraphs[{p}]"
            context = get(paragraph, "context", str, where)
            for q, item in enumerate(get(paragraph, "qas", list, where)):
                here = f"{where}.qas[{q}]"
                question, impossible = get(item, "question", str, here), bool(item.get("is_impossible"))
                references = []
                if labelled and not (impossible and item.get("answers") is None):
                    for n, answer in enumerate(get(item, "answers", list, here)):
                        text = get(answer, "text", str, f"{here}.answers[{n}]")
                        start = get(answer, "answer_start", int, f"{here}.answers[{n}]")
                        references += [(text, start)] if text.strip() else []
                fault = "marked impossible but has answers" if impossible and references else ""
                yield _text(item.get("id")), question, context, references, fault
