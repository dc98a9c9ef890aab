"""Models that find the answers to questions in their contexts: training and predicting. The
questions of a file are read once for all seeds."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from exlm.data.files import plain_suffix
from exlm.data.frames import read_file
from exlm.data.writing import write_frame
from exlm.errors import InputError
from exlm.storage.models import save_model, weight_files
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, SeedModel, load_encoder_tokenizer
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.encoders.supervised import train_best_epoch
from exlm.tasks.labels.column_labels import note_unscored
from exlm.tasks.labels.scores import RowScorer, quick_interval
from exlm.tasks.questions.answers import (
    ANSWER_METRICS,
    answer,
    score_answers,
    span_training_loss,
    summarise_answers,
    vote,
)
from exlm.tasks.questions.questions import (
    MIN_STEP,
    QuestionFile,
    read_windows,
    window_batches,
)
from exlm.tasks.results import SeedResult
from exlm.tasks.rows.datasets import SQUAD, SQUAD_SIZES, file_hashes, size_departures, task_files
from exlm.tasks.rows.table import UNUSABLE
from exlm.tasks.tables.predictions import (
    ENSEMBLE,
    Evaluation,
    Predictions,
    PredictOptions,
    with_predictions,
)

DEFAULT_WINDOW = 384  # tokens
# All other settings of `TaskConfig` and `PredictOptions` are for tables.
TASK_SETTINGS = {"dataset", "valid", "test", "data_dir", "task_type", "metric"}
TASK_SETTINGS |= {"on_invalid", "max_length", "stride", "max_answer"}
PREDICT_SETTINGS = {"on_invalid", "device", "precision"}


class QuestionPredictor:
    """The models of all seeds, and the file whose questions they answer (`Predictor`)."""

    def __init__(self, models: Sequence[SeedModel], path: str, options: PredictOptions) -> None:
        _check_settings(options, PREDICT_SETTINGS, "")
        self.models = models
        self.path = path
        self.options = options

    def predict(self) -> Predictions:
        """Answers all questions; `problem` says why one cannot be answered. They are scored if the
        file has answers."""
        task = self.models[0].saved_task
        # The models of all seeds have the same tokenizer.
        file = read_windows(self.path, self.models[0].loaded.tokenizer, task, labelled=False)
        unanswered = file.questions[file.questions["problem"] != ""]
        if len(unanswered) and self.options.on_invalid == "error":
            first = unanswered.reset_index().iloc[0]
            raise InputError(
                f"{self.path}: row {first['row'] + 1}, {first['question']!r}: {first['problem']}; "
                "correct it"
            )
        answers_by_model = {
            model.directory.name: self._answers(model, file) for model in self.models
        }
        voted = vote(file.questions, [*answers_by_model.values()])
        if len(self.models) > 1:
            # An ensemble decides by its vote, not by a threshold.
            of_ensemble = voted.assign(refused=voted["answer"] == "")
            answers_by_model = {ENSEMBLE: of_ensemble, **answers_by_model}
        frame = self._frame(voted.assign(problem=file.questions["problem"]))
        answered = len(file.questions) - len(unanswered)
        counts = {"questions answered": answered, UNUSABLE: len(unanswered)}
        remarks = file.questions["remark"].where(file.questions["answers"].isna(), "")
        unscored = {row: remark for row, remark in enumerate(remarks) if remark}
        note_unscored(unscored, file.questions.index, self.path)
        if not any(file.labelled["answers"]):
            return Predictions(frame, counts)
        if not len(file.scored):
            problem = f"no question with an answer fits into {task.max_length} tokens"
            return Predictions(frame, counts, note=problem)
        scorers = {
            name: partial(summarise_answers, score_answers(file.labelled, answers))
            for name, answers in answers_by_model.items()
        }
        return Predictions(frame, counts, Evaluation(scorers, file.scored))

    def _answers(self, model: SeedModel, file: QuestionFile) -> pd.DataFrame:
        """What a model answers to the questions of a file."""
        network, tokenizer = model.loaded
        longest = model.saved_task.max_answer
        precision = self.options.precision
        return answer(network, file.questions, file.windows, tokenizer, longest, precision)

    def _frame(self, answers: pd.DataFrame) -> pd.DataFrame:
        """The answers as rows of their own, or behind the columns of the table."""
        if plain_suffix(self.path) == ".json":
            return answers.reset_index()
        columns = {**answers.drop(columns=["id", "question"])}
        frame = read_file(self.path, self.options.header, self.options.sheet).frame
        return with_predictions(frame, columns, self.path)


class QuestionAnswering:
    """Fine-tunes encoders for questions and contexts, cut into windows (a `Task`)."""

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        self.encoder = encoder
        self.device = device
        self.metric = config.metric or "f1"
        self.tokenizer, max_length = load_encoder_tokenizer(
            encoder.name, config.max_length or DEFAULT_WINDOW
        )
        _check(config, max_length)
        self.config = replace(config, max_length=max_length, task_type="question_answering")
        self.saved_task = SavedTask(
            task_type="question_answering",
            max_length=max_length,
            stride=config.stride,
            max_answer=config.max_answer,
        )
        self.file_sha256 = file_hashes(self.config)
        self.parts = {name: self._read(path) for name, path in task_files(config).items()}
        self.sizes = {name: len(part.labelled) for name, part in self.parts.items()}
        counts = []
        for name, part in self.parts.items():
            without_answer = sum(not answers for answers in part.labelled["answers"])
            counts.append(f"{self.sizes[name]} {name} ({without_answer} without answer)")
        self.summary = f"questions: {', '.join(counts)}; windows of {max_length} tokens"
        self.reported_rows = pd.concat(map(_reported_rows, self.parts, self.parts.values()))
        published = SQUAD_SIZES if config.dataset == SQUAD else {}
        self.departures = size_departures(self.sizes, published, "questions", "SQuAD 2.0")
        hashes = {name: _content_hash(part.labelled) for name, part in self.parts.items()}
        self.identity = {"data_sha256": hashes, "metric": self.metric}

    def _read(self, path: str | Path) -> QuestionFile:
        """The questions of a file, cut into windows. InputError if none fits into one."""
        file = read_windows(path, self.tokenizer, self.saved_task, True)
        if not file.windows:
            raise InputError(
                f"{path}: no question leaves room for its context in a window of "
                f"{self.saved_task.max_length} tokens; raise task.max_length"
            )
        return file

    def announce(self, seed: int) -> None:
        """Nothing: all seeds have the parts that the summary tells."""

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> SeedResult:
        """Trains with one seed, keeps the epoch that is best on valid, and answers all parts but
        train."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        network = self.encoder.load(self.saved_task, hyper, {"num_labels": 2})

        def validate() -> dict[str, float]:
            _, score = self._answer(network, "valid")
            return score(self.parts["valid"].scored)

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
            "weight_files": {"model": weight_files(self.encoder.name)},
            "split": self.sizes,
            "file_sha256": self.file_sha256,
            **self._write_answers(run_dir, network),
        }

    def _answer(self, network: nn.Module, name: str) -> tuple[pd.DataFrame, RowScorer]:
        """The answers of a network to the questions of a part, and how they are scored."""
        part = self.parts[name]
        answers = answer(
            network,
            part.labelled,
            part.windows,
            self.tokenizer,
            max_answer=self.saved_task.max_answer,
        )
        return answers, partial(summarise_answers, score_answers(part.labelled, answers))

    def _write_answers(self, run_dir: Path, network: nn.Module) -> SeedResult:
        """Writes the answers to all parts but train; returns their scores and counts, and the
        interval of test, or of valid if there is no test."""
        result: SeedResult = {"scores": {}, "counts": {}, "rows_sha256": {}, "interval": {}}
        main_part = "test" if "test" in self.parts else "valid"
        for name, part in self.parts.items():
            if name == "train":
                continue
            answers, score = self._answer(network, name)
            result["scores"][name] = score(part.scored)
            result["counts"][name] = {"rows": len(part.scored)}
            result["rows_sha256"][name] = _content_hash(part.labelled.iloc[part.scored])
            if name == main_part:
                interval = quick_interval(score, part.scored, self.metric, label_count=1)
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


def _check(config: TaskConfig, window: int) -> None:
    """InputError for settings that question answering does not have, or that are missing, or if a
    window of so many tokens is too short for a question and its context."""
    _check_settings(config, TASK_SETTINGS, "task.")
    if config.metric not in (None, *ANSWER_METRICS):
        names = " or ".join(ANSWER_METRICS)
        raise InputError(f"question answering has no metric {config.metric!r}; use {names}")
    if not (config.valid or config.dataset == SQUAD):
        raise InputError(
            "question answering (as a .json file of SQuAD is read) needs a file of its own for the "
            "valid part; name it with task.valid, or save a table as .jsonl"
        )
    least = config.stride + 2 * MIN_STEP
    if window < least:
        raise InputError(
            f"a window (task.max_length) has {window} tokens; it must have at least {least}, "
            f"{2 * MIN_STEP} more than task.stride, to hold a question too"
        )


def _check_settings(settings: TaskConfig | PredictOptions, names: set[str], section: str) -> None:
    """InputError if a setting besides these `names` has another value than its default."""
    for field in fields(settings):
        if field.name not in names and getattr(settings, field.name) != field.default:
            raise InputError(f"question answering has no {section}{field.name}; leave it out")
