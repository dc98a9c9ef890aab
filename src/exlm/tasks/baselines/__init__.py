"""Simple and well-known models on the same data, splits, seeds and metrics as ours.

A baseline is a file with a function from `BaselineInputs` to predictions, and the `Baseline` that
describes it (`base.py`); here it gets its name. Models of scikit-learn learn in this process. A
program runs in a Python environment of its own (`programs.py`)."""

from exlm.tasks.baselines import attentivefp, chemprop, linear, neighbours, random_forest
from exlm.tasks.baselines.base import Baseline

BASELINES: dict[str, Baseline] = {
    "ecfp-rf": random_forest.BASELINE,
    "ecfp-knn": neighbours.BASELINE,
    "ecfp-lr": linear.ECFP,
    "chemprop": chemprop.BASELINE,
    "attentivefp": attentivefp.BASELINE,
    "tfidf-lr": linear.TFIDF,
}
