"""What a task is, and which kinds there are. Three names are near to one another:

- A task type is a word of the settings and the results, such as `binary` or `regression`.
- A `LabelType` (`labels/label_types.py`) says what the labels of a task type are, if rows of a
  table, residues or words have labels.
- A `TaskKind` says which function reads the data and what predicts. All task types that have a
  `LabelType` are of one kind, TABLE_KIND. Any other task type has its own.

So a new task type for a table is an entry of LABEL_TYPES. Any other is an entry of
OTHER_TASK_KINDS, and of OTHER_HEADS (`encoders/loading.py`) if its models have another head than
that for whole texts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pandas as pd

from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource
from exlm.tasks.encoders.training import Supervision
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.question_predictor import QuestionPredictor
from exlm.tasks.questions.question_task import read_question_task
from exlm.tasks.tables.predictions import Predictions, PredictOptions
from exlm.tasks.tables.seed_models import SeedModel
from exlm.tasks.tables.supervision import read_table_task
from exlm.tasks.tables.table_predictor import make_table_predictor


class Task(Protocol):
    """Labelled data."""

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

    def check_and_announce(self, seed: int) -> None:
        """Prints what a seed is trained and scored on. InputError if it cannot be, which is found
        for every seed before the first one is trained."""
        ...


class EncoderTask(Protocol):
    """Labelled data, and how an encoder learns them."""

    @property
    def task(self) -> Task: ...

    @property
    def encoder(self) -> EncoderSource: ...

    def supervise(self, seed: int, hyper: FinetuneConfig) -> Supervision[Any]:
        """What the encoder learns with a seed and the hyper-parameters of a grid cell."""
        ...


class Predictor(Protocol):
    """The models of all seeds, and a file that they predict for."""

    @property
    def label_columns(self) -> Sequence[str]:
        """Which columns of the file have labels, if it is a table that has some."""
        ...

    @property
    def by_frames(self) -> bool:
        """Whether the frames of the file may be predicted one by one, with `predict_rows`."""
        ...

    def predict(self) -> Predictions:
        """What the models predict for the whole file, and how it is scored."""
        ...

    def predict_rows(self, rows: FileRows) -> Predictions:
        """What the models predict for some rows of the file."""
        ...


class TaskKind(NamedTuple):
    """How the data of a task are read, and how its models predict. Several task types may share
    it."""

    # from an encoder and the settings of the data to the task
    read_task: Callable[[EncoderSource, TaskConfig], EncoderTask]
    # from the models of all seeds, a file and options to what predicts for the file; InputError for
    # options that these models do not have
    make_predictor: Callable[[Sequence[SeedModel], str, PredictOptions], Predictor]


TABLE_KIND = TaskKind(read_table_task, make_table_predictor)
# by the task types that are not in LABEL_TYPES, because they label neither rows nor units
OTHER_TASK_KINDS = {"question_answering": TaskKind(read_question_task, QuestionPredictor)}


def find_task_kind(task_type: str | None) -> TaskKind:
    """The kind of a task type. None is a table whose task type is inferred from its labels.
    InputError if there is no such task type."""
    if task_type is None or task_type in LABEL_TYPES:
        return TABLE_KIND
    if task_type not in OTHER_TASK_KINDS:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_KINDS])
        raise InputError(f"there is no task_type {task_type!r}; use one of {names}")
    return OTHER_TASK_KINDS[task_type]
