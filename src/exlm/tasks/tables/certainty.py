"""How sure predictions are.

- The calibration error says how far probabilities are from how often they are right, and a
  temperature brings them closer.
- Split conformal prediction (Vovk et al., 2005) gives bounds of numbers and sets of classes. They
  contain the label of a new row with a given probability, if the row is drawn as the validation
  rows were."""

import json
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from exlm.errors import InputError
from exlm.tasks.labels.label_types import LabelType
from exlm.tasks.tables.seed_models import SeedModel

BINS = 15  # of the calibration error
# Of more errors so many quantiles are kept, so that a level is rounded up to the next 0.005.
MOST_KEPT = 199
HIGHEST_LEVEL = MOST_KEPT / (MOST_KEPT + 1)


def fit_temperature(label_type: LabelType, logits: np.ndarray, labels: np.ndarray) -> float:
    """The divisor of logits [rows, outputs], 0.05 to 20, that makes the labels most probable (Guo
    et al., 2017)."""
    targets = label_type.targets(labels)

    def loss(log_temperature: float) -> float:
        outputs = torch.from_numpy(logits / np.exp(log_temperature))
        total, _ = label_type.loss(outputs, targets)
        return float(total)

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def calibration_error(
    label_type: LabelType, labels: np.ndarray, probabilities: np.ndarray
) -> float:
    """The expected calibration error: by how much confidence and accuracy differ, on average over
    15 bins of equal width. Confidence is the probability of the predicted class.

    Args:
        labels: [rows, labels]; the error is the mean over the columns, NaN if there is no label.
        probabilities: as the `label_type` predicts them."""
    confidence = label_type.class_probabilities(probabilities).max(-1)
    is_right = label_type.most_probable(probabilities) == labels
    errors = []
    for column, is_labelled in enumerate(~np.isnan(labels.T)):
        if is_labelled.any():
            confidence_of_label = confidence[is_labelled, column]
            is_right_of_label = is_right[is_labelled, column]
            errors.append(_difference_in_bins(confidence_of_label, is_right_of_label))
    return float(np.mean(errors)) if errors else float("nan")


def _difference_in_bins(confidence: np.ndarray, is_right: np.ndarray) -> float:
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    # per bin: |sum of confidence - number of right predictions|
    bin_differences = np.abs(np.bincount(bins, weights=confidence - is_right))
    return float(bin_differences.sum() / len(confidence))


def errors_to_keep(errors: np.ndarray) -> list[list[float]]:
    """For every label the sorted errors of the validation rows, from `errors` [rows, labels]; at
    most MOST_KEPT quantiles of them."""
    errors_of_labels = []
    for column in errors.T:
        sorted_errors = np.sort(column[~np.isnan(column)])
        if len(sorted_errors) > MOST_KEPT:
            levels = np.arange(1, MOST_KEPT + 1) / (MOST_KEPT + 1)
            ranks = np.array([_rank(level, len(sorted_errors)) for level in levels])
            sorted_errors = sorted_errors[ranks - 1]
        errors_of_labels.append(sorted_errors.tolist())
    return errors_of_labels


def conformal_margins(model: SeedModel, level: float) -> np.ndarray:
    """[labels] the error that is not exceeded with probability `level`. InputError if the model
    keeps no errors, or too few for the level."""
    if not 0 < level <= HIGHEST_LEVEL:
        raise InputError(f"interval is {level}; it must be over 0 and at most {HIGHEST_LEVEL}")
    label_type = model.saved_task.label_type
    if not (label_type.is_number or label_type.class_per_row):
        raise InputError(
            "interval is for numbers and one class a row, but the labels of "
            f"{model.directory} are {model.saved_task.task_type}; leave it out"
        )
    validation_errors = model.saved_task.validation_errors
    if validation_errors is None:
        raise InputError(
            f"{model.directory} keeps no errors of validation rows, which interval needs "
            "(baselines never do); fine-tune a model with this version, or leave interval out"
        )
    margins = []
    for label, errors in zip(model.saved_task.label_columns, validation_errors, strict=True):
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
    """Which of `count` sorted errors, from 1, another error does not exceed with probability
    `level`; over `count` if none is large enough."""
    return math.ceil(round(level * (count + 1), 9))


def class_sets(
    probabilities: np.ndarray, margin: float, class_names: Sequence[str | int]
) -> list[str | None]:
    """[rows] the possible classes as a JSON list, which may be empty, from the probabilities of all
    classes [rows, classes]; None for a row without a prediction."""
    sets = list[str | None]()
    for row in probabilities:
        shares = zip(class_names, row, strict=True)
        members = [name for name, share in shares if 1 - share <= margin]
        sets.append(None if np.isnan(row).any() else json.dumps(members, ensure_ascii=False))
    return sets
