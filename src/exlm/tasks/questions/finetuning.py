"""Encoders fine-tuned to find the answers to questions in their contexts: the questions are read
once, then any number of seeds are trained."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING

from exlm.data.frames import write_frame
from exlm.errors import InputError
from exlm.storage.files import write_json
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, ModelClasses, load_encoder_tokenizer
from exlm.tasks.encoders.results import NumbersOfParts, SeedScores
from exlm.tasks.encoders.saved_task import SCORING, SavedTask
from exlm.tasks.encoders.supervised import train_best_epoch
from exlm.tasks.labels.scores import RowScorer, quick_interval
from exlm.tasks.questions.answers import (
    ANSWER_METRICS,
    answer,
    score_answers,
    span_training_loss,
    summarise_answers,
    vote,
)
from exlm.tasks.questions.predictor import QuestionPredictor, check_settings
from exlm.tasks.questions.questions import (
    MIN_STEP,
    QuestionProblem,
    Window,
    make_windows,
    read_questions,
    rows_with_windows,
    window_batches,
)
from exlm.tasks.rows.datasets import SQUAD, file_hashes, task_files
from exlm.tasks.rows.predictions import PredictorMaker

DEFAULT_WINDOW = 384  # tokens
# All other settings of `TaskConfig` are for tables.
TASK_SETTINGS = {"dataset", "valid", "test", "data_dir", "task_type", "metric"}
TASK_SETTINGS |= {"on_invalid", "max_length", "stride", "max_answer"}


class QuestionPart(NamedTuple):
    """The questions of a file, as a model reads them."""

    questions: pd.DataFrame  # as `read_questions` gives them
    windows: list[Window]
    rows: np.ndarray  # the positions of questions that have windows, which alone are scored
    problems: list[QuestionProblem]  # of questions and answers that cannot be used


class QuestionAnswering:
    """Fine-tunes encoders for questions and contexts, cut into windows (a `Finetuning`)."""

    model_classes: ClassVar[ModelClasses] = MODEL_FOR_QUESTION_ANSWERING_MAPPING
    predictor: ClassVar[PredictorMaker] = QuestionPredictor

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self.metric = config.metric or "f1"
        _check(config, self.metric)
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_WINDOW
        )
        _check_window(self.max_length, config.stride)
        self.config = replace(config, max_length=self.max_length, task_type="question_answering")
        self.parts = {name: self._read_part(path) for name, path in task_files(config).items()}
        self.file_sha256 = file_hashes(self.config)
        self.sizes = {name: len(part.questions) for name, part in self.parts.items()}
        counts = []
        for name, part in self.parts.items():
            without_answer = sum(not answers for answers in part.questions["answers"])
            counts.append(f"{len(part.questions)} {name} ({without_answer} without answer)")
        self.summary = f"questions: {', '.join(counts)}; windows of {self.max_length} tokens"
        self.reported_rows = _reported_rows(self.parts)
        self.data_settings = {
            "data_sha256": {
                name: _content_hash(part.questions) for name, part in self.parts.items()
            },
            "metric": self.metric,
        }

    def _read_part(self, path: str | Path) -> QuestionPart:
        """The questions of a file, cut into windows. InputError if none fits into one."""
        questions, unusable = read_questions(path)
        windows, unfit = make_windows(
            questions, self.tokenizer, self.max_length, self.config.stride
        )
        if not windows:
            raise InputError(
                f"{path}: no question leaves room for its context in a window of "
                f"{self.max_length} tokens; raise task.max_length"
            )
        rows = rows_with_windows(questions, windows)
        return QuestionPart(questions, windows, rows, unusable + unfit)

    def split_of(self, seed: int) -> Mapping[str, object]:
        """The same parts for all seeds."""
        return self.parts

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> SeedScores:
        """Trains with one seed, keeps the epoch that is best on valid, and answers all parts but
        train."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        saved_task = SavedTask(
            task_type="question_answering",
            max_length=self.max_length,
            stride=self.config.stride,
            max_answer=self.config.max_answer,
        )
        settings = {"num_labels": 2, "task": saved_task.to_json()}
        network = self.encoder.load(self.model_classes, hyper, settings)

        def validate(network: nn.Module) -> dict[str, float]:
            _, score = self._answer(network, "valid")
            return score(self.parts["valid"].rows)

        train_windows = self.parts["train"].windows
        best_epoch = train_best_epoch(
            network=network,
            loss=span_training_loss,
            batches=window_batches(train_windows, self.tokenizer, hyper.batch_size, seed),
            run_dir=run_dir,
            hyper=hyper,
            score=validate,
            metric=self.metric,
            device=self.device,
        )
        save_model(run_dir, network, self.tokenizer)
        return {
            "best_epoch": best_epoch,
            "weight_files": self.encoder.weight_files(),
            "split": self.sizes,
            "file_sha256": self.file_sha256,
            **self._write_answers(run_dir, network),
        }

    def _answer(self, network: nn.Module, name: str) -> tuple[pd.DataFrame, RowScorer]:
        """The answers of a network to the questions of a part, and how they are scored."""
        part = self.parts[name]
        answers = answer(
            network,
            part.questions,
            part.windows,
            self.tokenizer,
            max_answer=self.config.max_answer,
            precision=SCORING,
        )
        return answers, partial(summarise_answers, score_answers(part.questions, answers))

    def _write_answers(self, run_dir: Path, network: nn.Module) -> SeedScores:
        """Writes the answers to all parts but train; returns their scores and counts, and the
        interval of test, or of valid if there is no test."""
        scores: NumbersOfParts = {}
        counts: NumbersOfParts = {}
        interval: NumbersOfParts = {}
        rows_sha256 = {}
        main_part = "test" if "test" in self.parts else "valid"
        for name, part in self.parts.items():
            if name == "train":
                continue
            answers, score = self._answer(network, name)
            scores[name] = score(part.rows)
            counts[name] = {"rows": len(part.rows)}
            rows_sha256[name] = _content_hash(part.questions.iloc[part.rows])
            if name == main_part:
                interval[name] = quick_interval(score, part.rows, self.metric, label_count=1)
            table = vote(part.questions, [answers])
            write_frame(table.reset_index(), run_dir / f"predictions-{name}.csv")
            answer_of_id = dict(zip(table["id"], table["answer"], strict=True))
            write_json(run_dir / f"predictions-{name}.json", answer_of_id)
        return {
            "scores": scores,
            "counts": counts,
            "rows_sha256": rows_sha256,
            "interval": interval,
        }


