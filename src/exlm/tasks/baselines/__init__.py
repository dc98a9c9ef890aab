"""Simple and well-known models on the same data, splits, seeds and metrics as ours.

A baseline is a function from `FitInputs` (`fit_inputs.py`) to predictions, which BASELINES
describes and gives a name. Models of scikit-learn (`estimators.py`) learn in this process. A
program (`programs.py`) runs in a Python environment of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exlm.data.chemistry import BITS, RADIUS
from exlm.tasks.baselines import estimators, programs
from exlm.tasks.baselines.fit_inputs import FitInputs


@dataclass(frozen=True)
class Baseline:
    """A model that is trained from nothing on the labelled data alone."""

    fit_predict: Callable[[FitInputs], np.ndarray]  # learns; returns predictions [rows, outputs]
    molecules: bool  # whether it reads molecules; else it reads text
    is_random: bool = True  # whether seeds give different models
    hyper: dict[str, Any] = field(default_factory=dict)  # hyper-parameters, for the results
    # what pip installs for a program, in an environment that the first package names
    packages: tuple[str, ...] = ()


_FINGERPRINT = {"radius": RADIUS, "bits": BITS}
_STRENGTHS = {"strengths": estimators.C_VALUES}
BASELINES = {
    "ecfp-rf": Baseline(
        estimators.fit_forest, molecules=True, hyper=_FINGERPRINT | {"trees": estimators.TREES}
    ),
    "ecfp-knn": Baseline(
        estimators.fit_neighbours,
        molecules=True,
        is_random=False,
        hyper=_FINGERPRINT | {"neighbours": estimators.NEIGHBOURS},
    ),
    "ecfp-lr": Baseline(
        estimators.fit_linear_to_molecules,
        molecules=True,
        is_random=False,
        hyper=_FINGERPRINT | _STRENGTHS,
    ),
    "chemprop": Baseline(
        programs.fit_chemprop, molecules=True, packages=programs.CHEMPROP_PACKAGES
    ),
    "attentivefp": Baseline(
        programs.fit_attentivefp, molecules=True, packages=programs.ATTENTIVEFP_PACKAGES
    ),
    "tfidf-lr": Baseline(
        estimators.fit_linear_to_words, molecules=False, is_random=False, hyper=_STRENGTHS
    ),
}
