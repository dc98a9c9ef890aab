"""The types of tasks whose labels stand in a table, and what these labels are."""

from typing import NamedTuple

# binary, multiclass, multilabel, regression, or the name of another kind (`task.py`)
TaskType = str


class LabelType(NamedTuple):
    """What the labels of a type of task are, for all that reads, splits and scores them."""

    # labels are indices of classes [rows, 1], predictions the probabilities of all [rows, classes]
    predicts_every_class: bool = False
    # labels are numbers: models learn them in standard deviations, and predict no probabilities
    is_number: bool = False
    class_per_row: bool = False  # every row has one class, in one column


# A type that is not here reads no labels of tables.
LABEL_TYPES: dict[TaskType, LabelType] = {
    "binary": LabelType(class_per_row=True),
    "multiclass": LabelType(predicts_every_class=True, class_per_row=True),
    "multilabel": LabelType(),
    "regression": LabelType(is_number=True),
    "token_classification": LabelType(predicts_every_class=True),
}
