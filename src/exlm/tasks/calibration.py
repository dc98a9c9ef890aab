"""How far probabilities are from how often they are right, and a temperature that brings them
closer."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

BINS = 15  # of the calibration error


def fit_temperature(logits: np.ndarray, labels: np.ndarray, has_classes: bool) -> float:
    """The divisor of logits [rows, outputs], 0.05 to 20, that makes the labels most probable (Guo
    et al., 2017). Labels as for `calibration_error`."""

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if has_classes:
            return float(-np.take_along_axis(log_softmax(scaled, 1), labels.astype(int), 1).mean())
        return float(np.nanmean(np.logaddexp(0, scaled) - labels * scaled))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray, has_classes: bool) -> float:
    """The expected calibration error: by how much confidence, which is the probability of the
    predicted class, and accuracy differ, on average over 15 bins of equal width. With classes,
    labels are their indices [rows, 1], and probabilities [rows, classes]. Else both are [rows,
    labels], where NaN is a missing label. NaN if there is no label."""
    if has_classes:
        confidence = probabilities.max(1)
        right = probabilities.argmax(1) == labels[:, 0]
    else:
        labelled = ~np.isnan(labels)
        labels = labels[labelled]
        probabilities = probabilities[labelled]
        confidence = np.maximum(probabilities, 1 - probabilities)
        right = (probabilities >= 0.5) == (labels == 1)
    if not len(confidence):
        return float("nan")
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    # per bin: |sum of confidence - sum of right|
    bin_differences = np.abs(np.bincount(bins, weights=confidence - right))
    return float(bin_differences.sum() / len(confidence))
