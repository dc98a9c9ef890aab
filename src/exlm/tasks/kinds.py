"""The kinds of task: the class that trains models on one, and the function that predicts with them.

A new kind needs a module with these two and a line in KINDS; its name in `TaskConfig.task_type`; and, for ExLM, a head
in `model/downstream.py`, registered in `exlm/__init__.py`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.classification import Classification
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders import Models
from exlm.tasks.predictions import Member, Predictions, PredictOptions, predict_table
from exlm.tasks.question_answering import QuestionAnswering, predict_answers
from exlm.tasks.table import TaskType


class Task(Protocol):
    """Labelled data, and how to train on them."""

    task: TaskConfig  # with what was inferred from the data
    metric: str  # chooses epoch and grid cell
    summary: str  # describes the data in one line
    invalid: pd.DataFrame  # rows with something wrong
    data_settings: dict[str, Any]  # must be equal for results to be combined: hash, metric, departures from the usual

    def train_seed(self, run_dir: Path, hyper: Any, seed: int) -> dict[str, Any]:
        """Trains with one seed and writes the predictions. Returns `split` (rows by part), `scores` (metrics by part),
        what else should be recorded, and if it writes a model `best_epoch`: the one that is best on valid."""
        ...


class Trainer(Task, Protocol):
    """A task made ready for a model."""

    models: Models  # the classes of models with the right head
    device: str  # where it trains: auto unless another one was set

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        """Reads the data for a model. `from_scratch` and `start_from` are those of `load_encoder`."""


class Kind(NamedTuple):
    """What is done with a kind of task."""

    trainer: type[Trainer]
    predict: Callable[[Sequence[Member], str, PredictOptions], Predictions]  # for the rows of a file, with all seeds


KINDS: dict[str, Kind] = {
    **dict.fromkeys(get_args(TaskType), Kind(Classification, predict_table)),
    "question_answering": Kind(QuestionAnswering, predict_answers),
}


def kind_of(task_type: str | None) -> Kind:
    """The kind of a type of task. None is a table whose type is inferred from its labels. InputError if unknown."""
    if task_type is not None and task_type not in KINDS:
        raise InputError(f"there is no task_type {task_type!r}; use one of {', '.join(KINDS)}")
    return KINDS[task_type or "binary"]
