"""What a task is, and which types there are.

For a table, `TextTable` are its rows, `TableTask` their splits and scores, and `TableFinetuning`
and `TableBaseline` train.

A further task type for the rows of a table, or for residues or words, is a class and its entry in
LABEL_TYPES (`labels/label_types.py`). Any other is an entry of OTHER_TASK_TYPES."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, ModelClasses
from exlm.tasks.encoders.results import SeedScores
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.question_answering import QuestionAnswering, QuestionPredictor
from exlm.tasks.rows.predictions import PredictorMaker
from exlm.tasks.tables.output_meaning import OutputMeaning, UnitMeaning
from exlm.tasks.tables.predictor import TablePredictor
from exlm.tasks.tables.training import read_table


class Task(Protocol):
    """Labelled data, and how a model is trained on them with one seed."""

    config: TaskConfig  # the settings, with what was inferred from the data
    metric: str  # chooses epoch and grid cell
    summary: str  # the data in one line
    reported_rows: pd.DataFrame  # with something wrong: part, row, value, reason, action
    # what must be equal for results to be combined, besides the settings
    identity: dict[str, Any]
    departures: list[str]  # from the published data, in words

    def announce(self, seed: int) -> None:
        """Prints what a seed is trained and scored on. InputError if it cannot be, which is found
        for every seed before the first one is trained."""
        ...

    def train_seed(self, run_dir: Path, hyper: Any, seed: int) -> SeedScores:
        """Trains with one seed and writes its predictions to `run_dir`. `hyper` are the
        hyper-parameters of a grid cell, in the form that the task takes."""
        ...


class TaskType(NamedTuple):
    """A type of task that encoders are fine-tuned for."""

    model_classes: ModelClasses  # those with the right head
    # from an encoder, the settings of the data and a device to the task
    read: Callable[[EncoderSource, TaskConfig, str], Task]
    predictor: PredictorMaker  # what the models that it trains predict


ROW_TYPE = TaskType(OutputMeaning.model_classes, read_table, TablePredictor.for_file)
UNIT_TYPE = TaskType(UnitMeaning.model_classes, read_table, TablePredictor.for_file)
# those that are not in LABEL_TYPES, because they have other labels than rows or units
OTHER_TASK_TYPES = {
    "question_answering": TaskType(
        QuestionAnswering.model_classes, QuestionAnswering, QuestionPredictor
    )
}


def find_task_type(name: str | None) -> TaskType:
    """The task type of this name. None is a table whose task type is inferred from its labels.
    InputError if unknown."""
    if name is None:
        return ROW_TYPE
    if name in LABEL_TYPES:
        return UNIT_TYPE if LABEL_TYPES[name].of_units else ROW_TYPE
    if name not in OTHER_TASK_TYPES:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_TYPES])
        raise InputError(f"there is no task_type {name!r}; use one of {names}")
    return OTHER_TASK_TYPES[name]
