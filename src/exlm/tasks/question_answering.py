"""Extractive question answering (SQuAD 2.0): load the questions once, then train any number of seeds; answer files."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from exlm.errors import InputError
from exlm.pretrained import save_model
from exlm.storage import write_json
from exlm.tasks.config import SQUAD, FinetuneConfig, TaskConfig
from exlm.tasks.datasets import data_folder
from exlm.tasks.encoders import load_encoder, load_encoder_tokenizer, load_finetuned
from exlm.tasks.frames import listed, plain_suffix, read_frame, write_frame
from exlm.tasks.rows import with_columns
from exlm.tasks.spans import answer, span_training_loss, window_batches
from exlm.tasks.squad import Answer, Questions, read_questions
from exlm.tasks.squad_metrics import evaluate_answers
from exlm.tasks.squad_windows import QAConfig, make_windows
from exlm.tasks.supervised import train_best_epoch
from exlm.train import distributed

SIZES = {"train": 130319, "valid": 11873}  # questions of SQuAD 2.0
DEFAULT_WINDOW = 384
METRICS = ("f1", "em", "best_f1", "best_em")


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
        self.tokenizer, longest = load_encoder_tokenizer(model)
        wanted = task.max_length or DEFAULT_WINDOW
        self.config = QAConfig(min(wanted, longest or wanted), task.stride, task.max_answer)
        self.task = replace(task, max_length=self.config.window, task_type="question_answering")
        self.questions = {split: read_questions(path) for split, path in _files(task).items()}
        made = {split: make_windows(q, self.tokenizer, self.config) for split, q in self.questions.items()}
        self.windows = {split: windows for split, (windows, _) in made.items()}
        self.data_settings = {
            "data_sha256": {split: _content_hash(questions) for split, questions in self.questions.items()},
            "metric": self.metric,
            "departures": _differences(self.questions) if task.dataset == SQUAD else [],
        }
        problems = [(split, table) for split in made for table in (self.questions[split].problems, made[split][1])]
        self.invalid = pd.concat([table.assign(part=split) for split, table in problems])

    @property
    def summary(self) -> str:
        """What was understood of the files."""
        counts = [
            f"{len(questions.ids)} {split} ({sum(questions.impossible)} without answer)"
            for split, questions in self.questions.items()
        ]
        return f"questions: {', '.join(counts)}; windows of {self.config.window} tokens"

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains a seed, keeps the epoch that is best on valid, and returns the scores of the other splits.

        Their answers are written as a table and as JSON in the form of the official SQuAD script.
        """
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        task = {
            "task_type": "question_answering",
            "max_length": self.config.window,
            "stride": self.config.stride,
            "max_answer": self.config.max_answer,
            "precision": hyper.precision,
        }

        def answers(model: nn.Module, split: str) -> list[Answer]:
            questions, windows = self.questions[split], self.windows[split]
            return answer(model, questions, windows, self.tokenizer, self.config, precision=hyper.precision)

        def score(model: nn.Module) -> dict[str, float]:
            return evaluate_answers(self.questions["valid"], answers(model, "valid"))

        start = (self.from_scratch, self.start_from)
        network = load_encoder(self.model, "question_answering", hyper, {"task": task}, *start)
        batches = window_batches(self.windows["train"], self.tokenizer, hyper.batch_size, seed)
        best_epoch = train_best_epoch(network, span_training_loss, batches, run_dir, hyper, seed, score, self.metric)
        save_model(run_dir, network.eval(), self.tokenizer)
        scores = {}
        for split, questions in self.questions.items():
            if split != "train":
                found = answers(network, split)
                table = _answer_table(questions, [found])
                write_frame(table, run_dir / f"predictions-{split}.csv")
                write_json(run_dir / f"predictions-{split}.json", dict(zip(table["id"], table["answer"], strict=True)))
                scores[split] = evaluate_answers(questions, found)
        sizes = {split: len(questions.ids) for split, questions in self.questions.items()}
        return {"best_epoch": best_epoch, "split": sizes, "scores": scores}


