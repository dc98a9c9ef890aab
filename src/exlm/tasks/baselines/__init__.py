"""Simple and well-known models on the same data, splits, seeds and metrics as ours.

A baseline is a function from `BaselineInputs` to predictions, and the `Baseline` that describes it
(`base.py`); here it gets its name. Models of scikit-learn (`estimators.py`) learn in this process.
A program (`programs.py`) runs in a Python environment of its own."""

from exlm.tasks.baselines import estimators, programs
from exlm.tasks.baselines.base import Baseline

BASELINES: dict[str, Baseline] = {
    "ecfp-rf": estimators.ECFP_FOREST,
    "ecfp-knn": estimators.ECFP_NEIGHBOURS,
    "ecfp-lr": estimators.ECFP_LINEAR,
    "chemprop": programs.CHEMPROP,
    "attentivefp": programs.ATTENTIVEFP,
    "tfidf-lr": estimators.TFIDF_LINEAR,
}
