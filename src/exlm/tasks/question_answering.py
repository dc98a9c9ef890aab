"""Extractive question answering (SQuAD 2.0): load the questions once, then train any number of seeds; answer files."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel

from exlm.errors import InputError
from exlm.pretrained import save_model
from exlm.storage import write_json
from exlm.tasks.config import SQUAD, FinetuneConfig, TaskConfig
from exlm.tasks.datasets import data_folder
from exlm.tasks.encoders import load_encoder, load_finetuned, load_tokenizer_of, take_encoder
from exlm.tasks.frames import listed, plain_suffix, read_frame, write_frame
from exlm.tasks.spans import WindowBatches, answer, qa_loss
from exlm.tasks.squad import Answer, Questions, read_questions
from exlm.tasks.squad_metrics import evaluate_answers
from exlm.tasks.squad_windows import QAConfig, Windows, make_windows
from exlm.tasks.supervised import train_selected, with_columns
from exlm.train import distributed

SIZES = {"train": 130319, "valid": 11873}  # questions of SQuAD 2.0
DEFAULT_WINDOW = 384
METRICS = ("f1", "em", "best_f1", "best_em")
QuestionPart = tuple[Questions, Windows]


def is_question_answering(task: TaskConfig) -> bool:
    """Whether a task is one of questions and contexts."""
    named = task.dataset == SQUAD or plain_suffix(Path(task.dataset)) == ".json"
    return task.task_type == "question_answering" or (task.task_type is None and named)


class QuestionAnswering:
    """Questions and contexts, cut into windows, and how to train a model on them. Attributes as in `Classification`."""

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        self.metric = task.metric or "f1"
        if self.metric not in METRICS:
            raise InputError(f"question answering has no metric {self.metric!r}; use one of {', '.join(METRICS)}")
        if task.train_rows is not None:
            raise InputError("question answering always trains on all questions; leave out task.train_rows")
        self.model, self.from_scratch, self.start_from = model, from_scratch, start_from
        self.tokenizer, longest = load_tokenizer_of(model)
        window = min(task.max_length or DEFAULT_WINDOW, longest or task.max_length or DEFAULT_WINDOW)
        self.task = replace(task, max_length=window, task_type="question_answering")
        self.config = QAConfig(window, task.stride, task.max_answer)
        questions = {part: read_questions(path) for part, path in _files(task).items()}
        self.parts = {part: (q, make_windows(q, self.tokenizer, self.config)) for part, q in questions.items()}
        self.departures = _departures(questions) if task.dataset == SQUAD else []
        hashes = {part: _content_hash(q) for part, q in questions.items()}
        self.facts = {"data_sha256": hashes, "metric": self.metric, "departures": self.departures}
        self.invalid = pd.concat(
            problems.assign(part=part) for part, (q, w) in self.parts.items() for problems in (q.problems, w.problems)
        )

    def announce(self) -> None:
        """Says what was understood of the files, and which questions cannot be used."""
        counts = [f"{len(q.ids)} {part} ({sum(q.impossible)} without answer)" for part, (q, _) in self.parts.items()]
        print(f"{self.task.dataset}: questions: {', '.join(counts)}; windows of {self.config.window} tokens")
        for departure in self.departures:
            print(f"note: {departure}; scores do not compare with published ones")
        if len(self.invalid):
            rows = self.invalid.head(3).itertuples()
            examples = "; ".join(f"{row.part} row {row.row}, {str(row.value)[:60]!r}: {row.reason}" for row in rows)
            if self.task.on_invalid == "error":
                raise InputError(f"{self.task.dataset}: {examples}; correct it, or set task.on_invalid to skip")
            print(f"{len(self.invalid)} questions or answers are reported in invalid_rows.csv, the first: {examples}")

    def train_seed(self, place: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains a seed, keeps the epoch that is best on valid; returns the scores of the parts."""
        assert hyper.batch_size  # filled in by `resolve`
        torch.manual_seed(seed)
        facts = {"task_type": "question_answering", "max_length": self.config.window}
        facts |= {"stride": self.config.stride, "max_answer": self.config.max_answer, "precision": hyper.precision}
        network, _ = load_encoder(self.model, "question_answering", hyper, {"task": facts}, self.from_scratch)
        if self.start_from:
            take_encoder(network, self.start_from)
        batches = WindowBatches(self.parts["train"][1], self.tokenizer, hyper.batch_size, seed)
        score = partial(self._score, part="valid", precision=hyper.precision)
        best_epoch = train_selected(network, qa_loss, batches, place, hyper, seed, score, self.metric)
        save_model(place, network.eval(), self.tokenizer)
        wanted = [part for part in self.parts if part != "train"]
        scores = {part: self._score(network, part, hyper.precision, place) for part in wanted}
        sizes = {part: len(questions.ids) for part, (questions, _) in self.parts.items()}
        return {"best_epoch": best_epoch, "split": sizes, "scores": scores}

    def _score(self, model: PreTrainedModel, part: str, precision: str, place: Path | None = None) -> dict[str, float]:
        """Metrics of a part; the answers go to `place`."""
        questions, windows = self.parts[part]
        answers = answer(model, questions, windows, self.tokenizer, self.config, precision=precision)
        if place:
            write_frame(_answer_table(questions, [answers]), place / f"predictions-{part}.csv")
            texts = {id: a.text if a.null_minus_best <= 0 else "" for id, a in zip(questions.ids, answers, strict=True)}
            write_json(place / f"predictions-{part}.json", texts)
        return evaluate_answers(questions, answers)


