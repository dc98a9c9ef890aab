"""How sure predictions are: how far probabilities are from how often they are right, a temperature
that brings them closer, and split conformal prediction (Vovk et al., 2005), which gives intervals
of numbers and sets of classes that contain the label of a new row with a given probability, if the
row is drawn as the validation rows were."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from exlm.errors import InputError
from exlm.tasks.label_types import LABEL_TYPES
from exlm.tasks.saved_task import SavedTask, SeedModel

BINS = 15  # of the calibration error
# quantiles that are kept of more errors than this: a level is rounded up to the next 0.005
MOST_KEPT = 199
HIGHEST_LEVEL = MOST_KEPT / (MOST_KEPT + 1)


def fit_temperature(logits: np.ndarray, labels: np.ndarray, predicts_every_class: bool) -> float:
    """The divisor of logits [rows, outputs], 0.05 to 20, that makes the labels most probable (Guo
    et al., 2017). Labels as for `calibration_error`."""

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if predicts_every_class:
            return float(-np.take_along_axis(log_softmax(scaled, 1), labels.astype(int), 1).mean())
        return float(np.nanmean(np.logaddexp(0, scaled) - labels * scaled))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def calibration_error(
    labels: np.ndarray, probabilities: np.ndarray, predicts_every_class: bool
) -> float:
    """The expected calibration error: by how much confidence, which is the probability of the
    predicted class, and accuracy differ, on average over 15 bins of equal width. With classes,
    labels are their indices [rows, 1], and probabilities [rows, classes]. Else both are [rows,
    labels], where NaN is a missing label, and the result is the mean over the labels. NaN if there
    is no label."""
    if predicts_every_class:
        confidence = probabilities.max(1, keepdims=True)
        is_right = probabilities.argmax(1)[:, None] == labels
    else:
        confidence = np.maximum(probabilities, 1 - probabilities)
        is_right = (probabilities >= 0.5) == (labels == 1)
    errors = []
    for of_label, sureness, right in zip(labels.T, confidence.T, is_right.T, strict=True):
        labelled = ~np.isnan(of_label)
        if labelled.any():
            errors.append(_difference_in_bins(sureness[labelled], right[labelled]))
    return float(np.mean(errors)) if errors else float("nan")


def _difference_in_bins(confidence: np.ndarray, is_right: np.ndarray) -> float:
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    # per bin: |sum of confidence - number of right ones|
    bin_differences = np.abs(np.bincount(bins, weights=confidence - is_right))
    return float(bin_differences.sum() / len(confidence))


def conformal_errors(
    labels: np.ndarray, predictions: np.ndarray, predicts_every_class: bool
) -> np.ndarray:
    """How far predictions are from the labels [rows, labels]: absolute errors of numbers, 1 - the
    probability of the true class, in one column; NaN for missing labels. Labels and predictions as
    for `score_predictions`."""
    if predicts_every_class:
        return 1 - np.take_along_axis(predictions, labels.astype(int), 1)
    return np.abs(labels - predictions)


def is_within(
    labels: np.ndarray, predictions: np.ndarray, margins: np.ndarray, predicts_every_class: bool
) -> np.ndarray:
    """Whether the errors of predictions are at most the `margins` [labels]: 1 or 0 [rows, labels],
    NaN for missing labels."""
    errors = conformal_errors(labels, predictions, predicts_every_class)
    return np.where(np.isnan(errors), np.nan, errors <= margins)


def errors_to_keep(errors: np.ndarray) -> list[list[float]]:
    """For every label the sorted errors of the validation rows [rows, labels], or MOST_KEPT
    quantiles of more."""
    kept = []
    for column in errors.T:
        ordered = np.sort(column[~np.isnan(column)])
        if len(ordered) > MOST_KEPT:
            levels = np.arange(1, MOST_KEPT + 1) / (MOST_KEPT + 1)
            ordered = ordered[[_rank(level, len(ordered)) - 1 for level in levels]]
        kept.append(ordered.tolist())
    return kept


def conformal_margins(model: SeedModel, level: float) -> np.ndarray:
    """For every label the error that is not exceeded with probability `level`: [labels]. InputError
    if the model keeps no errors, or too few for the level."""
    if not 0 < level <= HIGHEST_LEVEL:
        raise InputError(f"interval is {level}; it must be over 0 and at most {HIGHEST_LEVEL}")
    label_type = LABEL_TYPES[model.saved["task_type"]]
    if not (label_type.is_number or label_type.class_per_row):
        raise InputError(
            "interval is for numbers and one class a row, but the labels of "
            f"{model.directory} are {model.saved['task_type']}; leave it out"
        )
    if "validation_errors" not in model.saved:
        raise InputError(
            f"{model.directory} keeps no errors of validation rows, which interval needs; "
            "fine-tune it with this version, or leave interval out"
        )
    margins = []
    for label, errors in zip(
        model.saved["label_columns"], model.saved["validation_errors"], strict=True
    ):
        rank = _rank(level, len(errors))
        if rank > len(errors):
            least = math.ceil(round(level / (1 - level), 9))
            raise InputError(
                f"{model.directory} was fine-tuned with {len(errors)} validation rows that have "
                f"the label {label!r}, and an interval of {level} needs {least}; lower it, or "
                "fine-tune again with more"
            )
        margins.append(errors[rank - 1])
    return np.array(margins)


def _rank(level: float, count: int) -> int:
    """Which of `count` sorted errors, from 1, another one does not exceed with probability
    `level`; over `count` if none of them is large enough."""
    return math.ceil(round(level * (count + 1), 9))


def conformal_columns(
    predictions: np.ndarray, margins: np.ndarray, saved: SavedTask
) -> dict[str, Any]:
    """The columns to add to predictions [rows, outputs]: bounds of numbers, or a JSON list of the
    classes in each set, which may be empty."""
    if LABEL_TYPES[saved["task_type"]].is_number:
        columns = {}
        for i, name in enumerate(saved["label_columns"]):
            columns[f"lower {name}"] = predictions[:, i] - margins[i]
            columns[f"upper {name}"] = predictions[:, i] + margins[i]
        return columns
    shares = predictions if saved["classes"] else np.hstack([1 - predictions, predictions])
    names: Sequence[str | int] = saved["classes"] or saved.get("words") or [0, 1]
    sets = []
    for row in shares:
        members = [name for name, share in zip(names, row, strict=True) if 1 - share <= margins[0]]
        sets.append(None if np.isnan(row).any() else json.dumps(members, ensure_ascii=False))
    return {f"set {saved['label_columns'][0]}": sets}
