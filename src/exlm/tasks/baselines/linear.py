"""`ecfp-lr`: linear models on the fingerprints of molecules."""

import numpy as np
from scipy import sparse

from exlm.data.chemistry import BITS, RADIUS
from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.estimators import STRENGTHS, best_linear_model, ecfp


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """Predictions of logistic or, for numbers, ridge regressions."""
    features = sparse.csr_matrix(ecfp(inputs.texts), dtype=np.float64)
    return best_linear_model(inputs, features)


SETTINGS = {"radius": RADIUS, "bits": BITS, "strengths": STRENGTHS}
BASELINE = Baseline(fit_predict, molecules=True, settings=SETTINGS)
