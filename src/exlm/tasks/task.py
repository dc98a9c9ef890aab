"""What a task is, and which types there are.

A further task type for the rows of a table, or for residues or words, is a class and its entry in
LABEL_TYPES (`labels/label_types.py`). Any other is an entry of OTHER_TASK_TYPES, and of OTHER_HEADS
(`encoders/loading.py`) if its models have another head than that for whole texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, SeedModel
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.finetuning import read_question_task
from exlm.tasks.questions.predictor import open_questions
from exlm.tasks.results import RunResult
from exlm.tasks.tables.finetuning import read_table_task
from exlm.tasks.tables.predictions import PredictOptions, Predictor
from exlm.tasks.tables.predictor import open_table


class Task(Protocol):
    """Labelled data, and how a model is trained on them with one seed."""

    @property
    def config(self) -> TaskConfig:
        """The settings, with what was inferred from the data."""
        ...

    @property
    def metric(self) -> str:
        """What chooses the epoch and the grid cell."""
        ...

    @property
    def summary(self) -> str:
        """The data in one line."""
        ...

    @property
    def reported_rows(self) -> pd.DataFrame:
        """The rows with something wrong: part, row, value, reason, action."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for results to be combined, besides the settings."""
        ...

    @property
    def departures(self) -> list[str]:
        """How the data depart from the published ones, in words."""
        ...

    def announce(self, seed: int) -> None:
        """Prints what a seed is trained and scored on. InputError if it cannot be, which is found
        for every seed before the first one is trained."""
        ...

    def train_seed(self, run_dir: Path, hyper: Any, seed: int) -> RunResult:
        """Trains with one seed and writes its predictions to `run_dir`. `hyper` are the
        hyper-parameters of a grid cell, in the form that the task takes."""
        ...


class TaskType(NamedTuple):
    """A type of task that encoders are fine-tuned for."""

    # from an encoder, the settings of the data and a device to the task
    read_task: Callable[[EncoderSource, TaskConfig, str], Task]
    # from models, a file and options to what predicts; InputError for options that these models do
    # not have
    open_file: Callable[[Sequence[SeedModel], str, PredictOptions], Predictor]


TABLE_TYPE = TaskType(read_table_task, open_table)
# those that are not in LABEL_TYPES, because they have other labels than rows or units
OTHER_TASK_TYPES = {"question_answering": TaskType(read_question_task, open_questions)}


def find_task_type(name: str | None) -> TaskType:
    """The task type of this name. None is a table whose task type is inferred from its labels.
    InputError if unknown."""
    if name is None or name in LABEL_TYPES:
        return TABLE_TYPE
    if name not in OTHER_TASK_TYPES:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_TYPES])
        raise InputError(f"there is no task_type {name!r}; use one of {names}")
    return OTHER_TASK_TYPES[name]
