"""Baselines that learn in this process: fingerprints of molecules, or TF-IDF of texts, and models of scikit-learn.

Each is a function from a Problem to predictions [rows, outputs].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from exlm.tasks.applicability import fingerprints
from exlm.tasks.table import TaskType

TREES, NEIGHBOURS = 500, 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # C of linear models, the inverse of the strength of regularisation
BLOCK = 1024  # rows whose neighbours are searched at once


@dataclass(frozen=True)
class Problem:
    """What a baseline learns from, and what it has to predict."""

    texts: list[str]  # [rows] SMILES or texts; all of them are predicted
    pairs: list[str] | None  # [rows] the second texts, if the task is on pairs
    labels: np.ndarray  # [rows, tasks], classes as indices [rows, 1]; NaN: missing, or in neither train nor valid
    train: np.ndarray  # numbers of the rows to learn from; every task has a label there
    valid: np.ndarray  # numbers of the rows that choose the epoch or the strength of regularisation
    task_type: TaskType
    outputs: int  # predictions for a row: classes for multiclass, tasks for all others
    score: Callable[[np.ndarray], float]  # how good predictions [rows, outputs] are on valid; higher is better
    seed: int
    log: Path  # what a program of its own says
    python: Path | None  # the Python that runs such a program


def random_forest(problem: Problem) -> np.ndarray:
    """Random forests on fingerprints. A split looks at the square root of the number of bits, or for regression at a
    third of the bits, as Breiman (2001) advises."""
    regression = problem.task_type == "regression"
    model = RandomForestRegressor(max_features=1 / 3) if regression else RandomForestClassifier(max_features="sqrt")
    model.set_params(n_estimators=TREES, random_state=problem.seed, n_jobs=-1)
    return _best(problem, ecfp(problem), [model])


def linear(problem: Problem) -> np.ndarray:
    """Logistic regressions on fingerprints or, for numbers, ridge regressions."""
    return _best(problem, sparse.csr_matrix(ecfp(problem), dtype=np.float64), _linear_models(problem))


def linear_on_words(problem: Problem) -> np.ndarray:
    """Logistic (for numbers ridge) regressions on TF-IDF of words and pairs of words, as in the train part. Of two
    texts: the features of each, their differences and their products."""
    texts = [problem.texts] if problem.pairs is None else [problem.texts, problem.pairs]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    vectorizer.fit([column[row] for column in texts for row in problem.train])
    first, *second = (vectorizer.transform(column) for column in texts)
    features = [first, *(part for s in second for part in (s, abs(first - s), first.multiply(s)))]
    return _best(problem, sparse.hstack(features).tocsr(), _linear_models(problem))


def neighbours(problem: Problem) -> np.ndarray:
    """The mean label of the nearest labelled molecules of the train part, weighted by their Tanimoto similarity."""
    bits = ecfp(problem).astype(np.float32)
    size, train = bits.sum(1), problem.train
    targets = problem.labels[train]
    if problem.task_type == "multiclass":
        targets = (targets == np.arange(problem.outputs)).astype(float)
    result = np.zeros((len(bits), problem.outputs))
    for rows in np.array_split(np.arange(len(bits)), len(bits) // BLOCK + 1):
        shared = bits[rows] @ bits[train].T
        similarity = shared / np.maximum(size[rows, None] + size[train] - shared, 1)  # [block, train rows]
        for task, labels in enumerate(targets.T):
            known = np.flatnonzero(~np.isnan(labels))
            k = min(NEIGHBOURS, len(known))
            nearest = known[np.argpartition(-similarity[:, known], k - 1, axis=1)[:, :k]]
            weights = np.take_along_axis(similarity, nearest, 1) + 1e-6  # nothing in common: all count alike
            result[rows, task] = np.average(labels[nearest], axis=1, weights=weights)
    return result


def ecfp(problem: Problem) -> np.ndarray:
    """The fingerprints of molecules that RDKit can parse: [rows, BITS] of 0 and 1."""
    found = [one.ToBitString().encode() for one in fingerprints(problem.texts) if one is not None]
    return np.array([np.frombuffer(digits, dtype=np.uint8) for digits in found]) - ord("0")


def _linear_models(problem: Problem) -> list[BaseEstimator]:
    if problem.task_type == "regression":
        return [Ridge(alpha=1 / strength) for strength in STRENGTHS]
    return [LogisticRegression(C=strength, max_iter=2000) for strength in STRENGTHS]


def _best(problem: Problem, features: Any, models: Sequence[BaseEstimator]) -> np.ndarray:
    """Predictions from `features` [rows, features] by the model that is best on valid; of equal ones the first."""
    return max((_one_model_per_task(problem, features, model) for model in models), key=problem.score)


def _one_model_per_task(problem: Problem, features: Any, model: BaseEstimator) -> np.ndarray:
    """Predictions [rows, outputs] of copies of a model, each fitted to one task's labelled rows of the train part."""
    columns = []
    for labels in problem.labels.T:
        rows = problem.train[~np.isnan(labels[problem.train])]
        several = problem.task_type == "regression" or np.ptp(labels[rows]) > 0  # some models refuse a single class
        fitted = (clone(model) if several else DummyClassifier()).fit(features[rows], labels[rows])
        if hasattr(fitted, "estimators_"):
            fitted.n_jobs = 1  # threads would add up the trees in any order, and the last bits would differ
        if problem.task_type == "regression":
            columns.append(fitted.predict(features)[:, None])
            continue
        probabilities = np.zeros((len(labels), problem.outputs if problem.task_type == "multiclass" else 2))
        probabilities[:, fitted.classes_.astype(int)] = fitted.predict_proba(features)
        columns.append(probabilities if problem.task_type == "multiclass" else probabilities[:, 1:])
    return np.hstack(columns)
