"""The kinds of task: classes that train models on one, and predict with them.

A class is called with a model, a TaskConfig, and the `from_scratch` and `start_from` of
`load_encoder`. Objects have

* `models`, the classes of models with the right head, and `device`, where it trains;
* `task`, the TaskConfig with what was inferred from the data, and `summary`, which describes the
data in one line;
* `metric`, which chooses epoch and grid cell, and `invalid`, a data frame of the rows with
something wrong;
* `data_settings`, which must be equal for results to be combined: hash, metric, departures from the
usual;
* `predict(members, input, options)`, a static method: the Predictions of all seeds for the rows of
a file;
* `train_seed(run_dir, hyper, seed)`, which trains and writes the predictions. It returns `split`
  (rows by part), `scores` (metrics by part), what else should be recorded, and if it writes a model
  `best_epoch`, the best on valid."""

from typing import Any, get_args

from exlm.errors import InputError
from exlm.tasks.classification import Classification, TokenClassification
from exlm.tasks.question_answering import QuestionAnswering
from exlm.tasks.table import TaskType

KINDS: dict[str, Any] = {
    **dict.fromkeys(get_args(TaskType), Classification),
    "token_classification": TokenClassification,
    "question_answering": QuestionAnswering,
}


def kind_of(task_type: str | None) -> Any:
    """The class for a type of task. None is a table whose type is inferred from its labels.
    InputError if unknown."""
    if task_type is not None and task_type not in KINDS:
        raise InputError(f"there is no task_type {task_type!r}; use one of {', '.join(KINDS)}")
    return KINDS[task_type or "binary"]