def _reported_rows(parts: dict[str, QuestionPart]) -> pd.DataFrame:
    """All questions and answers with a problem, as `Task.reported_rows` has them."""
    reported = []
    for name, part in parts.items():
        rows_in_use = set(part.questions.index[part.rows])
        for row, value, problem in part.problems:
            action = "kept" if row in rows_in_use else "left out"
            reported.append((row + 1, value, problem, name, action))
    return pd.DataFrame(reported, columns=["row", "value", "reason", "part", "action"])


def _content_hash(questions: pd.DataFrame) -> str:
    """SHA-256 of the questions, contexts and answers."""
    content = json.dumps([questions[name].tolist() for name in questions])
    return hashlib.sha256(content.encode()).hexdigest()


def _check(config: TaskConfig, metric: str) -> None:
    """InputError for settings that question answering does not have, or that are missing."""
    if metric not in ANSWER_METRICS:
        raise InputError(
            f"question answering has no metric {metric!r}; use {' or '.join(ANSWER_METRICS)}"
        )
    check_settings(config, TASK_SETTINGS, "task.")
    if not (config.valid or config.dataset == SQUAD):
        raise InputError(
            "question answering (as a .json file of SQuAD is read) needs a file of its own for the "
            "valid part; name it with task.valid, or save a table as .jsonl"
        )


def _check_window(window: int, stride: int) -> None:
    """InputError if a window of so many tokens is too short for a question and its context."""
    least = stride + 2 * MIN_STEP
    if window < least:
        raise InputError(
            f"a window (task.max_length) has {window} tokens; it must have at least {least}, "
            f"{2 * MIN_STEP} more than task.stride, to hold a question too"
        )
