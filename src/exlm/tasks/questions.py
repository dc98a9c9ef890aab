"""Questions on texts: SQuAD 1.1 and 2.0 as JSON or as the hub's Parquet, and tables of one's own."""

from pathlib import Path
from typing import Any

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.frames import check_columns, plain_suffix, read_frame, read_json

Problem = tuple[int, str, str]  # row, question or answer, what is wrong with it


def read_questions(path: Path | str, labelled: bool = True) -> tuple[pd.DataFrame, list[Problem]]:
    """Reads a file of questions, plain or compressed (.gz, .xz, .zst).

    Formats: SQuAD 1.1 or 2.0 (.json); CSV, TSV, JSONL or Parquet with columns `question`, `context` and, where
    labelled, `answer` and `answer_start` (optional: the first occurrence is taken without it), or `answers` as in the
    hub's copies of SQuAD ({text: [...], answer_start: [...]}); `id` is optional. An empty answer is none.

    Answers that do not stand where the file says are dropped. Questions are left out that lose all their answers that
    way, have no question or context, or are marked impossible and yet answered.

    Returns the questions that can be used, and the problems of all others and of the dropped answers. The columns of
    the questions are id (the row number where the file has none), question, context (unchanged: answers are cut out
    of it) and answers, a list of reference answers (text, first character in the context), empty where there is none.
    The index, as the row in messages and results, counts the file's questions from 0.

    Raises InputError if the file cannot be read, lacks something, has an id twice, or no question can be used.
    """
    path = Path(path)
    kept: dict[int, tuple[Any, ...]] = {}
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    for row, (record, malformed) in enumerate(_records(path, labelled)):
        try:
            references = _references(record) if labelled else []
        except (KeyError, TypeError, ValueError):
            how = "write them as in SQuAD 2.0, or as columns answer and answer_start"
            raise InputError(f"{path}: row {row} has no answers that are understood; {how}") from None
        name, question, context = (_text(record.get(key)) for key in ("id", "question", "context"))
        name, question = name.strip() or str(row), question.strip()
        if (first := row_of_id.setdefault(name, row)) != row:
            raise InputError(f"{path}: rows {first} and {row} have the same id {name!r}; make every id unique")
        starts = [(text, _first_character(context, text, start)) for text, start in references]
        answers = [(text, start) for text, start in starts if start >= 0]
        dropped = "the context does not have it where it should; answer dropped"
        problems += [(row, text, dropped) for text, start in starts if start < 0]
        faults = {
            malformed: bool(malformed),
            "marked impossible but has answers": record.get("is_impossible") is True and bool(references),
            "empty question": not question,
            "empty context": not context.strip(),
            "no answer is at its place": bool(references) and not answers,
        }
        if fault := next((fault for fault, found in faults.items() if found), None):
            problems.append((row, question, f"{fault}; question left out"))
        else:
            kept[row] = (name, question, context, answers)
    if not kept:
        reason = "first row {}, value {!r}: {}; correct it".format(*problems[0]) if problems else "it holds none"
        raise InputError(f"{path}: no question can be used, {reason}")
    questions = pd.DataFrame([*kept.values()], columns=["id", "question", "context", "answers"], dtype=object)
    return questions.set_axis(pd.Index([*kept], name="row")), problems


def _records(path: Path, labelled: bool) -> list[tuple[dict[Any, Any], str]]:
    """What the file has of every question, by SQuAD's names or its columns, and why a row is malformed, "" if not."""
    if plain_suffix(path) == ".json":
        try:
            paragraphs = [paragraph for article in read_json(path)["data"] for paragraph in article["paragraphs"]]
            return [(item | {"context": part["context"]}, "") for part in paragraphs for item in part["qas"]]
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not SQuAD JSON ({error!r}); compare it with SQuAD 2.0") from None
    frame = read_frame(path).rename(columns=lambda name: str(name).lower())
    answer = "answers" if "answers" in frame else "answer"
    check_columns(frame, path, "question", "context", answer if labelled else None)
    malformed = frame.attrs.get("malformed", {})
    return [(record, malformed.get(row, "")) for row, record in enumerate(frame.to_dict("records"))]


def _references(record: dict[str, Any]) -> list[tuple[str, Any]]:
    """The answers of a record with their starts, of which some may be missing."""
    if record.get("is_impossible") is True and record.get("answers") is None:
        return []
    if "answers" not in record:
        pairs = [(record["answer"], record.get("answer_start"))]
    elif isinstance(answers := record["answers"], dict):
        pairs = [*zip(answers["text"], answers["answer_start"], strict=True)]
    else:
        pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
    return [(_text(text) if _text(start) else _text(text).strip(), start) for text, start in pairs if _text(text)]


def _first_character(context: str, text: str, start: Any) -> int:
    """Where an answer begins; -1 if it does not stand where the file says."""
    if not _text(start):
        return context.find(text)
    try:
        first = float(start)  # a column with gaps may say 12.0
    except (TypeError, ValueError):
        return -1
    return int(first) if first.is_integer() and first >= 0 and context.startswith(text, int(first)) else -1


def _text(value: Any) -> str:
    """A cell as text, "" where it is blank or missing. Half a character, which JSON can hold, becomes its escape."""
    missing = value is None or value is pd.NA or (isinstance(value, float) and value != value)
    return "" if missing or not str(value).strip() else str(value).encode(errors="backslashreplace").decode()