def answer_file(run_dirs: Sequence[str], input: str, target: Path, task: dict[str, Any]) -> pd.DataFrame:
    """Answers the questions of a JSON or table file; several models vote by their mean probability.

    Adds to a table (for JSON: to row, id and question) the columns answer ("" for no answer), probability,
    null_minus_best (mean), and problem for questions that cannot be answered. No row is lost.

    Args:
        run_dirs: directories of fine-tuned models.
        input: the file.
        target: file to write.
        task: what the models remember of their task (`saved_task`).
    """
    config = QAConfig(task["max_length"], task["stride"], task["max_answer"])
    questions = read_questions(input, labelled=False)
    runs: list[list[Answer]] = []
    for run_dir in run_dirs:
        network, tokenizer = load_finetuned(run_dir, "question_answering")
        distributed.to_device(network)
        windows, problems = make_windows(questions, tokenizer, config)
        runs.append(answer(network, questions, windows, tokenizer, config, precision=task["precision"]))
    whole = _with_problems(_answer_table(questions, runs), pd.concat([questions.problems, problems]))
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
    answers = [*zip(*runs, strict=True)]
    votes = [_vote(of_question) for of_question in answers]
    return pd.DataFrame(
        {
            "row": questions.rows,
            "id": questions.ids,
            "question": questions.questions,
            "answer": [text for text, _ in votes],
            "probability": [probability for _, probability in votes],
            "null_minus_best": [np.mean([a.null_minus_best for a in of_question]) for of_question in answers],
        }
    )


def _vote(answers: Sequence[Answer]) -> tuple[str, float]:
    """The text with the highest mean probability over several models' answers to a question, and that probability."""
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
    if not labelled.answers or not any(labelled.answers):
        return
    index = {name: i for i, name in enumerate(questions.ids)}
    runs = [[run[index[name]] for name in labelled.ids] for run in runs]
    for number, run in enumerate(runs):
        scores = evaluate_answers(labelled, run)
        print(f"model {number}: " + "  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    if len(runs) > 1:
        texts = [_vote(answers)[0] for answers in zip(*runs, strict=True)]
        scores = evaluate_answers(labelled, [Answer(text, 0.0, -1.0 if text else 1.0, []) for text in texts])
        print("all together: em {em:.2f}  f1 {f1:.2f}".format(**scores))


def _files(task: TaskConfig) -> dict[str, Path]:
    """The file of every split."""
    if task.dataset != SQUAD:
        if not task.valid:
            raise InputError("question answering needs a file of its own for the valid part; name it with task.valid")
        named = {"train": task.dataset, "valid": task.valid, "test": task.test}
        return {split: Path(name) for split, name in named.items() if name}
    root = data_folder(SQUAD, task.data_dir, "text/squad2")
    files = {}
    for split, stem in (("train", "train"), ("valid", "dev")):
        found = sorted(root.glob(f"{stem}*.json*")) if root.is_dir() else []
        if len(found) != 1:
            there = f"it has {listed(file.name for file in found)}" if found else "there is none"
            raise InputError(
                f"{root.resolve()} must have one file {stem}*.json ({there}); put train-v2.0.json and dev-v2.0.json "
                "there, or name their folder with task.data_dir or the environment variable EXLM_DATA"
            )
        files[split] = found[0]
    return files


def _differences(questions: dict[str, Questions]) -> list[str]:
    """How the files differ in size from SQuAD 2.0; a thousandth more or less is let pass."""
    return [
        f"{split} has {len(found.ids):,} questions, SQuAD 2.0 has {SIZES[split]:,}"
        for split, found in questions.items()
        if abs(len(found.ids) - SIZES[split]) > SIZES[split] // 1000
    ]


def _content_hash(questions: Questions) -> str:
    content = [questions.ids, questions.questions, questions.contexts, questions.answers]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
