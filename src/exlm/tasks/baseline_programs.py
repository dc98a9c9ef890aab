"""Baselines that are programs of their own: each runs in an environment of its own, which is made when it is first
used, reads three CSV files (train.csv, valid.csv, all.csv) and writes one with predictions for the rows of all.csv."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from exlm.errors import InputError, TrainingStopped
from exlm.storage import lock
from exlm.tasks.baseline_models import Problem

SCRIPT = Path(__file__).with_name("attentivefp.py")
TABLES = ("train.csv", "valid.csv", "all.csv")
FINISHED = "finished"  # the name of an empty file in an environment that was made completely


@dataclass(frozen=True)
class Environment:
    """A Python environment: the name of its folder, and the packages that pip installs in it."""

    name: str
    packages: tuple[str, ...]


_COMMON = ("torch==2.13.0", "rdkit==2026.9.1")
CHEMPROP = Environment("chemprop-2.2.4", ("chemprop==2.2.4", *_COMMON))
ATTENTIVEFP = Environment("attentivefp-2.8.1", ("torch-geometric==2.8.1", *_COMMON))


def chemprop(problem: Problem) -> np.ndarray:
    """Predictions [rows, outputs] of chemprop's D-MPNN (Yang et al., 2019) with its default settings: 50 epochs, of
    which the one with the lowest loss on valid is kept."""
    kind = problem.task_type if problem.task_type in ("regression", "multiclass") else "classification"
    options = ["--task-type", kind, "--pytorch-seed", str(problem.seed), "--save-dir", "."]
    options += ["--multiclass-num-classes", str(problem.outputs)] if kind == "multiclass" else []
    program = "from chemprop.cli.main import main; main()"
    with TemporaryDirectory() as folder:
        _run(problem, CHEMPROP, folder, "-c", program, "train", "-q", *options, "--data-path", *TABLES)
        frame = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")  # it takes all.csv for the test part
    if kind == "multiclass":
        return np.array([text.split(",") for text in frame.iloc[:, -1]], dtype=float)
    return frame.iloc[:, 1:].to_numpy(dtype=float)


def attentivefp(problem: Problem) -> np.ndarray:
    """Predictions [rows, outputs] of AttentiveFP (Xiong et al., 2020); attentivefp.py has the settings."""
    with TemporaryDirectory() as folder:
        options = [problem.task_type, str(problem.outputs), str(problem.seed), "predictions.csv"]
        _run(problem, ATTENTIVEFP, folder, str(SCRIPT), *TABLES, *options)
        return np.loadtxt(Path(folder) / "predictions.csv", delimiter=",", ndmin=2)


def interpreter(environment: Environment, folder: Path) -> Path:
    """The Python of an environment in `folder`, which is made now if it is missing or unfinished.

    Raises InputError if it cannot be made, for example without a network.
    """
    directory, log = folder.resolve() / environment.name, folder / f"{environment.name}.log"
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with lock(folder):
        if (directory / FINISHED).exists():
            return python
        packages = ", ".join(environment.packages)
        print(f"installing {packages} in {directory}; this takes minutes and is done once", flush=True)
        pip = [str(python), "-m", "pip"]
        with log.open("w") as file:
            make = [sys.executable, "-m", "venv", "--clear", str(directory)]
            for command in (make, [*pip, "install", *environment.packages]):
                if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode:
                    raise InputError(
                        f"{environment.name} could not be installed: {_last_line(log)}; see {log}, check the network "
                        "and the free space, and run the same command again"
                    )
        (directory / FINISHED).touch()
    return python


def _run(problem: Problem, environment: Environment, folder: str, *arguments: str) -> None:
    """Writes the tables into a folder and runs Python there in an environment; its output goes to a log. The tables
    have the SMILES, then a column per task, empty where there is no label. Raises TrainingStopped if it fails."""
    frame = pd.DataFrame(problem.labels, columns=[f"task {i}" for i in range(problem.labels.shape[1])])
    frame.insert(0, "smiles", problem.texts)
    for name, rows in zip(TABLES, (problem.train, problem.valid, np.arange(len(frame))), strict=True):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    log = problem.directory / f"{environment.name}.log"
    with log.open("w") as file:
        command = [str(problem.python), "-I", *arguments]  # -I: no packages from a PYTHONPATH
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder).returncode
    if status:
        raise TrainingStopped(f"{environment.name} failed: {_last_line(log)}; its output is in {log}")


def _last_line(log: Path) -> str:
    return (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"])[-1]
