"""`chemprop`: the D-MPNN (Yang et al., 2019), by its authors' program."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from exlm.tasks.baselines.base import Baseline, BaselineInputs
from exlm.tasks.baselines.programs import TABLES, run_python

PACKAGES = ("chemprop==2.2.4", "torch==2.13.0", "rdkit==2026.9.1")
EPOCHS = 50
PROGRAM = "from chemprop.cli.main import main; main()"


def fit_predict(inputs: BaselineInputs) -> np.ndarray:
    """Predictions with default settings, by the weights of the epoch that is best on valid."""
    multiclass = inputs.task_type == "multiclass"
    classification = inputs.task_type in ("binary", "multilabel")
    options = [
        *("--task-type", "classification" if classification else inputs.task_type),
        *("--epochs", str(inputs.epochs or EPOCHS)),
        *("--pytorch-seed", str(inputs.seed)),
        *("--save-dir", "."),
        *("--data-path", *TABLES),
    ]
    if multiclass:
        options += ["--multiclass-num-classes", str(inputs.outputs)]
    with TemporaryDirectory() as folder:
        run_python(inputs, folder, "-c", PROGRAM, "train", "-q", *options)
        # Chemprop takes the last table, of all rows, for the test part.
        table = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")
    if multiclass:
        # the probabilities of all classes in one cell
        return np.array([cell.split(",") for cell in table.iloc[:, -1]], dtype=float)
    return table.iloc[:, 1:].to_numpy(dtype=float)


BASELINE = Baseline(fit_predict, molecules=True, settings={}, packages=PACKAGES)
