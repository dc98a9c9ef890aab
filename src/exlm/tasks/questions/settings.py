"""Which settings of tasks and predictions question answering has."""

from dataclasses import fields

from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.questions.answers import ANSWER_METRICS
from exlm.tasks.questions.questions import MIN_STEP
from exlm.tasks.rows.datasets import SQUAD
from exlm.tasks.tables.predictions import PredictOptions

# All other settings of `TaskConfig` and `PredictOptions` are for tables.
TASK_SETTINGS = {"dataset", "valid", "test", "data_dir", "task_type", "metric"}
TASK_SETTINGS |= {"on_invalid", "max_length", "stride", "max_answer"}
PREDICT_SETTINGS = {"on_invalid", "device", "precision"}


def check_task(config: TaskConfig, window: int) -> None:
    """InputError for settings that question answering does not have, or that are missing, or if a
    window of so many tokens is too short for a question and its context."""
    check_settings(config, TASK_SETTINGS, "task.")
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
            f"{2 * MIN_STEP} more than task.stride, to hold a question too; lower task.stride for "
            "short contexts"
        )


def check_settings(
    settings: TaskConfig | PredictOptions, names: set[str], section: str = ""
) -> None:
    """InputError if a setting that is not in `names` differs from its default."""
    for field in fields(settings):
        if field.name not in names and getattr(settings, field.name) != field.default:
            raise InputError(f"question answering has no {section}{field.name}; leave it out")
