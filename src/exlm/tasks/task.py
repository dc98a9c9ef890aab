"""What a task is, and which types there are.

A further task type for the rows of a table, or for residues or words, is a class and its entry in
LABEL_TYPES (`labels/label_types.py`). Any other is an entry of OTHER_TASK_TYPES, and of OTHER_HEADS
(`encoders/loading.py`) if its models have another head than that for whole texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.baselines.saved import Baselines
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, SeedModel
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.answering import answer_file
from exlm.tasks.questions.finetuning import read_question_task
from exlm.tasks.results import RunResult, is_baseline
from exlm.tasks.tables.ensemble import Encoders
from exlm.tasks.tables.finetuning import read_table_task
from exlm.tasks.tables.predictions import Predictions, PredictOptions
from exlm.tasks.tables.predictor import TablePredictor, open_table


class Task(Protocol):
    """Labelled data, and how a model is trained on them with one seed."""

    metric: str  # chooses epoch and grid cell
    summary: str  # the data in one line
    reported_rows: pd.DataFrame  # with something wrong: part, row, value, reason, action
    # what must be equal for results to be combined, besides the settings
    identity: dict[str, Any]
    departures: list[str]  # from the published data, in words

    @property
    def config(self) -> TaskConfig:
        """The settings, with what was inferred from the data."""
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

    # from an encoder and the settings of the data to the task
    read_task: Callable[[EncoderSource, TaskConfig], Task]
    # from the models of all seeds, a file and options to predictions for the file; InputError for
    # options that these models do not have
    predict_file: Callable[[Sequence[SeedModel], str, PredictOptions], Predictions]


def open_table_with(
    models: Sequence[SeedModel], path: str, options: PredictOptions
) -> TablePredictor:
    """What predicts for the table `path` with fine-tuned encoders or baselines."""
    ensemble_class = Baselines if is_baseline(models[0].directory) else Encoders
    return open_table(models, path, options, ensemble_class)


def predict_table(models: Sequence[SeedModel], path: str, options: PredictOptions) -> Predictions:
    """What fine-tuned encoders or baselines predict for all rows of the table `path`."""
    return open_table_with(models, path, options).predict()


TABLE_TYPE = TaskType(read_table_task, predict_table)
# those that are not in LABEL_TYPES, because they have other labels than rows or units
OTHER_TASK_TYPES = {"question_answering": TaskType(read_question_task, answer_file)}


def find_task_type(name: str | None) -> TaskType:
    """The task type of this name. None is a table whose task type is inferred from its labels.
    InputError if unknown."""
    if name is None or name in LABEL_TYPES:
        return TABLE_TYPE
    if name not in OTHER_TASK_TYPES:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_TYPES])
        raise InputError(f"there is no task_type {name!r}; use one of {names}")
    return OTHER_TASK_TYPES[name]
