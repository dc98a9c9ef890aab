"""What encoders learn of questions, whose contexts are cut into windows. Their files are read once,
for all seeds."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import Tensor, nn
from transformers import PreTrainedModel

from exlm.data.writing import write_frame
from exlm.errors import InputError
from exlm.ops.loss import LossSum
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.encoders.training import Supervision
from exlm.tasks.labels.metrics import ANSWER_METRICS
from exlm.tasks.labels.scores import RowScorer, quick_interval
from exlm.tasks.questions.answers import answer, make_scorer, span_training_loss, vote
from exlm.tasks.questions.questions import QuestionFile, read_windows, window_batches
from exlm.tasks.questions.settings import check_task, choose_stride
from exlm.tasks.results import SeedResult
from exlm.tasks.rows.datasets import SQUAD, SQUAD_SIZES, size_departures
from exlm.tasks.rows.task_files import file_hashes, task_files
from exlm.tasks.task import Task

DEFAULT_WINDOW = 384  # tokens


def read_question_task(encoder: EncoderSource, config: TaskConfig) -> "EncoderQuestionTask":
    """Reads the questions of a config for an encoder. InputError if no question of a file fits into
    a window."""
    tokenizer = encoder.tokenizer
    max_length = encoder.limit_length(config.max_length or DEFAULT_WINDOW)
    stride = choose_stride(max_length) if config.stride is None else config.stride
    config = replace(config, max_length=max_length, stride=stride, task_type="question_answering")
    check_task(config, max_length, stride)
    saved_task = SavedTask(
        task_type="question_answering",
        max_length=max_length,
        stride=stride,
        max_answer=config.max_answer,
    )
    file_sha256 = file_hashes(config)
    parts = {}
    counts = []
    for name, path in task_files(config).items():
        part = read_windows(path, tokenizer, saved_task, labelled=True)
        if not part.windows:
            raise InputError(
                f"{path}: no question leaves room for its context in a window of "
                f"{max_length} tokens; raise task.max_length"
            )
        without_answer = sum(not answers for answers in part.labelled["answers"])
        counts.append(f"{len(part.labelled)} {name} ({without_answer} without answer)")
        parts[name] = part
    sizes = {name: len(part.labelled) for name, part in parts.items()}
    published = SQUAD_SIZES if config.dataset == SQUAD else {}
    metric = config.metric or "f1"
    task = Task(
        config=config,
        metric=metric,
        metrics=ANSWER_METRICS,
        summary=f"questions: {', '.join(counts)}; windows of {max_length} tokens",
        reported_rows=pd.concat(map(_reported_rows, parts, parts.values())),
        departures=size_departures(sizes, published, "questions", "SQuAD 2.0"),
        identity={
            "data_sha256": {name: _content_hash(part.labelled) for name, part in parts.items()},
            "metric": metric,
        },
    )
    return EncoderQuestionTask(task, encoder, saved_task, parts, file_sha256)


@dataclass(frozen=True)
class EncoderQuestionTask:
    """Questions and their windows for an encoder: an `EncoderTask` (`tasks/task_kinds.py`)."""

    task: Task
    encoder: EncoderSource
    saved_task: SavedTask
    parts: dict[str, QuestionFile]  # train, valid and perhaps test
    file_sha256: dict[str, str]  # by path

    def supervise(self, seed: int, hyper: FinetuneConfig) -> "QuestionSupervision":
        """What the encoder learns with a seed: windows of train, in an order of the seed."""
        assert hyper.batch_size  # filled in before
        windows = self.parts["train"].windows
        return QuestionSupervision(
            saved_task=self.saved_task,
            head_settings={"num_labels": 2},  # logits of start and end
            batches=window_batches(windows, self.encoder.tokenizer, hyper.batch_size, seed),
            encoder_task=self,
        )


@dataclass(frozen=True)
class QuestionSupervision(Supervision[dict[str, pd.DataFrame]]):
    """What a network learns of questions."""

    encoder_task: EncoderQuestionTask

    def loss(self, network: nn.Module, batch: dict[str, Tensor]) -> LossSum:
        return span_training_loss(network, batch)

    def score_valid(self, network: PreTrainedModel) -> dict[str, float]:
        valid = self.encoder_task.parts["valid"]
        return make_scorer(valid, self._answer(network, valid))(valid.scored)

    def predict(self, network: PreTrainedModel) -> dict[str, pd.DataFrame]:
        """The answers to all parts but train, by part."""
        return {name: self._answer(network, part) for name, part in self._scored_parts.items()}

    @property
    def _scored_parts(self) -> dict[str, QuestionFile]:
        parts = self.encoder_task.parts
        return {name: part for name, part in parts.items() if name != "train"}

    def _answer(self, network: PreTrainedModel, part: QuestionFile) -> pd.DataFrame:
        tokenizer = self.encoder_task.encoder.tokenizer
        longest = self.saved_task.max_answer
        return answer(network, part.labelled, part.windows, tokenizer, longest)

    def write_results(self, outputs: dict[str, pd.DataFrame], run_dir: Path) -> SeedResult:
        """Writes the answers to every part. The interval is of test, or of valid if there is no
        test."""
        scored_parts = self._scored_parts
        scorers = dict[str, RowScorer]()
        for name, part in scored_parts.items():
            scorers[name] = make_scorer(part, outputs[name])
            table = vote(part.labelled, [outputs[name]])
            write_frame(table.reset_index(), run_dir / f"predictions-{name}.csv")
        main_part = "test" if "test" in scored_parts else "valid"
        rows = {name: part.scored for name, part in scored_parts.items()}
        metric = self.encoder_task.task.metric
        interval = quick_interval(scorers[main_part], rows[main_part], metric, label_count=1)
        return {
            "split": {name: len(part.labelled) for name, part in self.encoder_task.parts.items()},
            "file_sha256": self.encoder_task.file_sha256,
            "scores": {name: score(rows[name]) for name, score in scorers.items()},
            "counts": {name: {"rows": len(rows[name])} for name in scored_parts},
            "rows_sha256": {
                name: _content_hash(part.labelled.iloc[rows[name]])
                for name, part in scored_parts.items()
            },
            "interval": {main_part: interval},
        }


def _reported_rows(name: str, part: QuestionFile) -> pd.DataFrame:
    """The questions of a part with something wrong, as `Task` has them."""
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
    columns = ["id", "question", "context", "answers"]
    content = json.dumps([questions[name].tolist() for name in columns])
    return hashlib.sha256(content.encode()).hexdigest()
