"""The settings of a table's task, completed by what the table and the model say."""

from dataclasses import replace

from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import metric_names
from exlm.tasks.rows.datasets import GLUE
from exlm.tasks.rows.reading import decide_molecules
from exlm.tasks.rows.table import TextTable


def complete_config(config: TaskConfig, table: TextTable, saved_task: SavedTask) -> TaskConfig:
    """The config with whether texts are molecules, their spelling and the split, where it leaves
    them out, and with the whole names of the label columns, where it names them. `saved_task` is
    what the model remembers (`remembered`). InputError if settings do not fit the table."""
    metrics = metric_names(table.label_type, table.class_names)
    if config.metric and config.metric not in metrics:
        raise InputError(
            f"a {table.task_type} task has no metric {config.metric!r}; "
            f"use one of {', '.join(metrics)}"
        )
    user_says = False if config.dataset in GLUE else config.molecules
    # Only a model of molecules decides: one of other texts may be fine-tuned on molecules.
    model_knows = True if saved_task.molecules else None
    molecules = decide_molecules(table.texts, user_says, model_knows)
    # 'none' and absent are equal here; keep what the recipe wrote, or finished runs would not be
    # recognised.
    standardize = config.standardize
    if standardize is None and molecules and saved_task.standardize != "none":
        standardize = saved_task.standardize
    if standardize not in (None, "none") and not molecules:
        raise InputError(
            f"task.standardize {standardize} rewrites molecules; "
            "set task.molecules to true, or leave it out"
        )
    split = config.split
    if not split and table.parts is not None:
        split = "parts"
    if not split:
        split = "scaffold" if molecules else "random"
    names_labels = config.label_columns or table.label_type.of_units
    return replace(
        config,
        molecules=molecules,
        split=split,
        standardize=standardize,
        label_columns=table.label_columns if names_labels else None,
    )
