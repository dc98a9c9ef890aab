"""Baselines that are programs of their own: each runs in a Python environment of its own, made when it is first used,
reads three CSV files (train.csv, valid.csv, all.csv) and writes one with predictions for the rows of all.csv."""

import subprocess
import sys
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

# What pip installs in an environment; the first package gives the environment's folder its name.
CHEMPROP = ("chemprop==2.2.4", "torch==2.13.0", "rdkit==2026.9.1")
ATTENTIVEFP = ("torch-geometric==2.8.1", "torch==2.13.0", "rdkit==2026.9.1")


def chemprop(problem: Problem) -> np.ndarray:
    """Predictions [rows, outputs] of chemprop's D-MPNN (Yang et al., 2019) with its default settings: 50 epochs, of
    which the one with the lowest loss on valid is kept."""
    kind = problem.task_type if problem.task_type in ("regression", "multiclass") else "classification"
    options = ["--task-type", kind, "--pytorch-seed", str(problem.seed), "--save-dir", "."]
    options += ["--multiclass-num-classes", str(problem.outputs)] if kind == "multiclass" else []
    program = "from chemprop.cli.main import main; main()"
    with TemporaryDirectory() as folder:
        _run(problem, folder, "-c", program, "train", "-q", *options, "--data-path", *TABLES)
        frame = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")  # it takes all.csv for the test part
    if kind == "multiclass":
        return np.array([text.split(",") for text in frame.iloc[:, -1]], dtype=float)
    return frame.iloc[:, 1:].to_numpy(dtype=float)


def attentivefp(problem: Problem) -> np.ndarray:
    """Predictions [rows, outputs] of AttentiveFP (Xiong et al., 2020); attentivefp.py has the settings."""
    with TemporaryDirectory() as folder:
        options = [problem.task_type, str(problem.outputs), str(problem.seed), "predictions.csv"]
        _run(problem, folder, str(SCRIPT), *TABLES, *options)
        return np.loadtxt(Path(folder) / "predictions.csv", delimiter=",", ndmin=2)


def interpreter(packages: tuple[str, ...], folder: Path) -> Path:
    """The Python of an environment in `folder`, which is made now if it is missing or unfinished. InputError if it
    cannot be made, for example without a network."""
    directory = folder.resolve() / packages[0].replace("==", "-")
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with lock(folder):
        if not (directory / FINISHED).exists():
            print(f"installing {', '.join(packages)} in {directory}; this takes minutes and is done once", flush=True)
            log = directory.with_name(f"{directory.name}.log")
            for command in ([sys.executable, "-m", "venv", "--clear", str(directory)],
                            [str(python), "-m", "pip", "install", *packages]):  # fmt: skip
                if failure := _failure(command, log):
                    raise InputError(f"{packages[0]} could not be installed: {failure}; check the network, try again")
            (directory / FINISHED).touch()
    return python


def _run(problem: Problem, folder: str, *arguments: str) -> None:
    """Writes the tables into a folder and runs Python there. The tables have the SMILES, then a column per task, empty
    where there is no label. Raises TrainingStopped if the program fails."""
    frame = pd.DataFrame(problem.labels, columns=[f"task {i}" for i in range(problem.labels.shape[1])])
    frame.insert(0, "smiles", problem.texts)
    for name, rows in zip(TABLES, (problem.train, problem.valid, np.arange(len(frame))), strict=True):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    if failure := _failure([str(problem.python), "-I", *arguments], problem.log, folder):  # -I: without PYTHONPATH
        raise TrainingStopped(f"the baseline failed: {failure}")


def _failure(command: list[str], log: Path, folder: str | None = None) -> str:
    """Runs a program, its output in a log. If it fails, returns the last line of the log and where it is, else ""."""
    with log.open("w") as file:
        if not subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder).returncode:
            return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{(lines or ['no output'])[-1]} (its output is in {log})"
