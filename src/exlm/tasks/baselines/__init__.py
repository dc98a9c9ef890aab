"""Simple and well-known models on the same data, splits, seeds and metrics as ours.

A baseline is a file with a function `fit_predict` and its `Baseline` (`base.py`), which is named
here. Those of scikit-learn learn in this process (`estimators.py`). A program runs in a Python
environment of its own (`programs.py`)."""

from exlm.tasks.baselines import attentivefp, chemprop, linear, neighbours, random_forest, words
from exlm.tasks.baselines.base import Baseline

BASELINES: dict[str, Baseline] = {
    "ecfp-rf": random_forest.BASELINE,
    "ecfp-knn": neighbours.BASELINE,
    "ecfp-lr": linear.BASELINE,
    "chemprop": chemprop.BASELINE,
    "attentivefp": attentivefp.BASELINE,
    "tfidf-lr": words.BASELINE,
}
