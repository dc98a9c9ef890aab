"""How predictions for a table with labels are scored."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import Probabilities
from exlm.tasks.labels.scores import confusion, score_classes, score_labels, score_predictions
from exlm.tasks.tables.certainty import calibration_error, is_within
from exlm.tasks.tables.predictions import Scores

ENSEMBLE = "ensemble"  # the mean of several models, among their names


def scores_of(
    saved_task: SavedTask,
    labels: np.ndarray,
    rows: np.ndarray,
    by_model: Mapping[str, np.ndarray],
    margins: Mapping[str, np.ndarray],
    in_training: int | None,
    unknown_labels: int,
) -> Scores:
    """How the predictions of every model are scored on the `rows` that have labels, which are as
    for `score_predictions`. `by_model` has the predictions [all rows, outputs], `margins` those of
    intervals [labels], by the name of the model, of several also of ENSEMBLE; {} without
    intervals. `in_training` and `unknown_labels` are counts for `Scores`."""
    label_type = saved_task.label_type
    class_names = saved_task.class_names
    means = np.mean(list(by_model.values()), 0)
    if len(by_model) > 1:
        by_model = {ENSEMBLE: means, **by_model}
    truths = labels[rows]
    predicted = means[rows]
    of_labels = score_labels(label_type, saved_task.label_columns, truths, predicted)
    if of_labels and margins:
        is_right = is_within(label_type.errors(truths, predicted), margins[ENSEMBLE])
        for name, share in zip(of_labels, pd.DataFrame(is_right).mean(), strict=True):
            of_labels[name]["coverage"] = float(share)
    scorers = {
        name: partial(evaluate_rows, saved_task, labels, of_model, margins.get(name))
        for name, of_model in by_model.items()
    }
    scores = Scores(scorers, rows, in_training, unknown_labels, of_labels)
    if not class_names:
        return scores
    return replace(
        scores,
        classes=score_classes(label_type, truths, predicted, class_names),
        confusion=confusion(label_type, truths, predicted, class_names),
    )


def score_rows(
    saved_task: SavedTask,
    labels: np.ndarray,
    predictions: np.ndarray,
    rows: np.ndarray,
    metrics: Sequence[str] | None = None,
) -> dict[str, float]:
    """The scores on some rows of labels and predictions of all rows: those of `score_predictions`,
    with the error units of the task, by some `metrics` or all."""
    return score_predictions(
        saved_task.label_type,
        labels[rows],
        predictions[rows],
        error_units=saved_task.error_units,
        metrics=metrics,
        class_names=saved_task.class_names,
    )


def evaluate_rows(
    saved_task: SavedTask,
    labels: np.ndarray,
    predictions: np.ndarray,
    margins: np.ndarray | None,
    rows: np.ndarray,
) -> dict[str, float]:
    """The scores of `score_rows`, the calibration error of probabilities, and with `margins`
    [labels] the coverage, which is the share of errors within them."""
    label_type = saved_task.label_type
    scores = score_rows(saved_task, labels, predictions, rows)
    labels = labels[rows]
    predictions = predictions[rows]
    if isinstance(label_type, Probabilities):
        truths, probabilities = label_type.as_rows(labels, predictions)
        scores["calibration_error"] = calibration_error(label_type, truths, probabilities)
    if margins is not None:
        is_right = is_within(label_type.errors(labels, predictions), margins)
        scores["coverage"] = float(np.nanmean(is_right))
    return scores
