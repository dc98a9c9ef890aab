"""`ecfp-knn`: the labels of the most similar molecules."""

import numpy as np

from exlm.data.chemistry import BITS, RADIUS
from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.estimators import ecfp

NEIGHBOURS = 5
BLOCK = 1024  # rows whose neighbours are searched at once


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """The mean label of the nearest labelled molecules of the train part, weighted by their
    Tanimoto similarity."""
    bits = ecfp(inputs.texts).astype(np.float32)
    train_labels = inputs.labels[inputs.train]
    if inputs.label_type.has_classes:
        train_labels = (train_labels == np.arange(inputs.outputs)).astype(float)
    predictions = np.zeros((len(bits), inputs.outputs))
    for block in np.array_split(np.arange(len(bits)), len(bits) // BLOCK + 1):
        similarity = tanimoto(bits[block], bits[inputs.train])
        for column, labels in enumerate(train_labels.T):
            predictions[block, column] = weighted_mean(labels, similarity)
    return predictions


def tanimoto(bits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The similarity [rows, others] of two sets of fingerprints [..., BITS]: the share of bits that
    both have, of those that one of them has."""
    shared = bits @ others.T
    return shared / np.maximum(bits.sum(1)[:, None] + others.sum(1) - shared, 1)


def weighted_mean(labels: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """For every row of a similarity [rows, others], the mean over its nearest labelled ones of the
    labels [others]."""
    labelled = np.flatnonzero(~np.isnan(labels))
    count = min(NEIGHBOURS, len(labelled))
    order = np.argpartition(-similarity[:, labelled], count - 1, axis=1)
    nearest = labelled[order[:, :count]]
    # Where no neighbour has anything in common with the row, all of them count alike.
    weights = np.take_along_axis(similarity, nearest, 1) + 1e-6
    return np.average(labels[nearest], axis=1, weights=weights)


SETTINGS = {"radius": RADIUS, "bits": BITS, "neighbours": NEIGHBOURS}
BASELINE = Baseline(fit_predict, molecules=True, settings=SETTINGS)