def answer_file(places: Sequence[str], input: str, target: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """Answers the questions of a JSON or table file; several models vote by their mean probability.

    Adds to a table (for JSON: to row, id and question) the columns answer ("" for no answer), probability,
    null_minus_best (mean), and problem for questions that cannot be answered. No row is lost.
    """
    config = QAConfig(facts["max_length"], facts["stride"], facts["max_answer"])
    questions = read_questions(input, labelled=False)
    runs: list[list[Answer]] = []
    problems = [questions.problems]
    for place in places:
        network, tokenizer = load_finetuned(place, "question_answering")
        distributed.place(network)
        windows = make_windows(questions, tokenizer, config)
        problems += [windows.problems] if place == places[0] else []
        runs.append(answer(network, questions, windows, tokenizer, config, precision=facts["precision"]))
    whole = _with_problems(_answer_table(questions, runs), pd.concat(problems))
    if plain_suffix(Path(input)) == ".json":
        frame = whole
    else:
        added = whole.set_index("row")[["answer", "probability", "null_minus_best", "problem"]]
        frame = with_columns(read_frame(input), {str(name): added[name].to_numpy() for name in added})
    write_frame(frame, target)
    unusable = int((whole["problem"] != "").sum())
    print(f"{len(frame) - unusable} questions answered, {unusable} marked in the column problem: {target}")
    _print_scores(input, questions, runs)
    return frame


def _answer_table(questions: Questions, runs: list[list[Answer]]) -> pd.DataFrame:
    """One row per question; the answer is the text with the highest mean probability over the runs."""
    votes = [_vote([run[i] for run in runs]) for i in range(len(questions.ids))]
    return pd.DataFrame(
        {
            "row": questions.rows,
            "id": questions.ids,
            "question": questions.questions,
            "answer": [text for text, _ in votes],
            "probability": [probability for _, probability in votes],
            "null_minus_best": [np.mean([run[i].null_minus_best for run in runs]) for i in range(len(votes))],
        }
    )


def _vote(answers: list[Answer]) -> tuple[str, float]:
    if len(answers) == 1:  # threshold 0 on the scores, as the metrics have it
        text = answers[0].text if answers[0].null_minus_best <= 0 else ""
        return text, dict(answers[0].n_best).get(text, 0.0)
    shares: dict[str, float] = {}
    for one in answers:
        for text, probability in one.n_best:
            shares[text] = shares.get(text, 0.0) + probability / len(answers)
    return max(shares.items(), key=lambda item: item[1])


def _with_problems(frame: pd.DataFrame, problems: pd.DataFrame) -> pd.DataFrame:
    """Adds the questions that were left out, and why."""
    reasons = problems.groupby("row")["reason"].first()
    lost = problems[~problems["row"].isin(frame["row"])].drop_duplicates("row")
    rows = pd.DataFrame({"row": lost["row"], "id": "", "question": lost["value"], "answer": ""})
    whole = pd.concat([frame, rows]).sort_values("row", kind="stable", ignore_index=True)
    return whole.assign(problem=whole["row"].map(reasons).fillna(""))


def _print_scores(input: str, questions: Questions, runs: list[list[Answer]]) -> None:
    """The metrics of the questions whose reference answers can be used, where the file has any."""
    try:
        labelled = read_questions(input)
    except InputError:
        return
    place = {id: i for i, id in enumerate(questions.ids)}
    if not labelled.answers or not any(labelled.answers):
        return
    for number, run in enumerate(runs):
        scores = evaluate_answers(labelled, [run[place[id]] for id in labelled.ids])
        print(f"model {number}: " + "  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    if len(runs) > 1:
        texts = [_vote([run[place[id]] for run in runs])[0] for id in labelled.ids]
        scores = evaluate_answers(labelled, [Answer(text, 0.0, -1.0 if text else 1.0, []) for text in texts])
        print("all together: em {em:.2f}  f1 {f1:.2f}".format(**scores))


def _files(task: TaskConfig) -> dict[str, Path]:
    if task.dataset != SQUAD:
        if not task.valid:
            raise InputError("question answering needs a file of its own for the valid part; name it with task.valid")
        files = {"train": task.dataset, "valid": task.valid, "test": task.test}
        return {part: Path(name) for part, name in files.items() if name}
    root = data_folder(SQUAD, task.data_dir, "text/squad2")
    return {"train": _find(root, "train"), "valid": _find(root, "dev")}


def _find(root: Path, stem: str) -> Path:
    files = sorted(root.glob(f"{stem}*.json*")) if root.is_dir() else []
    if len(files) != 1:
        there = f"it has {listed(file.name for file in files)}" if files else "there is none"
        raise InputError(
            f"{root.resolve()} must have one file {stem}*.json ({there}); put train-v2.0.json and dev-v2.0.json there, "
            "or name their folder with task.data_dir"
        )
    return files[0]


def _departures(questions: dict[str, Questions]) -> list[str]:
    return [
        f"{part} has {len(q.ids):,} questions, SQuAD 2.0 has {SIZES[part]:,}"
        for part, q in questions.items()
        if abs(len(q.ids) - SIZES[part]) > SIZES[part] // 1000
    ]


def _content_hash(questions: Questions) -> str:
    content = [questions.ids, questions.questions, questions.contexts, questions.answers]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
