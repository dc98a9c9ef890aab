"""Which settings of tasks and predictions question answering has."""

from dataclasses import fields

from exlm.errors import InputError
from exlm.tasks.config import DEFAULT_STRIDE, TaskConfig
from exlm.tasks.labels.metrics import ANSWER_METRICS
from exlm.tasks.questions.questions import MIN_STEP
from exlm.tasks.rows.datasets import SQUAD
from exlm.tasks.tables.predictions import PredictOptions

# All other settings of `TaskConfig` and `PredictOptions` are for tables.
TASK_SETTINGS = {"dataset", "valid", "test", "data_dir", "task_type", "metric"}
TASK_SETTINGS |= {"on_invalid", "max_length", "stride", "max_answer"}
PREDICT_SETTINGS = {"on_invalid", "device", "precision"}


def choose_stride(window: int) -> int:
    """The stride in windows of so many tokens, where the user gives none: a third of a window that
    is too short for the usual stride, as that is of the usual window."""
    most = window - 2 * MIN_STEP
    return DEFAULT_STRIDE if most >= DEFAULT_STRIDE else max(0, min(window // 3, most))


def check_task(config: TaskConfig, window: int, stride: int) -> None:
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
    least = stride + 2 * MIN_STEP
    if window < least:
        advice = "lower task.stride for short contexts" if stride else "raise task.max_length"
        raise InputError(
            f"a window (task.max_length) has {window} tokens; it must have at least {least}, "
            f"{2 * MIN_STEP} more than task.stride, to hold a question too; {advice}"
        )


def check_settings(
    settings: TaskConfig | PredictOptions, names: set[str], section: str = ""
) -> None:
    """InputError if a setting that is not in `names` differs from its default."""
    for field in fields(settings):
        if field.name not in names and getattr(settings, field.name) != field.default:
            raise InputError(f"question answering has no {section}{field.name}; leave it out")
