"""What the baselines compute: each is a function from a Problem to predictions [rows, outputs].

Models of scikit-learn learn in this process. A program runs in a Python environment of its own, made when it is first
used; it reads three CSV files (TABLES) and writes one with predictions for the rows of all.csv."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from exlm.data.chemistry import fingerprints
from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage import lock
from exlm.tasks.table import TaskType
from exlm.train.loop import on_signals

TREES, NEIGHBOURS = 500, 5
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # C of linear models, the inverse of the strength of regularisation
BLOCK = 1024  # rows whose neighbours are searched at once

# What pip installs for a program; the first package gives the environment's folder its name.
CHEMPROP = ("chemprop==2.2.4", "torch==2.13.0", "rdkit==2026.9.1")
ATTENTIVEFP = ("torch-geometric==2.8.1", "torch==2.13.0", "rdkit==2026.9.1")
SCRIPT = Path(__file__).with_name("attentivefp.py")
TABLES = ("train.csv", "valid.csv", "all.csv")
FINISHED = "finished"  # the name of an empty file in an environment that was made completely


@dataclass(frozen=True)
class Problem:
    """What a baseline learns from, and what it has to predict."""

    texts: list[str]  # [rows] SMILES or texts; all of them are predicted
    pairs: list[str] | None  # [rows] the second texts, if the task is on pairs
    labels: np.ndarray  # [rows, tasks], classes as indices [rows, 1]; NaN: missing, or in neither train nor valid
    train: np.ndarray  # numbers of the rows to learn from; every task has a label there
    valid: np.ndarray  # numbers of the rows that choose the epoch or the strength of regularisation
    task_type: TaskType
    outputs: int  # predictions for a row: classes for multiclass, tasks for all others
    score: Callable[[np.ndarray], float]  # how good predictions [rows, outputs] are on valid; higher is better
    seed: int
    epochs: int | None  # the most epochs of a program, if not its own number
    log: Path  # what a program of its own says
    python: Path | None  # the Python that runs such a program


def random_forest(problem: Problem) -> np.ndarray:
    """Random forests on fingerprints. Splits look at as many bits as Breiman (2001) advises."""
    regression = problem.task_type == "regression"
    model = RandomForestRegressor(max_features=1 / 3) if regression else RandomForestClassifier(max_features="sqrt")
    model.set_params(n_estimators=TREES, random_state=problem.seed, n_jobs=-1)
    return _best(problem, ecfp(problem), [model])


def linear(problem: Problem) -> np.ndarray:
    """Logistic regressions on fingerprints or, for numbers, ridge regressions."""
    return _best(problem, sparse.csr_matrix(ecfp(problem), dtype=np.float64), _linear_models(problem))


def linear_on_words(problem: Problem) -> np.ndarray:
    """Logistic (for numbers ridge) regressions on TF-IDF of words and pairs of words, as in the train part. Of two
    texts: the features of each, their differences and their products."""
    texts = [problem.texts] if problem.pairs is None else [problem.texts, problem.pairs]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    vectorizer.fit([column[row] for column in texts for row in problem.train])
    first, *second = (vectorizer.transform(column) for column in texts)
    features = [first, *(part for s in second for part in (s, abs(first - s), first.multiply(s)))]
    return _best(problem, sparse.hstack(features).tocsr(), _linear_models(problem))


def neighbours(problem: Problem) -> np.ndarray:
    """The mean label of the nearest labelled molecules of the train part, weighted by their Tanimoto similarity."""
    bits = ecfp(problem).astype(np.float32)
    size, train = bits.sum(1), problem.train
    targets = problem.labels[train]
    if problem.task_type == "multiclass":
        targets = (targets == np.arange(problem.outputs)).astype(float)
    result = np.zeros((len(bits), problem.outputs))
    for rows in np.array_split(np.arange(len(bits)), len(bits) // BLOCK + 1):
        shared = bits[rows] @ bits[train].T
        similarity = shared / np.maximum(size[rows, None] + size[train] - shared, 1)  # [block, train rows]
        for task, labels in enumerate(targets.T):
            known = np.flatnonzero(~np.isnan(labels))
            k = min(NEIGHBOURS, len(known))
            nearest = known[np.argpartition(-similarity[:, known], k - 1, axis=1)[:, :k]]
            weights = np.take_along_axis(similarity, nearest, 1) + 1e-6  # nothing in common: all count alike
            result[rows, task] = np.average(labels[nearest], axis=1, weights=weights)
    return result


def ecfp(problem: Problem) -> np.ndarray:
    """The fingerprints of molecules that RDKit can parse: [rows, BITS] of 0 and 1."""
    found = [one.ToBitString().encode() for one in fingerprints(problem.texts) if one is not None]
    return np.array([np.frombuffer(digits, dtype=np.uint8) for digits in found]) - ord("0")


def _linear_models(problem: Problem) -> list[BaseEstimator]:
    if problem.task_type == "regression":
        return [Ridge(alpha=1 / strength) for strength in STRENGTHS]
    return [LogisticRegression(C=strength, max_iter=2000) for strength in STRENGTHS]


def _best(problem: Problem, features: Any, models: Sequence[BaseEstimator]) -> np.ndarray:
    """Predictions from `features` [rows, features] by the model that is best on valid; of equal ones the first."""
    return max((_one_model_per_task(problem, features, model) for model in models), key=problem.score)


def _one_model_per_task(problem: Problem, features: Any, model: BaseEstimator) -> np.ndarray:
    """Predictions [rows, outputs] of copies of a model, each fitted to one task's labelled rows of the train part."""
    columns = []
    for labels in problem.labels.T:
        rows = problem.train[~np.isnan(labels[problem.train])]
        several = problem.task_type == "regression" or np.ptp(labels[rows]) > 0  # some models refuse a single class
        fitted = (clone(model) if several else DummyClassifier()).fit(features[rows], labels[rows])
        if hasattr(fitted, "estimators_"):
            fitted.n_jobs = 1  # threads would add up the trees in any order, and the last bits would differ
        if problem.task_type == "regression":
            columns.append(fitted.predict(features)[:, None])
            continue
        probabilities = np.zeros((len(labels), problem.outputs if problem.task_type == "multiclass" else 2))
        probabilities[:, fitted.classes_.astype(int)] = fitted.predict_proba(features)
        columns.append(probabilities if problem.task_type == "multiclass" else probabilities[:, 1:])
    return np.hstack(columns)


