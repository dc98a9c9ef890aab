"""`attentivefp`: AttentiveFP (Xiong et al., 2020), by the program `attentivefp_program.py`."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.programs import TABLES, run_python

PACKAGES = ("torch-geometric==2.8.1", "torch==2.13.0", "rdkit==2026.9.1")
EPOCHS = 100
SCRIPT = Path(__file__).with_name("attentivefp_program.py")
PREDICTIONS = "predictions.csv"


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """Predictions by the weights of the epoch with the lowest loss on valid."""
    settings = [inputs.task_type, inputs.outputs, inputs.seed, inputs.epochs or EPOCHS]
    arguments = [str(SCRIPT), *TABLES, PREDICTIONS, *map(str, settings)]
    with TemporaryDirectory() as folder:
        run_python(inputs, folder, *arguments)
        return np.loadtxt(Path(folder) / PREDICTIONS, delimiter=",", ndmin=2)


BASELINE = Baseline(fit_predict, molecules=True, settings={}, packages=PACKAGES)
