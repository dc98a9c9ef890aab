"""Extractive question answering: read questions, train any number of seeds on them, and answer
those of a file."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING

from exlm.data.columns import check_columns
from exlm.data.files import plain_suffix
from exlm.data.frames import read_frame, read_json, with_columns, write_frame
from exlm.errors import InputError
from exlm.storage.files import write_json
from exlm.storage.models import save_model
from exlm.tasks.answers import (
    MIN_STEP,
    Problem,
    Window,
    answer,
    make_windows,
    span_training_loss,
    vote,
    window_batches,
)
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.datasets import FILES, SQUAD, SQUAD_SIZES, data_folder, find_file, size_differences
from exlm.tasks.encoders import Models, load_encoder, load_encoder_tokenizer
from exlm.tasks.metrics import ANSWER_METRICS, score_answers, summarise_answers
from exlm.tasks.predictions import Predictions, PredictOptions, SeedModel
from exlm.tasks.supervised import train_best_epoch

DEFAULT_WINDOW = 384  # tokens
WITHOUT_HEADER = ("question", "context", "answer")  # the columns of a table that does not name them


def predict_answers(
    models: Sequence[SeedModel], input: str, options: PredictOptions
) -> Predictions:
    """Answers a file's questions with all models; `problem` says why a question cannot be
    answered."""
    if options.text_column or options.calibrated or options.distance:
        raise InputError(
            "question answering has no text column, calibrated probabilities or distances; leave them out"
        )
    task = models[0].task
    questions, problems = read_questions(input, labelled=False, header=options.header)
    runs = dict[str, pd.DataFrame]()
    for model in models:
        network, tokenizer, _ = model.loaded
        windows, too_long = make_windows(questions, tokenizer, task["max_length"], task["stride"])
        settings = task["max_answer"], task["precision"]
        runs[model.directory.name] = answer(network, questions, windows, tokenizer, *settings)
    if options.on_invalid == "error" and (found := problems + too_long):
        raise InputError(
            "{}: row {}, {!r}: {}; correct it".format(input, found[0][0] + 1, *found[0][1:])
        )
    table = vote(questions, [*runs.values()])
    noted = pd.DataFrame(problems + too_long, columns=["row", "question", "problem"]).set_index(
        "row"
    )
    whole = table.join(noted["problem"], how="outer")
    frame = whole.fillna(
        {"id": "", "question": noted["question"], "answer": "", "problem": ""}
    ).reset_index()
    if plain_suffix(input) != ".json":
        added = [name for name in frame if name not in ("row", "id", "question")]
        frame = with_columns(
            read_frame(input, options.header), {str(name): frame[name] for name in added}
        )
    counts = {
        "questions answered": len(frame) - len(noted),
        "marked in the column problem": len(noted),
    }
    with suppress(InputError):  # it has no answers
        questions, _ = read_questions(input, header=options.header)
    if not any(questions["answers"]):
        return Predictions(frame, counts)
    if len(runs) > 1:
        voted = table.assign(null_minus_best=np.where(table["answer"] == "", 1.0, -1.0))
        runs = {"ensemble": voted, **runs}
    scores = {
        name: partial(summarise_answers, score_answers(questions, run))
        for name, run in runs.items()
    }
    return Predictions(frame, counts, scores, np.arange(len(questions)))


class QuestionAnswering:
    """Questions and contexts, cut into windows, and how to train a model on them."""

    model_classes: ClassVar[Models] = MODEL_FOR_QUESTION_ANSWERING_MAPPING

    def __init__(
        self,
        model: str,
        task: TaskConfig,
        from_scratch: bool = False,
        start_from: str | None = None,
        device: str = "auto",
    ) -> None:
        self.device = device
        self.metric = task.metric or "f1"
        if self.metric not in ANSWER_METRICS:
            raise InputError(
                f"question answering has no metric {self.metric!r}; use {' or '.join(ANSWER_METRICS)}"
            )
        if task.train_rows is not None:
            raise InputError(
                "question answering always trains on all questions; leave out task.train_rows"
            )
        if not (task.valid or task.dataset == SQUAD):
            raise InputError(
                "question answering needs a file of its own for the valid part; name it with task.valid"
            )
        self.new_network = partial(
            load_encoder, model, self.model_classes, from_scratch=from_scratch, start_from=start_from
        )
        self.tokenizer, window = load_encoder_tokenizer(model, task.max_length or DEFAULT_WINDOW)
        if window < (least := task.stride + 2 * MIN_STEP):
            needed = (
                f"at least {least}, {2 * MIN_STEP} more than task.stride, to hold a question too"
            )
            raise InputError(
                f"a window (task.max_length) has {window} tokens; it must have {needed}"
            )
        self.config = replace(task, max_length=window, task_type="question_answering")
        files: dict[str, Any] = {"train": task.dataset, "valid": task.valid, "test": task.test}
        published = SQUAD_SIZES if task.dataset == SQUAD else {}
        if published:
            folder = data_folder(SQUAD, task.data_dir, "text/squad2")
            files = {split: find_file(folder, FILES[split]) for split in published}
        # questions and windows of each split
        self.splits: dict[str, tuple[pd.DataFrame, list[Window]]] = {}
        hashes, counts, problems = {}, [], []
        for split in filter(files.get, files):
            questions, unusable = read_questions(files[split])
            windows, unfit = make_windows(questions, self.tokenizer, window, task.stride)
            self.splits[split] = questions, windows
            problems += [(row + 1, *problem, split) for row, *problem in unusable + unfit]
            content = json.dumps([questions[name].tolist() for name in questions])
            hashes[split] = hashlib.sha256(content.encode()).hexdigest()
            counts.append(
                f"{len(questions)} {split} ({(~questions['answers'].map(bool)).sum()} without answer)"
            )
        self.summary = f"questions: {', '.join(counts)}; windows of {window} tokens"
        self.invalid_rows = pd.DataFrame(problems, columns=["row", "value", "reason", "part"])
        self.sizes = {split: len(questions) for split, (questions, _) in self.splits.items()}
        differences = size_differences(self.sizes, published, "questions", "SQuAD 2.0")
        self.data_settings = {
            "data_sha256": hashes,
            "metric": self.metric,
            "departures": differences,
        }

    @staticmethod
    def predict(models: Sequence[SeedModel], input: str, options: PredictOptions) -> Predictions:
        return predict_answers(models, input, options)

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed, keeps the epoch that is best on valid, and answers all parts but
        train."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        remembered = ("task_type", "max_length", "stride", "max_answer")
        task = {name: getattr(self.config, name) for name in remembered} | {
            "precision": hyper.precision
        }
        network, tokenizer = (
            self.new_network(hyper, {"num_labels": 2, "task": task}),
            self.tokenizer,
        )

        def found(split: str) -> tuple[pd.DataFrame, dict[str, float]]:
            questions, windows = self.splits[split]
            answers = answer(
                network, questions, windows, tokenizer, self.config.max_answer, hyper.precision
            )
            return answers, summarise_answers(score_answers(questions, answers))

        batches = window_batches(self.splits["train"][1], tokenizer, hyper.batch_size, seed)
        best_epoch = train_best_epoch(
            network,
            span_training_loss,
            batches,
            run_dir,
            hyper,
            lambda _: found("valid")[1],
            self.metric,
            self.device,
        )
        save_model(run_dir, network, tokenizer)
        scores = {}
        for split, (questions, _) in list(self.splits.items())[1:]:  # without train
            answers, scores[split] = found(split)
            table = vote(questions, [answers])
            write_frame(table.reset_index(), run_dir / f"predictions-{split}.csv")
            write_json(
                run_dir / f"predictions-{split}.json",
                dict(zip(table["id"], table["answer"], strict=True)),
            )
        return {"best_epoch": best_epoch, "split": self.sizes, "scores": scores}


def read_questions(
    path: Path | str, labelled: bool = True, header: bool = True
) -> tuple[pd.DataFrame, list[Problem]]:
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
    kept: dict[int, tuple[Any, ...]] = {}
    problems: list[Problem] = []
    row_of_id: dict[str, int] = {}
    for row, (record, malformed) in enumerate(_records(path, labelled, header)):
        name, question, context = (_text(record.get(key)) for key in ("id", "question", "context"))
        name, question = name.strip() or str(row), question.strip()
        try:
            references = _references(record, context) if labelled else []
        except (KeyError, TypeError, ValueError):
            how = "write them as in SQuAD 2.0, or as columns answer and answer_start"
            raise InputError(
                f"{path}: row {row + 1} has no answers that are understood; {how}"
            ) from None
        if (first := row_of_id.setdefault(name, row)) != row:
            raise InputError(
                f"{path}: rows {first + 1} and {row + 1} have the same id {name!r}; make every id unique"
            )
        answers = [(text, start) for text, start in references if start >= 0]
        dropped = "the context does not have it where it should; answer dropped"
        problems += [(row, text, dropped) for text, start in references if start < 0]
        faults = {
            malformed: bool(malformed),
            "marked impossible but has answers": record.get("is_impossible") is True
            and bool(references),
            "empty question": not question,
            "empty context": not context.strip(),
            "no answer is at its place": bool(references) and not answers,
        }
        if fault := next((fault for fault, found in faults.items() if found), None):
            problems.append((row, question, f"{fault}; question left out"))
        else:
            kept[row] = (name, question, context, answers)
    if not kept:
        reasons = [
            f"first row {row + 1}, value {value!r}: {fault}; correct it"
            for row, value, fault in problems
        ]
        raise InputError(f"{path}: no question can be used, {[*reasons, 'it holds none'][0]}")
    questions = pd.DataFrame(
        [*kept.values()], columns=["id", "question", "context", "answers"], dtype=object
    )
    return questions.set_axis(pd.Index([*kept], name="row")), problems


def _records(path: Path | str, labelled: bool, header: bool) -> list[tuple[dict[Any, Any], str]]:
    """For every question, its fields (by SQuAD's names or the file's columns) and why its row is
    malformed, or ""."""
    if plain_suffix(path) == ".json":
        try:
            paragraphs = [
                paragraph
                for article in read_json(path)["data"]
                for paragraph in article["paragraphs"]
            ]
            return [
                (item | {"context": part["context"]}, "")
                for part in paragraphs
                for item in part["qas"]
            ]
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not SQuAD JSON ({error!r}); compare it with SQuAD 2.0"
            ) from None
    usual = (
        {}
        if header
        else dict(zip(("column 1", "column 2", "column 3"), WITHOUT_HEADER, strict=True))
    )
    frame = read_frame(path, header).rename(columns=lambda name: usual.get(name, str(name).lower()))
    answer = "answers" if "answers" in frame else "answer"
    check_columns(frame, path, "question", "context", answer if labelled else None)
    malformed = frame.attrs.get("malformed", {})
    return [(record, malformed.get(row, "")) for row, record in enumerate(frame.to_dict("records"))]


def _references(record: dict[str, Any], context: str) -> list[tuple[str, int]]:
    """The answers of a record and their first characters in the context; -1 if it does not have one
    where it should."""
    answers = record.get("answers")
    if answers is None and record.get("is_impossible") is not True:
        answers = {"text": [record["answer"]], "answer_start": [record.get("answer_start")]}
    if isinstance(answers, dict):
        answers = [
            dict(zip(answers, values, strict=True))
            for values in zip(*answers.values(), strict=True)
        ]
    found = []
    for entry in [] if answers is None else answers:
        text, start = _text(entry["text"]), pd.to_numeric(entry["answer_start"], errors="coerce")
        if pd.isna(start):
            found.append((text.strip(), context.find(text.strip())))
        else:
            there = 0 <= start < len(context) and context.startswith(text, int(start))
            found.append((text, int(start) if there else -1))
    return [(text, start) for text, start in found if text]


def _text(value: Any) -> str:
    """A cell as text, "" where blank or missing. Half a character (a surrogate, which JSON can
    hold) is escaped."""
    missing = value is None or value is pd.NA or (isinstance(value, float) and value != value)
    return (
        ""
        if missing or not str(value).strip()
        else str(value).encode(errors="backslashreplace").decode()
    )
