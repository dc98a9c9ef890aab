"""What a task is, which types there are, and how their classes are named.

A `Task` is anything that is trained seed by seed; a `Finetuning` is a `Task` that trains encoders.
For a table, `TextTable` are its rows, `TableTask` their splits and scores, and `TableFinetuning`
and `TableBaseline` train.

A further task type for the rows of a table, or for residues or words, is a class and its entry in
LABEL_TYPES (`labels/label_types.py`). Any other is a `Finetuning` in a file of its own, and an
entry of OTHER_TASK_TYPES."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pandas as pd

from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.loading import EncoderSource, ModelClasses
from exlm.tasks.encoders.results import SeedScores
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.finetuning import QuestionAnswering
from exlm.tasks.rows.predictions import PredictorMaker
from exlm.tasks.tables.finetuning import TableFinetuning
from exlm.tasks.tables.token_classification import TokenClassification


class Task(Protocol):
    """Labelled data, and how a model is trained on them with one seed."""

    config: TaskConfig  # the settings, with what was inferred from the data
    metric: str  # chooses epoch and grid cell
    summary: str  # the data in one line
    reported_rows: pd.DataFrame  # with something wrong: part, row, value, reason, action
    # what must be equal for results to be combined: `data_sha256` and `metric`
    data_settings: dict[str, Any]

    def split_of(self, seed: int) -> Mapping[str, object]:
        """What a seed is trained and scored on, by part. InputError if it cannot be, which is found
        for every seed before the first one is trained."""
        ...

    def train_seed(self, run_dir: Path, hyper: Any, seed: int) -> SeedScores:
        """Trains with one seed and writes its predictions to `run_dir`. `hyper` are the
        hyper-parameters of a grid cell, in the form that the task takes."""
        ...


class Finetuning(Task, Protocol):
    """A `Task` that trains encoders; the class says what is special about the task type."""

    model_classes: ClassVar[ModelClasses]  # those with the right head
    predictor: ClassVar[PredictorMaker]  # what the models that it trains predict

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        """Reads the data for an encoder; `device` is where it is trained."""


# those that are not in LABEL_TYPES, because they have other labels than rows or units
OTHER_TASK_TYPES: dict[str, type[Finetuning]] = {"question_answering": QuestionAnswering}


def class_of(task_type: str | None) -> type[Finetuning]:
    """The class for a task type. None is a table whose task type is inferred from its labels.
    InputError if unknown."""
    if task_type is None:
        return TableFinetuning
    if task_type in LABEL_TYPES:
        return TokenClassification if LABEL_TYPES[task_type].of_units else TableFinetuning
    if task_type not in OTHER_TASK_TYPES:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_TYPES])
        raise InputError(f"there is no task_type {task_type!r}; use one of {names}")
    return OTHER_TASK_TYPES[task_type]
