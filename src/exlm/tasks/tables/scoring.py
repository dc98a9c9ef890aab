"""How the predictions of several models for a table with labels are scored."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import LABEL_TYPES, Probabilities
from exlm.tasks.labels.scores import confusion, score_classes, score_labels, score_predictions
from exlm.tasks.rows.predictions import Predictions
from exlm.tasks.tables.certainty import calibration_error, is_within

ENSEMBLE = "ensemble"  # the mean of several models, among their names


def scored(
    predictions: Predictions,
    *,
    saved_task: SavedTask,
    usable: np.ndarray,
    labels: np.ndarray,
    by_model: Mapping[str, np.ndarray],
    margins: Mapping[str, np.ndarray],
) -> Predictions:
    """The `predictions` of a table with how those of every model are scored.

    `usable` [rows] bool says which rows have predictions; `labels` are as for `score_predictions`.
    `by_model` has the predictions [rows, outputs] of every model, `margins` those of intervals
    [labels], by the name of the model, of several also of ENSEMBLE; {} without intervals."""
    label_type = LABEL_TYPES[saved_task.task_type]
    class_names = saved_task.class_names
    labelled = np.flatnonzero(usable & ~np.isnan(labels).all(1))
    means = np.mean(list(by_model.values()), 0)
    if len(by_model) > 1:
        by_model = {ENSEMBLE: means, **by_model}
    truths = labels[labelled]
    predicted = means[labelled]
    label_scores = score_labels(label_type, saved_task.label_columns, truths, predicted)
    if label_scores and margins:
        is_right = is_within(label_type.errors(truths, predicted), margins[ENSEMBLE])
        shares = pd.DataFrame(is_right).mean()
        for name, share in zip(label_scores, shares, strict=True):
            label_scores[name]["coverage"] = float(share)
    predictions = replace(
        predictions,
        scorers={
            name: partial(score_rows, saved_task, labels, of_model, margins.get(name))
            for name, of_model in by_model.items()
        },
        labelled=labelled,
        label_scores=label_scores,
    )
    if not class_names:
        return predictions
    return replace(
        predictions,
        class_scores=score_classes(label_type, truths, predicted, class_names),
        confusion=confusion(label_type, truths, predicted, class_names),
    )


def score_rows(
    saved_task: SavedTask,
    labels: np.ndarray,
    predictions: np.ndarray,
    margins: np.ndarray | None,
    rows: np.ndarray,
) -> dict[str, float]:
    """The scores on some rows of predictions [all rows, outputs]: all metrics of the task, the
    calibration error of probabilities, and with `margins` [labels] the coverage, which is the share
    of errors within them."""
    label_type = LABEL_TYPES[saved_task.task_type]
    labels = labels[rows]
    predictions = predictions[rows]
    scores = score_predictions(
        label_type,
        labels,
        predictions,
        error_units=saved_task.error_units,
        class_names=saved_task.class_names,
    )
    if isinstance(label_type, Probabilities):
        truths, probabilities = label_type.as_rows(labels, predictions)
        scores["calibration_error"] = calibration_error(label_type, truths, probabilities)
    if margins is not None:
        is_right = is_within(label_type.errors(labels, predictions), margins)
        scores["coverage"] = float(np.nanmean(is_right))
    return scores