def chemprop(problem: Problem) -> np.ndarray:
    """Chemprop's D-MPNN (Yang et al., 2019) with its default settings; it keeps the best of 50 epochs on valid."""
    kind = problem.task_type if problem.task_type in ("regression", "multiclass") else "classification"
    numbers = ["--epochs", str(problem.epochs or 50), "--pytorch-seed", str(problem.seed)]
    options = ["--task-type", kind, *numbers, "--save-dir", "."]
    options += ["--multiclass-num-classes", str(problem.outputs)] if kind == "multiclass" else []
    program = "from chemprop.cli.main import main; main()"
    with TemporaryDirectory() as folder:
        _run(problem, folder, "-c", program, "train", "-q", *options, "--data-path", *TABLES)
        frame = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")  # it takes all.csv for the test part
    if kind == "multiclass":
        return np.array([text.split(",") for text in frame.iloc[:, -1]], dtype=float)
    return frame.iloc[:, 1:].to_numpy(dtype=float)


def attentivefp(problem: Problem) -> np.ndarray:
    """AttentiveFP (Xiong et al., 2020); attentivefp.py has the settings."""
    with TemporaryDirectory() as folder:
        numbers = map(str, (problem.outputs, problem.seed, problem.epochs or 100))
        _run(problem, folder, str(SCRIPT), *TABLES, "predictions.csv", problem.task_type, *numbers)
        return np.loadtxt(Path(folder) / "predictions.csv", delimiter=",", ndmin=2)


def interpreter(packages: tuple[str, ...], folder: Path) -> Path:
    """The Python of an environment in `folder`, made if it is missing or unfinished; InputError if that fails."""
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
    """Writes TABLES (SMILES, then a column per task) and runs Python there. TrainingStopped if the program fails."""
    frame = pd.DataFrame(problem.labels, columns=[f"task {i}" for i in range(problem.labels.shape[1])])
    frame.insert(0, "smiles", problem.texts)
    for name, rows in zip(TABLES, (problem.train, problem.valid, np.arange(len(frame))), strict=True):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    if failure := _failure([str(problem.python), "-I", *arguments], problem.log, folder):  # -I: without PYTHONPATH
        raise TrainingStopped(f"the baseline failed: {failure}")


def _failure(command: list[str], log: Path, folder: str | None = None) -> str:
    """Runs a program, its output in a log. If it fails, returns the last line of the log and where it is, else ""."""
    with log.open("w") as file, on_signals(_interrupt, once=True):  # subprocess.run then ends the program, too
        if not subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder).returncode:
            return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{(lines or ['no output'])[-1]} (its output is in {log})"


def _interrupt(number: int) -> None:
    raise Interrupted(number, "interrupted; run the same command to go on")
