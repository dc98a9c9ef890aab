"""The settings of a table's task, completed by what the table and the model say."""

from dataclasses import dataclass, field

from exlm.data.chemistry import Standardize
from exlm.data.spelling import check_form
from exlm.errors import InputError
from exlm.identity import IDENTITY_IF_CHANGED
from exlm.tasks.config import DEFAULT_STRIDE, TaskConfig
from exlm.tasks.encoders.saved_task import TextSettings
from exlm.tasks.labels.scores import metric_names
from exlm.tasks.rows.datasets import GLUE
from exlm.tasks.rows.reading import decide_molecules
from exlm.tasks.rows.table import LabelledTable


@dataclass(frozen=True)
class TableConfig(TaskConfig):
    """Settings that also say whether texts are molecules, how these are rewritten, and how rows are
    split."""

    split: str = ""
    molecules: bool = False
    standardize: Standardize = field(default="none", metadata=IDENTITY_IF_CHANGED)


def infer_settings(
    config: TaskConfig, table: LabelledTable, text_settings: TextSettings
) -> TableConfig:
    """The config with the settings that were absent, and with the whole names of label columns if
    it names them. InputError if settings do not fit the table."""
    metrics = metric_names(table.labels.type, table.labels.class_names)
    if config.metric and config.metric not in metrics:
        raise InputError(
            f"a {table.labels.task_type} task has no metric {config.metric!r}; "
            f"use one of {', '.join(metrics)}"
        )
    never_molecules = config.dataset in GLUE or table.labels.type.of_units
    user_says = False if never_molecules else config.molecules
    # A model of other texts may be fine-tuned on molecules.
    model_knows = True if text_settings.molecules else None
    molecules = decide_molecules(table.texts, user_says, model_knows)
    standardize = config.standardize or (text_settings.standardize if molecules else "none")
    check_form(standardize, molecules, "task.")
    computed_split = "scaffold" if molecules else "random"
    split = config.split or ("parts" if table.parts is not None else computed_split)
    names_labels = config.label_columns or table.labels.type.of_units
    settings = {
        "molecules": molecules,
        "split": split,
        "standardize": standardize,
        "label_columns": table.labels.columns if names_labels else None,
        # Tables have no windows, but the identities of their runs have always had this.
        "stride": DEFAULT_STRIDE if config.stride is None else config.stride,
    }
    return TableConfig(**vars(config) | settings)
