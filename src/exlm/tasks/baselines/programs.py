"""Baselines that are programs, in Python environments of their own: `chemprop` (D-MPNN, Yang et
al., 2019), by its authors, and `attentivefp` (Xiong et al., 2020), by `attentivefp_program.py`."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage.run_directories import lock
from exlm.tasks.baselines.fit_inputs import FitInputs
from exlm.train.signals import on_signals

CHEMPROP_PACKAGES = ("chemprop==2.2.4", "torch==2.13.0", "rdkit==2026.9.1")
CHEMPROP_EPOCHS = 50
CHEMPROP_PROGRAM = "from chemprop.cli.main import main; main()"
ATTENTIVEFP_PACKAGES = ("torch-geometric==2.8.1", "torch==2.13.0", "rdkit==2026.9.1")
ATTENTIVEFP_EPOCHS = 100
ATTENTIVEFP_SCRIPT = Path(__file__).with_name("attentivefp_program.py")

# where environments are made, unless the variable EXLM_BASELINES names another folder
DEFAULT_FOLDER = "~/.cache/exlm/baselines"
TABLES = ("train.csv", "valid.csv", "all.csv")  # what a program reads; it predicts all.csv
FINISHED = "finished"  # the name of an empty file in an environment that was made completely


def fit_chemprop(inputs: FitInputs) -> np.ndarray:
    """Predictions with default settings, by the weights of the epoch that is best on valid."""
    task_type = _task_type(inputs)
    options = [
        *("--task-type", task_type),
        *("--epochs", str(inputs.epochs or CHEMPROP_EPOCHS)),
        *("--pytorch-seed", str(inputs.seed)),
        *("--save-dir", "."),
        *("--data-path", *TABLES),
    ]
    if task_type == "multiclass":
        options += ["--multiclass-num-classes", str(inputs.outputs)]
    arguments = ["-c", CHEMPROP_PROGRAM, "train", "-q", *options]
    with TemporaryDirectory() as folder:
        _run_python(CHEMPROP_PACKAGES, inputs, folder, arguments)
        # Chemprop takes the last table, of all rows, for the test part.
        table = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")
    if task_type == "multiclass":
        # the probabilities of all classes in one cell
        return np.array([cell.split(",") for cell in table.iloc[:, -1]], dtype=float)
    return table.iloc[:, 1:].to_numpy(dtype=float)


def fit_attentivefp(inputs: FitInputs) -> np.ndarray:
    """Predictions by the weights of the epoch with the lowest loss on valid."""
    epochs = inputs.epochs or ATTENTIVEFP_EPOCHS
    settings = [_task_type(inputs), inputs.outputs, inputs.seed, epochs]
    arguments = [str(ATTENTIVEFP_SCRIPT), *TABLES, "predictions.csv", *map(str, settings)]
    with TemporaryDirectory() as folder:
        _run_python(ATTENTIVEFP_PACKAGES, inputs, folder, arguments)
        return np.loadtxt(Path(folder) / "predictions.csv", delimiter=",", ndmin=2)


def _task_type(inputs: FitInputs) -> str:
    """What programs call the task: regression, multiclass, or classification by 0 and 1."""
    if inputs.label_type.is_number:
        return "regression"
    return "multiclass" if inputs.label_type.has_classes else "classification"


def environment(packages: tuple[str, ...]) -> Path:
    """The Python of an environment, made if it is missing or unfinished; InputError if that fails.
    Its place is never read from a file, which could name a foreign program."""
    folder = Path(os.environ.get("EXLM_BASELINES", DEFAULT_FOLDER)).expanduser().resolve()
    directory = folder / packages[0].replace("==", "-")
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with lock(folder):
        if (directory / FINISHED).exists():
            return python
        names = ", ".join(packages)
        print(f"installing {names} in {directory}; this takes minutes and is done once", flush=True)
        log = directory.with_name(f"{directory.name}.log")
        try:
            _run([sys.executable, "-m", "venv", "--clear", str(directory)], log)
            _run([str(python), "-m", "pip", "install", *packages], log)
        except TrainingStopped as error:
            raise InputError(
                f"{packages[0]} could not be installed: {error}; check the network, try again"
            ) from error
        (directory / FINISHED).touch()
    return python


def _run_python(
    packages: tuple[str, ...], inputs: FitInputs, folder: str, arguments: list[str]
) -> None:
    """Writes TABLES to a folder (SMILES, then a column per label) and runs Python there.
    TrainingStopped if the program fails."""
    labels = inputs.labels
    frame = pd.DataFrame(labels, columns=[f"label {i}" for i in range(labels.shape[1])])
    frame.insert(0, "smiles", inputs.texts)
    rows_of_tables = (inputs.train, inputs.valid, np.arange(len(frame)))
    for name, rows in zip(TABLES, rows_of_tables, strict=True):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    python = environment(packages)
    # -I keeps PYTHONPATH, and so the packages of this library, out of the environment.
    _run([str(python), "-I", *arguments], inputs.log, folder)


def _run(command: list[str], log: Path, folder: str | None = None) -> None:
    """Runs a program with its output in a log; TrainingStopped with the last line if it fails."""
    # The handler raises, and subprocess.run then ends the program, too.
    with log.open("w") as file, on_signals(_interrupt, once=True):
        process = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder)
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = lines[-1] if lines else "no output"
        raise TrainingStopped(f"the program failed: {last_line} (its output is in {log})")


def _interrupt(number: int) -> None:
    raise Interrupted(number, "interrupted; run the same command to go on")
