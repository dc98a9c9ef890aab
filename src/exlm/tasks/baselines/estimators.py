"""Models of scikit-learn, one for each label column of a table, and the features of molecules."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.dummy import DummyClassifier

from exlm.data.chemistry import fingerprints
from exlm.errors import InputError
from exlm.tasks.baselines.base import BaselineInputs

Features: TypeAlias = np.ndarray | sparse.csr_matrix  # [rows, features]


def ecfp(smiles: Sequence[str]) -> np.ndarray:
    """The fingerprints of molecules: [rows, BITS] of 0 and 1. InputError if RDKit cannot parse
    one."""
    rows = []
    for text, bits in zip(smiles, fingerprints(smiles), strict=True):
        if bits is None:
            raise InputError(f"{text!r} is no molecule, and ECFP needs molecules; leave it out")
        rows.append(bits.ToList())
    return np.array(rows, dtype=np.uint8)


def one_model_per_label(
    inputs: BaselineInputs, features: Features, model: BaseEstimator
) -> np.ndarray:
    """Predictions [rows, outputs] of copies of a model, each fitted to the labelled rows of one
    label column in the train part."""
    columns = []
    for labels in inputs.labels.T:
        rows = inputs.train[~np.isnan(labels[inputs.train])]
        fitted = _fit(model, features[rows], labels[rows])
        if inputs.label_type.is_number:
            columns.append(fitted.predict(features)[:, None])
        elif inputs.label_type.has_classes:
            columns.append(_probabilities(fitted, features, inputs.outputs))
        else:
            columns.append(_probabilities(fitted, features, 2)[:, 1:])
    return np.hstack(columns)


def _fit(model: BaseEstimator, features: Features, labels: np.ndarray) -> Any:
    """A fitted copy of a model. A classifier of a single class, which some models refuse to learn,
    always predicts it."""
    single_class = is_classifier(model) and np.ptp(labels) == 0
    fitted = (DummyClassifier() if single_class else clone(model)).fit(features, labels)
    if hasattr(fitted, "estimators_"):
        # Threads would add up the trees in any order, and the last bits would differ.
        fitted.n_jobs = 1
    return fitted


def _probabilities(classifier: Any, features: Features, classes: int) -> np.ndarray:
    """Probabilities [rows, classes], 0 for those classes that the train part lacks."""
    probabilities = np.zeros((features.shape[0], classes))
    probabilities[:, classifier.classes_.astype(int)] = classifier.predict_proba(features)
    return probabilities
