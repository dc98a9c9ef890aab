"""Encoders fine-tuned to answer questions, whose contexts are cut into windows: the files are read
once, then any number of seeds are trained."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.frames import write_frame
from exlm.errors import InputError
from exlm.ops.loss import LossSum
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, load_encoder_tokenizer
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.encoders.supervised import ShuffledBatches, train_with_seed
from exlm.tasks.labels.scores import RowScorer, quick_interval
from exlm.tasks.questions.answers import (
    answer,
    score_answers,
    span_training_loss,
    summarise_answers,
    vote,
)
from exlm.tasks.questions.questions import QuestionFile, read_windows, window_batches
from exlm.tasks.questions.settings import DEFAULT_WINDOW, check_task
from exlm.tasks.results import RunResult
from exlm.tasks.rows.datasets import SQUAD, SQUAD_SIZES, file_hashes, size_departures, task_files


def read_question_task(
    encoder: EncoderSource, config: TaskConfig, device: str = "auto"
) -> "QuestionTask":
    """Reads the questions of a config for an encoder that is trained on a device. InputError if no
    question of a file fits into a window."""
    tokenizer, max_length = load_encoder_tokenizer(
        encoder.name, config.max_length or DEFAULT_WINDOW
    )
    check_task(config, max_length)
    config = replace(config, max_length=max_length, task_type="question_answering")
    saved_task = SavedTask(
        task_type="question_answering",
        max_length=max_length,
        stride=config.stride,
        max_answer=config.max_answer,
    )
    file_sha256 = file_hashes(config)
    parts = {}
    for name, path in task_files(config).items():
        parts[name] = read_windows(path, tokenizer, saved_task, labelled=True)
        if not parts[name].windows:
            raise InputError(
                f"{path}: no question leaves room for its context in a window of "
                f"{max_length} tokens; raise task.max_length"
            )
    return QuestionTask(config, encoder, tokenizer, device, saved_task, parts, file_sha256)


@dataclass(frozen=True)
class QuestionTask:
    """Questions with their contexts and answers, read once for all seeds: a `Task`."""

    config: TaskConfig
    encoder: EncoderSource
    tokenizer: PreTrainedTokenizerFast
    device: str
    saved_task: SavedTask
    parts: dict[str, QuestionFile]  # train, valid and perhaps test
    file_sha256: dict[str, str]  # by path

    @property
    def metric(self) -> str:
        return self.config.metric or "f1"

    @property
    def sizes(self) -> dict[str, int]:
        """How many questions every part has."""
        return {name: len(part.labelled) for name, part in self.parts.items()}

    @property
    def summary(self) -> str:
        counts = []
        for name, part in self.parts.items():
            without_answer = sum(not answers for answers in part.labelled["answers"])
            counts.append(f"{len(part.labelled)} {name} ({without_answer} without answer)")
        return f"questions: {', '.join(counts)}; windows of {self.config.max_length} tokens"

    @cached_property
    def reported_rows(self) -> pd.DataFrame:
        return pd.concat(map(_reported_rows, self.parts, self.parts.values()))

    @property
    def departures(self) -> list[str]:
        published = SQUAD_SIZES if self.config.dataset == SQUAD else {}
        return size_departures(self.sizes, published, "questions", "SQuAD 2.0")

    @cached_property
    def identity(self) -> dict[str, Any]:
        hashes = {name: _content_hash(part.labelled) for name, part in self.parts.items()}
        return {"data_sha256": hashes, "metric": self.metric}

    def announce(self, seed: int) -> None:
        """Nothing: all seeds have the parts that the summary tells."""

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> RunResult:
        """Trains with one seed, keeps the epoch that is best on valid, and answers all parts but
        train."""
        return train_with_seed(
            QuestionSupervision(self, hyper, seed),
            encoder=self.encoder,
            tokenizer=self.tokenizer,
            hyper=hyper,
            seed=seed,
            metric=self.metric,
            run_dir=run_dir,
            device=self.device,
        )


@dataclass(frozen=True)
class QuestionSupervision:
    """The windows of train with their answers, which an encoder learns with one seed (a
    `Supervision`)."""

    task: QuestionTask
    hyper: FinetuneConfig
    seed: int

    @property
    def saved_task(self) -> SavedTask:
        return self.task.saved_task

    @property
    def head_settings(self) -> dict[str, Any]:
        return {"num_labels": 2}  # logits of start and end

    @cached_property
    def batches(self) -> ShuffledBatches:
        assert self.hyper.batch_size  # filled in before
        windows = self.task.parts["train"].windows
        return window_batches(windows, self.task.tokenizer, self.hyper.batch_size, self.seed)

    def loss(self, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
        return span_training_loss(network, batch)

    def score_valid(self, network: PreTrainedModel) -> dict[str, float]:
        valid = self.task.parts["valid"]
        _, score = self._answer(network, valid)
        return score(valid.scored)

    def _answer(
        self, network: PreTrainedModel, part: QuestionFile
    ) -> tuple[pd.DataFrame, RowScorer]:
        """The answers of a network to the questions of a part, and how they are scored."""
        answers = answer(
            network,
            part.labelled,
            part.windows,
            self.task.tokenizer,
            max_answer=self.saved_task.max_answer,
        )
        return answers, partial(summarise_answers, score_answers(part.labelled, answers))

    def finish(self, network: PreTrainedModel, run_dir: Path) -> RunResult:
        """Writes the answers to all parts but train; returns their scores and counts, and the
        interval of test, or of valid if there is no test."""
        result: RunResult = {
            "split": self.task.sizes,
            "file_sha256": self.task.file_sha256,
            "scores": {},
            "counts": {},
            "rows_sha256": {},
            "interval": {},
        }
        main_part = "test" if "test" in self.task.parts else "valid"
        for name, part in self.task.parts.items():
            if name == "train":
                continue
            answers, score = self._answer(network, part)
            result["scores"][name] = score(part.scored)
            result["counts"][name] = {"rows": len(part.scored)}
            result["rows_sha256"][name] = _content_hash(part.labelled.iloc[part.scored])
            if name == main_part:
                interval = quick_interval(score, part.scored, self.task.metric, label_count=1)
                result["interval"][name] = interval
            table = vote(part.labelled, [answers])
            write_frame(table.reset_index(), run_dir / f"predictions-{name}.csv")
        return result


def _reported_rows(name: str, part: QuestionFile) -> pd.DataFrame:
    """The questions of a part that cannot be used, or whose answers cannot, as `Task` has them."""
    questions = part.questions
    reasons = questions["remark"]
    if name == "train":
        learned = {window.row for window in part.windows if window.label is not None}
        not_learned = "no window holds all of the answer; not used for training"
        reasons = reasons.where(questions.index.isin(learned), not_learned)
    is_used = questions["problem"] == ""
    reported_rows = pd.DataFrame(
        {
            "row": questions.index + 1,
            "value": questions["question"],
            "reason": reasons.where(is_used, questions["problem"]),
            "part": name,
            "action": np.where(is_used, "kept", "left out"),
        }
    )
    return reported_rows[reported_rows["reason"] != ""]


def _content_hash(questions: pd.DataFrame) -> str:
    """SHA-256 of the questions, contexts and answers."""
    columns = ["id", "question", "context", "answers"]
    content = json.dumps([questions[name].tolist() for name in columns])
    return hashlib.sha256(content.encode()).hexdigest()
