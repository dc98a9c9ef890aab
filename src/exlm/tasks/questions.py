"""Reads questions, their contexts and answers from SQuAD JSON or tables."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from exlm.data.columns import check_columns
from exlm.data.files import plain_suffix
from exlm.data.frames import read_file, read_json
from exlm.data.tabular import TableOptions
from exlm.errors import InputError
from exlm.tasks.column_labels import note_unscored

# the columns of a table that does not name them
WITHOUT_HEADER = {"column 1": "question", "column 2": "context", "column 3": "answer"}


class QuestionProblem(NamedTuple):
    """Why a question or one of its answers cannot be used."""

    row: int
    value: str  # the question or the answer
    problem: str


def read_questions(
    path: Path | str, labelled: bool = True, header: bool = True
) -> tuple[pd.DataFrame, list[QuestionProblem]]:
    """Reads questions from SQuAD JSON (1.1 or 2.0), or a table with the columns `question` and
    `context`.

    A labelled table also has `answer`, or `answers` as in the hub's copies of SQuAD ({text: [...],
    answer_start: [...]}). Without a header line the columns are question, context and answer. `id`
    and `answer_start` are optional. Without `answer_start`, the first occurrence counts. "" is no
    answer. An answer is dropped if the context does not have it where the file says. A question is
    left out if it loses all its answers that way, if it is empty or has no context, or if it is
    marked impossible but has answers.

    Returns the questions that can be used, indexed by their row from 0, and the problems of all
    others and of dropped answers. Questions have id (the row where the file has none), question,
    context and answers: (text, first character in the context). InputError if the file cannot be
    read, has an id twice, or no question that can be used."""
    usable: dict[int, tuple[Any, ...]] = {}
    problems: list[QuestionProblem] = []
    row_of_id: dict[str, int] = {}
    for row, (record, problem) in enumerate(_records(path, labelled, header)):
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
        if references and record.get("is_impossible") is True:
            problem = problem or "marked impossible but has answers"
        elif not question:
            problem = problem or "empty question"
        elif not context.strip():
            problem = problem or "empty context"
        elif references and not answers:
            problem = problem or "no answer is at its place"
        if problem:
            problems.append(QuestionProblem(row, question, f"{problem}; question left out"))
        else:
            usable[row] = (question_id, question, context, answers)
    if not usable:
        reason = "it holds none"
        if problems:
            row, value, problem = problems[0]
            reason = f"first row {row + 1}, value {str(value)[:80]!r}: {problem}; correct it"
        raise InputError(f"{path}: no question can be used, {reason}")
    columns = ["id", "question", "context", "answers"]
    questions = pd.DataFrame([*usable.values()], columns=columns, dtype=object)
    return questions.set_axis(pd.Index([*usable], name="row")), problems


def read_answered_questions(path: Path | str, header: bool = True) -> pd.DataFrame | None:
    """The questions of a labelled file, as `read_questions` gives them; a note counts those whose
    answers cannot be used. None if the file has no answers, or none that are understood."""
    try:
        questions, problems = read_questions(path, header=header)
    except InputError:
        return None
    if not any(questions["answers"]):
        return None
    unscored = {row: problem for row, _, problem in problems if row not in questions.index}
    rows = pd.RangeIndex(max([*questions.index, *unscored]) + 1)
    note_unscored(unscored, rows, path)
    return questions


def _records(path: Path | str, labelled: bool, header: bool) -> list[tuple[dict[Any, Any], str]]:
    """For every question, its fields (by SQuAD's names or the file's columns) and why its row is
    malformed, or ""."""
    if plain_suffix(path) == ".json":
        return [(record, "") for record in _squad_records(path)]
    rows = read_file(path, TableOptions(header))
    names = {} if header else WITHOUT_HEADER
    frame = rows.frame.rename(columns=lambda name: names.get(name, str(name).lower()))
    answer = "answers" if "answers" in frame else "answer"
    check_columns(frame, path, "question", "context", answer if labelled else None)
    records = frame.to_dict("records")
    return [(record, rows.faults.get(row, "")) for row, record in enumerate(records)]


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
    """The answers of a record and their first characters in the context; -1 if it does not have one
    where it should. KeyError, TypeError or ValueError for answers of another form."""
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
    missing = value is None or value is pd.NA or (isinstance(value, float) and value != value)
    text = "" if missing else str(value)
    return text.encode(errors="backslashreplace").decode() if text.strip() else ""
