"""`ecfp-rf`: random forests on the fingerprints of molecules."""

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from exlm.data.chemistry import BITS, RADIUS
from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.estimators import ecfp, one_model_per_label

TREES = 500


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """Predictions of random forests whose splits look at as many bits as Breiman (2001) advises."""
    if inputs.label_type.is_number:
        model = RandomForestRegressor(max_features=1 / 3)
    else:
        model = RandomForestClassifier(max_features="sqrt")
    model.set_params(n_estimators=TREES, random_state=inputs.seed, n_jobs=-1)
    return one_model_per_label(inputs, ecfp(inputs.texts), model)


SETTINGS = {"radius": RADIUS, "bits": BITS, "trees": TREES}
BASELINE = Baseline(fit_predict, molecules=True, settings=SETTINGS)
