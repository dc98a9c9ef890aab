"""Predictions as columns of a table, by their titles.

| labels         | columns                                                                |
| -------------- | ---------------------------------------------------------------------- |
| numbers        | `predicted NAME` for every label                                       |
| classes        | `predicted NAME` for every class, `predicted class`, `confidence`      |
| 0 and 1        | `predicted NAME` for every label; for a single label also the last two |
|                | columns of classes                                                     |
| units of texts | `predicted label`, a string with the label of every unit               |"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from exlm.errors import note
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import LabelType
from exlm.tasks.rows.table import TextTable
from exlm.tasks.rows.units import spell_labels
from exlm.tasks.tables.certainty import class_sets


def prediction_titles(saved_task: SavedTask) -> list[str]:
    return [f"predicted {name}" for name in saved_task.prediction_names]


def note_class_called_class(names: Sequence[str], label_type: LabelType) -> None:
    """Says where the predicted class of a row is, if a label or class of these `names` takes the
    title `predicted class` for its probability."""
    if label_type.class_per_row and "class" in names:
        note(
            "'predicted class' is the probability of what is called 'class'; which class is the "
            "most probable is in the column 'most probable class'"
        )


def prediction_columns(
    saved_task: SavedTask, predictions_of_models: Sequence[np.ndarray], table: TextTable
) -> dict[str, Any]:
    """The columns for the predictions of one or several models, each [rows, classes or labels] or
    of units [rows, units, classes]: their mean and, of several models, the standard deviation."""
    means = np.mean(predictions_of_models, 0)
    label_type = saved_task.label_type
    if label_type.of_units:
        names = saved_task.prediction_names
        return {"predicted label": spell_labels(means, table.texts, names, saved_task.unit_pattern)}
    titles = prediction_titles(saved_task)
    columns = dict[str, Any]()
    for output, title in enumerate(titles):
        columns[title] = means[:, output]
        if len(predictions_of_models) > 1:
            of_models = [predictions[:, output] for predictions in predictions_of_models]
            # A label may be called `NAME std`.
            std = "std over seeds" if f"{title} std" in titles else "std"
            columns[f"{title} {std}"] = np.std(of_models, 0, ddof=1)
    if label_type.class_per_row:
        # A label or a class may be called `class`.
        title = "most probable class" if "predicted class" in columns else "predicted class"
        columns[title] = _most_probable_classes(saved_task, means)
        columns["confidence"] = label_type.class_probabilities(means)[:, 0].max(-1)
    return columns


def _most_probable_classes(saved_task: SavedTask, predictions: np.ndarray) -> np.ndarray:
    best = saved_task.label_type.most_probable(predictions)[:, 0]
    classes = np.array(_class_values(saved_task), dtype=object)[best]
    classes[np.isnan(predictions[:, 0])] = None
    return classes


def _class_values(saved_task: SavedTask) -> list[str | int]:
    """The classes as cells have them: booleans if their names are False and True, else numbers if
    all are whole numbers, else their names."""
    names = saved_task.label_names or ["0", "1"]
    if names == ["False", "True"]:
        return [False, True]
    if all(re.fullmatch(r"0|-?[1-9]\d{0,17}", str(name)) for name in names):
        return [int(name) for name in names]
    return list(names)


def bound_columns(
    saved_task: SavedTask, predictions: np.ndarray, margins: np.ndarray
) -> dict[str, Any]:
    """The columns for the bounds of predicted numbers or the sets of possible classes, if the
    errors of `predictions` [rows, classes or labels] are at most the `margins` [labels]."""
    label_columns = saved_task.label_columns
    if saved_task.label_type.class_per_row:
        probabilities = saved_task.label_type.class_probabilities(predictions)[:, 0]
        sets = class_sets(probabilities, margins[0], _class_values(saved_task))
        return {f"set {label_columns[0]}": sets}
    columns = {}
    for name, numbers, margin in zip(label_columns, predictions.T, margins, strict=True):
        columns[f"lower {name}"] = numbers - margin
        columns[f"upper {name}"] = numbers + margin
    return columns
