"""The kinds of task: the class that trains models on one, and the function that predicts with them.

The class is called with the model, a TaskConfig, and the `from_scratch` and `start_from` of `load_encoder`. Its objects
have

* `models`, the classes of models with the right head, and `device`, where it trains;
* `task`, the TaskConfig with what was inferred from the data, and `summary`, which describes the data in one line;
* `metric`, which chooses epoch and grid cell, and `invalid`, a data frame of the rows with something wrong;
* `data_settings`, which must be equal for results to be combined: hash, metric, departures from the usual;
* `train_seed(run_dir, hyper, seed)`, which trains and writes the predictions. It returns `split` (rows by part),
  `scores` (metrics by part), what else should be recorded, and if it writes a model `best_epoch`, the best on valid."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from exlm.errors import InputError
from exlm.tasks.classification import Classification, TokenClassification
from exlm.tasks.predictions import Member, Predictions, PredictOptions, predict_table
from exlm.tasks.question_answering import QuestionAnswering, predict_answers
from exlm.tasks.table import TaskType


class Kind(NamedTuple):
    """What is done with a kind of task."""

    trainer: Any
    predict: Callable[[Sequence[Member], str, PredictOptions], Predictions]  # for the rows of a file, with all seeds


KINDS: dict[str, Kind] = {
    **dict.fromkeys(get_args(TaskType), Kind(Classification, predict_table)),
    "token_classification": Kind(TokenClassification, predict_table),
    "question_answering": Kind(QuestionAnswering, predict_answers),
}


def kind_of(task_type: str | None) -> Kind:
    """The kind of a type of task. None is a table whose type is inferred from its labels. InputError if unknown."""
    if task_type is not None and task_type not in KINDS:
        raise InputError(f"there is no task_type {task_type!r}; use one of {', '.join(KINDS)}")
    return KINDS[task_type or "binary"]
