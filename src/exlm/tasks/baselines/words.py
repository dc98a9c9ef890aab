"""`tfidf-lr`: linear models on the words of texts."""

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.estimators import STRENGTHS, best_linear_model

WORD = r"\w+|[^\w\s]"


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """Predictions of logistic (for numbers ridge) regressions on TF-IDF of words and pairs of
    words, as in the train part. Of two texts: the features of each, their differences and their
    products."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD)
    train_texts = [inputs.texts[row] for row in inputs.train]
    if inputs.pairs:
        train_texts += [inputs.pairs[row] for row in inputs.train]
    vectorizer.fit(train_texts)
    first = vectorizer.transform(inputs.texts)
    if not inputs.pairs:
        return best_linear_model(inputs, first)
    second = vectorizer.transform(inputs.pairs)
    features = sparse.hstack([first, second, abs(first - second), first.multiply(second)])
    return best_linear_model(inputs, features.tocsr())


BASELINE = Baseline(fit_predict, molecules=False, settings={"strengths": STRENGTHS})
