"""Which kinds of tasks there are. Three names are near to one another:

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

from exlm.errors import InputError
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource
from exlm.tasks.encoders.training import Supervision
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.questions.answer_file import make_predictor_for_questions
from exlm.tasks.questions.question_task import read_question_task
from exlm.tasks.tables.predictions import PredictOptions, Predictor
from exlm.tasks.tables.seed_models import SeedModel
from exlm.tasks.tables.supervision import read_table_task
from exlm.tasks.tables.table_predictor import make_table_predictor
from exlm.tasks.task import Task


class EncoderTask(Protocol):
    """Labelled data, and how an encoder learns them."""

    @property
    def task(self) -> Task: ...

    @property
    def encoder(self) -> EncoderSource: ...

    def supervise(self, seed: int, hyper: FinetuneConfig) -> Supervision[Any]:
        """What the encoder learns with a seed and the hyper-parameters of a grid cell."""
        ...


class TaskKind(NamedTuple):
    """How the data of a task are read, and how its models predict. Several task types may share
    it."""

    # from an encoder and the settings of the data to the task
    read_task: Callable[[EncoderSource, TaskConfig], EncoderTask]
    # from the models of all seeds, a file and options to what predicts for the file; InputError for
    # options that these models do not have
    make_predictor: Callable[[Sequence[SeedModel], str, PredictOptions], Predictor]


def make_predictor_for_table(
    models: Sequence[SeedModel], path: str, options: PredictOptions
) -> Predictor:
    predictor = make_table_predictor(models, path, options)
    return Predictor(
        predict=predictor.predict,
        predict_rows=predictor.predict_rows if predictor.by_frames else None,
        label_columns=predictor.label_columns,
    )


TABLE_KIND = TaskKind(read_table_task, make_predictor_for_table)
# by the task types that are not in LABEL_TYPES, because they label neither rows nor units
OTHER_TASK_KINDS = {
    "question_answering": TaskKind(read_question_task, make_predictor_for_questions)
}


def find_task_kind(task_type: str | None) -> TaskKind:
    """The kind of a task type. None is a table whose task type is inferred from its labels.
    InputError if there is no such task type."""
    if task_type is None or task_type in LABEL_TYPES:
        return TABLE_KIND
    if task_type not in OTHER_TASK_KINDS:
        names = ", ".join([*LABEL_TYPES, *OTHER_TASK_KINDS])
        raise InputError(f"there is no task_type {task_type!r}; use one of {names}")
    return OTHER_TASK_KINDS[task_type]
