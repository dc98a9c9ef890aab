"""Baselines that are programs of their own: their Python environments, their tables, their runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage.runs import lock
from exlm.tasks.baselines.base import BaselineInputs
from exlm.train.loop import on_signals

TABLES = ("train.csv", "valid.csv", "all.csv")  # what a program reads; it predicts all.csv
FINISHED = "finished"  # the name of an empty file in an environment that was made completely


def environment(packages: tuple[str, ...], folder: Path) -> Path:
    """The Python of an environment in `folder`, made if it is missing or unfinished; InputError if
    that fails."""
    directory = folder.resolve() / packages[0].replace("==", "-")
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
        except ProgramFailed as failure:
            raise InputError(
                f"{packages[0]} could not be installed: {failure}; check the network, try again"
            ) from None
        (directory / FINISHED).touch()
    return python


def run_python(inputs: BaselineInputs, folder: str, *arguments: str) -> None:
    """Writes TABLES to a folder (SMILES, then a column per label) and runs Python there.
    TrainingStopped if the program fails."""
    label_columns = [f"task {number}" for number in range(inputs.labels.shape[1])]
    frame = pd.DataFrame(inputs.labels, columns=label_columns)
    frame.insert(0, "smiles", inputs.texts)
    rows_of_tables = (inputs.train, inputs.valid, np.arange(len(frame)))
    for name, rows in zip(TABLES, rows_of_tables, strict=True):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    # -I keeps PYTHONPATH, and so the packages of this library, out of the environment.
    try:
        _run([str(inputs.python), "-I", *arguments], inputs.log, folder)
    except ProgramFailed as failure:
        raise TrainingStopped(f"the baseline failed: {failure}") from None


class ProgramFailed(RuntimeError):
    """A program ended with an error: the last line of its log, and where that is."""


def _run(command: list[str], log: Path, folder: str | None = None) -> None:
    """Runs a program with its output in a log. ProgramFailed if it ends with an error."""
    # The handler raises, and subprocess.run then ends the program, too.
    with log.open("w") as file, on_signals(_interrupt, once=True):
        process = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder)
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last_line = lines[-1] if lines else "no output"
        raise ProgramFailed(f"{last_line} (its output is in {log})")


def _interrupt(number: int) -> None:
    raise Interrupted(number, "interrupted; run the same command to go on")
