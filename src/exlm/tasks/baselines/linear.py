"""`ecfp-lr` and `tfidf-lr`: linear models on the fingerprints of molecules, and on words."""

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from exlm.data.chemistry import BITS, RADIUS
from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.estimators import Features, ecfp, one_model_per_label

# C of linear models, the inverse of the strength of regularisation
C_VALUES = (0.01, 0.1, 1.0, 10.0, 100.0)
WORD = r"\w+|[^\w\s]"


def fit_predict_molecules(inputs: BaselineInputs) -> np.ndarray:
    """Predictions from fingerprints."""
    features = sparse.csr_matrix(ecfp(inputs.texts), dtype=np.float64)
    return best_linear_model(inputs, features)


def fit_predict_texts(inputs: BaselineInputs) -> np.ndarray:
    """Predictions from TF-IDF of words and pairs of words, as in the train part. Of two texts: the
    features of each, their differences and their products."""
    columns = [inputs.texts] if inputs.pairs is None else [inputs.texts, inputs.pairs]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD)
    vectorizer.fit([texts[row] for texts in columns for row in inputs.train])
    first = vectorizer.transform(inputs.texts)
    if inputs.pairs is None:
        return best_linear_model(inputs, first)
    second = vectorizer.transform(inputs.pairs)
    features = sparse.hstack([first, second, abs(first - second), first.multiply(second)])
    return best_linear_model(inputs, features.tocsr())


def best_linear_model(inputs: BaselineInputs, features: Features) -> np.ndarray:
    """Predictions [rows, outputs] of logistic (for numbers ridge) regressions, with that one of
    C_VALUES that is best on valid; of equal ones the first."""
    models: list[BaseEstimator]
    if inputs.label_type.is_number:
        models = [Ridge(alpha=1 / c) for c in C_VALUES]
    else:
        models = [LogisticRegression(C=c, max_iter=2000) for c in C_VALUES]
    predictions = [one_model_per_label(inputs, features, model) for model in models]
    return max(predictions, key=inputs.score)


ECFP_SETTINGS = {"radius": RADIUS, "bits": BITS, "strengths": C_VALUES}
ECFP = Baseline(fit_predict_molecules, molecules=True, settings=ECFP_SETTINGS)
TFIDF = Baseline(fit_predict_texts, molecules=False, settings={"strengths": C_VALUES})
