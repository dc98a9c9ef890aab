"""Baselines of scikit-learn: random forests, nearest neighbours and linear models on the
fingerprints of molecules, and linear models on words."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from exlm.data.chemistry import fingerprints
from exlm.data.spelling import Spelling
from exlm.errors import InputError
from exlm.tasks.baselines.fit_inputs import FitInputs, protein_letters

Features: TypeAlias = np.ndarray | sparse.csr_matrix  # [rows, features]

TREES = 500
NEIGHBOURS = 5
BLOCK = 1024  # rows whose neighbours are searched at once
# C of linear models, the inverse of the strength of regularisation
C_VALUES = (0.01, 0.1, 1.0, 10.0, 100.0)
TFIDF_WORD = r"\w+|[^\w\s]"


def fit_forest(inputs: FitInputs) -> np.ndarray:
    """Predictions of random forests whose splits look at as many bits as Breiman (2001) advises."""
    if inputs.label_type.is_number:
        estimator = RandomForestRegressor(max_features=1 / 3)
    else:
        estimator = RandomForestClassifier(max_features="sqrt")
    estimator.set_params(n_estimators=TREES, random_state=inputs.seed, n_jobs=-1)
    return one_model_per_label(inputs, ecfp(inputs.texts), estimator)


def fit_neighbours(inputs: FitInputs) -> np.ndarray:
    """The mean label of the nearest labelled molecules of the train part, weighted by their
    Tanimoto similarity."""
    bits = ecfp(inputs.texts).astype(np.float32)
    train_bits = bits[inputs.train]
    train_labels = inputs.labels[inputs.train]
    if inputs.label_type.has_classes:
        train_labels = (train_labels == np.arange(inputs.outputs)).astype(float)
    predictions = np.zeros((len(bits), inputs.outputs))
    for block in np.array_split(np.arange(len(bits)), len(bits) // BLOCK + 1):
        similarity = _tanimoto(bits[block], train_bits)
        for column, labels in enumerate(train_labels.T):
            predictions[block, column] = _weighted_mean(labels, similarity)
    return predictions


def fit_linear_to_molecules(inputs: FitInputs) -> np.ndarray:
    """Predictions from fingerprints."""
    features = sparse.csr_matrix(ecfp(inputs.texts), dtype=np.float64)
    return best_linear_model(inputs, features)


def fit_linear_to_words(inputs: FitInputs) -> np.ndarray:
    """Predictions from TF-IDF of the words and pairs of words in train or, for proteins, of up to
    three letters, without the `*` at their end. Two texts have the features of each, their
    differences and their products. An accent is a part of its letter, however a file encodes it
    (NFC)."""
    columns = [inputs.texts] if inputs.pairs is None else [inputs.texts, inputs.pairs]
    letters = protein_letters([texts[row] for texts in columns for row in inputs.train])
    spelling = Spelling(tokenizer=letters)
    columns = [list(map(spelling.as_compared, texts)) for texts in columns]
    train_texts = [texts[row] for texts in columns for row in inputs.train]
    if letters:
        vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    else:
        vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, token_pattern=TFIDF_WORD
        )
    vectorizer.fit(train_texts)
    features = [vectorizer.transform(texts) for texts in columns]
    if inputs.pairs is None:
        return best_linear_model(inputs, features[0])
    first, second = features
    features_of_pairs = sparse.hstack([first, second, abs(first - second), first.multiply(second)])
    return best_linear_model(inputs, features_of_pairs.tocsr())


def ecfp(smiles: Sequence[str]) -> np.ndarray:
    """The fingerprints of molecules: [rows, BITS] of 0 and 1. InputError if RDKit cannot parse
    one."""
    rows = []
    for text, bits in zip(smiles, fingerprints(smiles), strict=True):
        if bits is None:
            raise InputError(f"{text!r} is no molecule, and ECFP needs molecules; leave it out")
        rows.append(bits.ToList())
    return np.array(rows, dtype=np.uint8)


def best_linear_model(inputs: FitInputs, features: Features) -> np.ndarray:
    """Predictions [rows, outputs] of logistic (for numbers ridge) regressions, by the first of
    C_VALUES that is best on valid."""
    estimators: list[BaseEstimator]
    if inputs.label_type.is_number:
        estimators = [Ridge(alpha=1 / c) for c in C_VALUES]
    else:
        estimators = [LogisticRegression(C=c, max_iter=2000) for c in C_VALUES]
    predictions = [one_model_per_label(inputs, features, estimator) for estimator in estimators]
    return max(predictions, key=inputs.goodness_on_valid)


def one_model_per_label(
    inputs: FitInputs, features: Features, estimator: BaseEstimator
) -> np.ndarray:
    """Predictions [rows, outputs] of copies of an estimator, each fitted to the labelled rows of
    one label column in the train part."""
    columns = []
    for labels in inputs.labels.T:
        rows = inputs.train[~np.isnan(labels[inputs.train])]
        model = _fit(estimator, features[rows], labels[rows])
        if inputs.label_type.is_number:
            columns.append(model.predict(features)[:, None])
            continue
        has_classes = inputs.label_type.has_classes
        probabilities = np.zeros((features.shape[0], inputs.outputs if has_classes else 2))
        # 0 for classes that the train part lacks
        probabilities[:, model.classes_.astype(int)] = model.predict_proba(features)
        columns.append(probabilities if has_classes else probabilities[:, 1:])
    return np.hstack(columns)


def _fit(estimator: BaseEstimator, features: Features, labels: np.ndarray) -> Any:
    """A fitted copy of an estimator. A classifier of a single class, which some refuse to learn,
    always predicts it."""
    has_single_class = is_classifier(estimator) and np.ptp(labels) == 0
    model = (DummyClassifier() if has_single_class else clone(estimator)).fit(features, labels)
    if hasattr(model, "estimators_"):
        # Threads would add up the trees in any order, and the last bits would differ.
        model.n_jobs = 1
    return model


def _tanimoto(bits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The similarity [rows, others] of two sets of fingerprints [..., BITS]: how many bits both
    have, divided by how many at least one of them has."""
    shared = bits @ others.T
    return shared / np.maximum(bits.sum(1)[:, None] + others.sum(1) - shared, 1)


def _weighted_mean(labels: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """[rows] the mean of the labels [others] of the nearest rows that have one, by `similarity`
    [rows, others]."""
    labelled_rows = np.flatnonzero(~np.isnan(labels))
    count = min(NEIGHBOURS, len(labelled_rows))
    order = np.argpartition(-similarity[:, labelled_rows], count - 1, axis=1)
    nearest = labelled_rows[order[:, :count]]
    # Where no neighbour has anything in common with the row, all of them count alike.
    weights = np.take_along_axis(similarity, nearest, 1) + 1e-6
    return np.average(labels[nearest], axis=1, weights=weights)
