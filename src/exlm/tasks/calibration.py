"""Calibration: probabilities that are right as often as they say (Guo et al., 2017)."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

BINS = 15


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The number between 0.05 and 20 by which logits [rows, outputs] should be divided so that the labels have the
    highest likelihood. Labels are as for `calibration_error`; there must be at least one."""

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if logits.shape[1] > labels.shape[1]:
            return float(-np.take_along_axis(log_softmax(scaled, 1), labels.astype(int), 1).mean())
        return float(np.nanmean(np.logaddexp(0, scaled) - labels * scaled))

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def calibration_error(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """The expected calibration error: by how much confidence and accuracy differ, on average over all predictions.

    Predictions are put into 15 bins of equal width by their confidence, the probability of the predicted class. Labels
    are [rows, 1] class indices with probabilities [rows, classes], or both are [rows, labels], where NaN is a missing
    label and a probability is that of label 1. NaN if there is no label.
    """
    if probabilities.shape[1] > labels.shape[1]:
        confidence, right = probabilities.max(1), probabilities.argmax(1) == labels[:, 0]
    else:
        known = ~np.isnan(labels)
        labels, probabilities = labels[known], probabilities[known]
        confidence, right = np.maximum(probabilities, 1 - probabilities), (probabilities >= 0.5) == (labels == 1)
    if not len(confidence):
        return float("nan")
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(bins, weights=confidence - right)).sum() / len(confidence))
