"""What is saved with a model of its task, and of the texts of its training."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from transformers import PreTrainedConfig

from exlm.data.chemistry import Standardize
from exlm.data.columns import find_usual_columns
from exlm.data.formats import check_no_table, format_of
from exlm.storage.models import task_entry
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType

SDF_STRUCTURES = "smiles"  # what the column of the structures of an .sdf file is called
# Fields whose keys in files are other words
KEYS = {
    "class_names": "classes",
    "binary_names": "words",
    "error_scales": "error_units",
    "unit_pattern": "unit",
}


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """What is saved with a model about the texts of its training; no columns if the model is only
    pre-trained."""

    text_column: str = ""  # column of the texts
    pair_column: str | None = None  # column of the second texts
    molecules: bool | None = None  # whether the texts are SMILES; None: not known
    standardize: Standardize = "none"  # how molecules are rewritten before the model reads them

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The record whose content a file has under the `KEYS`."""
        keys = {name: KEYS.get(name, name) for name in cls.__dataclass_fields__}
        return cls(**{name: content[key] for name, key in keys.items() if key in content})

    def text_column_in(self, columns: Collection[Any], path: str) -> str | None:
        """The column of the file `path` that has the texts: it is called as in the training, in any
        case, or for molecules smiles; in an .sdf file it has the structures. None if there is no
        such column, InputError if lines seem to be a table (`check_no_table`)."""
        check_no_table(path, self.text_column)
        if format_of(path) == "sdf":
            return SDF_STRUCTURES
        if self.text_column and self.text_column in columns:
            return self.text_column
        in_any_case = {str(column).lower(): str(column) for column in columns}
        if self.text_column and self.text_column.lower() in in_any_case:
            return in_any_case[self.text_column.lower()]
        structures = find_usual_columns(columns, "smiles") if self.molecules else []
        return structures[0] if len(structures) == 1 else None


@dataclass(frozen=True, kw_only=True)
class SavedTask(TextSettings):
    """What is saved with a model or a baseline about its task: `task` in config.json or
    baseline.json. A field has its default where a task has no such thing, or did not save it.

    Columns, what their cells say, and what is predicted have names. An example of each task type:

    | task type            | cells           | `label_columns` | `class_names` | `binary_names` |
    | -------------------- | --------------- | --------------- | ------------- | -------------- |
    | regression           | 1.5 and 2.5     | logP, logS      |               |                |
    | multilabel           | no and yes      | liver, heart    |               | no, yes        |
    | binary               | no and yes      | toxic           |               | no, yes        |
    | binary               | 0 and 1         | toxic           |               |                |
    | multiclass           | red and blue    | colour          | blue, red     |                |
    | token_classification | HHE and EEH     | structure       | E, H          |                |

    `label_names` are the class names or the binary names. `prediction_names` are the class names
    or, where there are none, the columns. `head_names` are the same, unless the `LabelType` says
    that outputs are something else."""

    task_type: str = ""  # as in `TaskConfig`
    max_length: int = 0  # longest text, pair of texts, or window of a question, in tokens

    # of tables
    label_columns: list[str] = field(default_factory=list)  # columns of the labels
    class_names: list[str] | None = None  # of several classes, by index
    binary_names: list[str] | None = None  # what labels 0 and 1 are called, if they have names
    mean: list[float] = field(default_factory=list)  # [labels], what outputs are shifted by
    std: list[float] = field(default_factory=list)  # [labels], what outputs are multiplied by
    # [labels], regression of several labels: standard deviations in train, which divide errors
    error_scales: list[float] | None = None
    # fitted on valid, the divisor of logits; None for regression
    temperature: float | None = None
    # regression, or one class a row: for every label the sorted errors on valid (`errors_to_keep`)
    validation_errors: list[list[float]] | None = None

    # of token classification
    unit_pattern: str = ""  # a regular expression for what has a label
    mask_column: str | None = None  # column that says which units count

    # of question answering
    stride: int = 0  # tokens that neighbouring windows share
    max_answer: int = 0  # longest answer in tokens

    @property
    def label_type(self) -> LabelType:
        """The type of the labels of a table; KeyError for another task."""
        return LABEL_TYPES[self.task_type]

    @property
    def label_names(self) -> list[str] | None:
        """What labels are called in a table; None if they are numbers, 0 and 1 included."""
        return self.class_names or self.binary_names

    @property
    def prediction_names(self) -> list[str]:
        """What is predicted for a row or unit: every class, or else every label."""
        return self.class_names or self.label_columns

    @property
    def head_names(self) -> list[str]:
        """A name for every output of the model's head."""
        return self.label_type.head_names(self.prediction_names)

    def to_json(self) -> dict[str, Any]:
        """What goes into a file: all fields that have something in them."""
        return {
            KEYS.get(name, name): value
            for name, value in vars(self).items()
            if value or value is False
        }


def read_saved_task(config: PreTrainedConfig) -> SavedTask | None:
    """The task that `exlm finetune` saved in a model's configuration; None for another model."""
    content = task_entry(config)
    return SavedTask.from_json(content) if content else None


def read_text_settings(config: PreTrainedConfig) -> TextSettings:
    """What the configuration of a pre-trained or a fine-tuned model says of the texts of its
    training."""
    of_pretraining = {
        "molecules": getattr(config, "molecules", None),
        "standardize": getattr(config, "standardize", None) or "none",
    }
    return TextSettings.from_json(of_pretraining | task_entry(config))
