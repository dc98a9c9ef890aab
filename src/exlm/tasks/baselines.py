"""The command `exlm baseline`: simple and well-known models on the same data, splits, seeds and
metrics as ours.

Each is a function from a Problem to predictions [rows, outputs]. Models of scikit-learn learn in
this process. A program runs in a Python environment of its own, made when it is first used; it
reads three CSV files (TABLES) and writes one with predictions for the rows of all.csv."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
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

from exlm.data.chemistry import BITS, RADIUS, fingerprints, molecule_problem, standardize
from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage.files import to_json_types
from exlm.storage.runs import identity, lock
from exlm.tasks.config import TaskConfig, resolve
from exlm.tasks.finetune import run_task
from exlm.tasks.inference import TextKind
from exlm.tasks.labelled import LabelledTask
from exlm.tasks.metrics import rank
from exlm.tasks.table import LabelledTable, TaskType
from exlm.train.loop import on_signals

TREES, NEIGHBOURS = 500, 5
# C of linear models, the inverse of the strength of regularisation
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
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
    # [rows, tasks], classes as indices [rows, 1]; NaN: missing, or in neither train nor valid
    labels: np.ndarray
    train: np.ndarray  # numbers of the rows to learn from; every task has a label there
    valid: np.ndarray  # numbers of the rows that choose the epoch or the strength of regularisation
    task_type: TaskType
    outputs: int  # predictions for a row: classes for multiclass, tasks for all others
    # how good predictions [rows, outputs] are on valid; higher is better
    score: Callable[[np.ndarray], float]
    seed: int
    epochs: int | None  # the most epochs of a program, if not its own number
    log: Path  # what a program of its own says
    python: Path | None  # the Python that runs such a program


def random_forest(problem: Problem) -> np.ndarray:
    """Random forests on fingerprints. Splits look at as many bits as Breiman (2001) advises."""
    regression = problem.task_type == "regression"
    model = (
        RandomForestRegressor(max_features=1 / 3)
        if regression
        else RandomForestClassifier(max_features="sqrt")
    )
    model.set_params(n_estimators=TREES, random_state=problem.seed, n_jobs=-1)
    return _best(problem, ecfp(problem), [model])


def linear(problem: Problem) -> np.ndarray:
    """Logistic regressions on fingerprints or, for numbers, ridge regressions."""
    return _best(
        problem, sparse.csr_matrix(ecfp(problem), dtype=np.float64), _linear_models(problem)
    )


def linear_on_words(problem: Problem) -> np.ndarray:
    """Logistic (for numbers ridge) regressions on TF-IDF of words and pairs of words, as in the
    train part. Of two texts: the features of each, their differences and their products."""
    texts = [problem.texts] if problem.pairs is None else [problem.texts, problem.pairs]
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]"
    )
    vectorizer.fit([column[row] for column in texts for row in problem.train])
    first, *second = (vectorizer.transform(column) for column in texts)
    features = [first, *(part for s in second for part in (s, abs(first - s), first.multiply(s)))]
    return _best(problem, sparse.hstack(features).tocsr(), _linear_models(problem))


def neighbours(problem: Problem) -> np.ndarray:
    """The mean label of the nearest labelled molecules of the train part, weighted by their
    Tanimoto similarity."""
    bits = ecfp(problem).astype(np.float32)
    size, train = bits.sum(1), problem.train
    targets = problem.labels[train]
    if problem.task_type == "multiclass":
        targets = (targets == np.arange(problem.outputs)).astype(float)
    result = np.zeros((len(bits), problem.outputs))
    for rows in np.array_split(np.arange(len(bits)), len(bits) // BLOCK + 1):
        shared = bits[rows] @ bits[train].T
        # [block, train rows]
        similarity = shared / np.maximum(size[rows, None] + size[train] - shared, 1)
        for task, labels in enumerate(targets.T):
            known = np.flatnonzero(~np.isnan(labels))
            k = min(NEIGHBOURS, len(known))
            nearest = known[np.argpartition(-similarity[:, known], k - 1, axis=1)[:, :k]]
            # nothing in common: all count alike
            weights = np.take_along_axis(similarity, nearest, 1) + 1e-6
            result[rows, task] = np.average(labels[nearest], axis=1, weights=weights)
    return result


def ecfp(problem: Problem) -> np.ndarray:
    """The fingerprints of molecules that RDKit can parse: [rows, BITS] of 0 and 1."""
    return np.array(
        [one.ToList() for one in fingerprints(problem.texts) if one is not None], dtype=np.uint8
    )


def _linear_models(problem: Problem) -> list[BaseEstimator]:
    if problem.task_type == "regression":
        return [Ridge(alpha=1 / strength) for strength in STRENGTHS]
    return [LogisticRegression(C=strength, max_iter=2000) for strength in STRENGTHS]


def _best(problem: Problem, features: Any, models: Sequence[BaseEstimator]) -> np.ndarray:
    """Predictions from `features` [rows, features] by the model that is best on valid; of equal
    ones the first."""
    return max(
        (_one_model_per_task(problem, features, model) for model in models), key=problem.score
    )


def _one_model_per_task(problem: Problem, features: Any, model: BaseEstimator) -> np.ndarray:
    """Predictions [rows, outputs] of copies of a model, each fitted to one task's labelled rows of
    the train part."""
    columns = []
    for labels in problem.labels.T:
        rows = problem.train[~np.isnan(labels[problem.train])]
        # some models refuse a single class
        several = problem.task_type == "regression" or np.ptp(labels[rows]) > 0
        fitted = (clone(model) if several else DummyClassifier()).fit(features[rows], labels[rows])
        if hasattr(fitted, "estimators_"):
            # threads would add up the trees in any order, and the last bits would differ
            fitted.n_jobs = 1
        if problem.task_type == "regression":
            columns.append(fitted.predict(features)[:, None])
            continue
        probabilities = np.zeros(
            (len(labels), problem.outputs if problem.task_type == "multiclass" else 2)
        )
        probabilities[:, fitted.classes_.astype(int)] = fitted.predict_proba(features)
        columns.append(probabilities if problem.task_type == "multiclass" else probabilities[:, 1:])
    return np.hstack(columns)


def chemprop(problem: Problem) -> np.ndarray:
    """Chemprop's D-MPNN (Yang et al., 2019) with its default settings; it keeps the best of 50
    epochs on valid."""
    kind = (
        problem.task_type if problem.task_type in ("regression", "multiclass") else "classification"
    )
    numbers = ["--epochs", str(problem.epochs or 50), "--pytorch-seed", str(problem.seed)]
    options = ["--task-type", kind, *numbers, "--save-dir", "."]
    options += ["--multiclass-num-classes", str(problem.outputs)] if kind == "multiclass" else []
    program = "from chemprop.cli.main import main; main()"
    with TemporaryDirectory() as folder:
        _run(problem, folder, "-c", program, "train", "-q", *options, "--data-path", *TABLES)
        # it takes all.csv for the test part
        frame = pd.read_csv(Path(folder) / "model_0" / "test_predictions.csv")
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
    """The Python of an environment in `folder`, made if it is missing or unfinished; InputError if
    that fails."""
    directory = folder.resolve() / packages[0].replace("==", "-")
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    with lock(folder):
        if not (directory / FINISHED).exists():
            print(
                f"installing {', '.join(packages)} in {directory}; this takes minutes and is done once",
                flush=True,
            )
            log = directory.with_name(f"{directory.name}.log")
            for command in ([sys.executable, "-m", "venv", "--clear", str(directory)],
                            [str(python), "-m", "pip", "install", *packages]):  # fmt: skip
                if failure := _failure(command, log):
                    raise InputError(
                        f"{packages[0]} could not be installed: {failure}; check the network, try again"
                    )
            (directory / FINISHED).touch()
    return python


def _run(problem: Problem, folder: str, *arguments: str) -> None:
    """Writes TABLES (SMILES, then a column per task) and runs Python there. TrainingStopped if the
    program fails."""
    frame = pd.DataFrame(
        problem.labels, columns=[f"task {i}" for i in range(problem.labels.shape[1])]
    )
    frame.insert(0, "smiles", problem.texts)
    for name, rows in zip(
        TABLES, (problem.train, problem.valid, np.arange(len(frame))), strict=True
    ):
        frame.iloc[rows].to_csv(Path(folder) / name, index=False)
    # -I: without PYTHONPATH
    if failure := _failure([str(problem.python), "-I", *arguments], problem.log, folder):
        raise TrainingStopped(f"the baseline failed: {failure}")


def _failure(command: list[str], log: Path, folder: str | None = None) -> str:
    """Runs a program, its output in a log. If it fails, returns the last line of the log and where
    it is, else ""."""
    # subprocess.run then ends the program, too
    with log.open("w") as file, on_signals(_interrupt, once=True):
        if not subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=folder
        ).returncode:
            return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{(lines or ['no output'])[-1]} (its output is in {log})"


def _interrupt(number: int) -> None:
    raise Interrupted(number, "interrupted; run the same command to go on")


@dataclass(frozen=True)
class Baseline:
    """A model that is trained from nothing on the labelled data alone."""

    fit_predict: Callable[[Problem], np.ndarray]  # predictions [rows, outputs]
    molecules: bool  # whether it reads molecules; else it reads text
    settings: dict[str, Any]
    environment: tuple[str, ...] = ()  # packages of a program of its own


_ECFP = {"radius": RADIUS, "bits": BITS}
_LINEAR = {"strengths": STRENGTHS}
BASELINES: dict[str, Baseline] = {
    "ecfp-rf": Baseline(random_forest, True, {**_ECFP, "trees": TREES}),
    "ecfp-knn": Baseline(neighbours, True, {**_ECFP, "neighbours": NEIGHBOURS}),
    "ecfp-lr": Baseline(linear, True, {**_ECFP, **_LINEAR}),
    "chemprop": Baseline(chemprop, True, {}, CHEMPROP),
    "attentivefp": Baseline(attentivefp, True, {}, ATTENTIVEFP),
    "tfidf-lr": Baseline(linear_on_words, False, _LINEAR),
}


def baseline(
    name: str,
    dataset: str,
    output: str | None = None,
    task: TaskConfig = TaskConfig(""),
    seeds: list[int] | None = None,
    environments: str = "~/.cache/exlm/baselines",
    epochs: int | None = None,
) -> dict[str, Any]:
    """Trains a baseline once per seed. Data, splits, metrics and files are those of `exlm
    finetune`.

    No model is written. `exlm report` shows the results beside the models of the same data. If it
    is interrupted and run again, finished seeds are not repeated.

    Args:
        name: for molecules ecfp-rf, ecfp-knn, ecfp-lr (ECFP4 fingerprints with a random forest,
            nearest neighbours or logistic regression), chemprop (D-MPNN) or attentivefp; for text
            tfidf-lr (TF-IDF with logistic regression).
        dataset: the labelled data, as in `task.dataset` of `exlm finetune`.
        output: directory; runs/baselines/NAME/DATASET where absent.
        task: what else there is to say of the data; leave out `task.dataset`.
        seeds: seeds of the baseline and of random splits; 0, 1 and 2 where absent.
        environments: where chemprop and attentivefp get a Python environment, made at first use
            (needs a network).
        epochs: the most epochs of chemprop (50 where absent) or attentivefp (100), for example
            fewer of many molecules.

    Returns the content of `results.json`, as `exlm finetune` does."""
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; use one of {', '.join(BASELINES)}")
    if epochs is not None and (epochs < 1 or not BASELINES[name].environment):
        raise InputError(
            f"epochs is {epochs}; give at least 1, and only to chemprop or attentivefp"
        )
    task = resolve(replace(task, dataset=dataset))[0]
    trainer = BaselineTask(name, task, Path(environments).expanduser())
    own = [f"{package}=={version(package)}" for package in ("rdkit", "scikit-learn")]
    hyper: dict[str, Any] = {
        **BASELINES[name].settings,
        "packages": BASELINES[name].environment or own,
    }
    hyper |= {"epochs": epochs} if epochs else {}
    directory = Path(output or f"runs/baselines/{name}/{Path(dataset).name.split('.')[0].lower()}")
    settings = to_json_types(
        {"baseline": name, "task": identity(trainer.task), **trainer.data_settings}
    )
    recipe = {"name": name, "dataset": dataset, "output": output, "task": task, "epochs": epochs}
    return run_task(directory, trainer, {"": hyper}, seeds, settings, recipe)


class BaselineTask(LabelledTask):
    """A labelled table, and how to train a baseline on it."""

    def __init__(self, name: str, task: TaskConfig, environments: Path) -> None:
        self.baseline = BASELINES[name]
        if task.task_type in ("question_answering", "token_classification"):
            raise InputError(
                f"{task.task_type} has no baseline; use a table with labels for each row as a whole"
            )
        super().__init__(task, TextKind(None, "none"))
        if self.task.molecules != self.baseline.molecules:
            fitting = ", ".join(
                key for key, entry in BASELINES.items() if entry.molecules == self.task.molecules
            )
            found = f"{task.dataset} has {'molecules' if self.task.molecules else 'text'}"
            raise InputError(
                f"{found}, which {name} does not read; use {fitting}, or set task.molecules"
            )
        packages = self.baseline.environment
        self.python = interpreter(packages, environments) if packages else None

    def read_rows(self, table: LabelledTable) -> LabelledTable:
        """The table without tokens. What RDKit cannot parse is left out."""
        found = table.problems
        if self.task.molecules and self.task.on_invalid == "keep":
            raise InputError(
                "a baseline cannot keep what RDKit cannot parse; set task.on_invalid to skip"
            )
        if self.task.molecules:
            found = [
                reason or molecule_problem(text) or ""
                for reason, text in zip(found, table.texts, strict=True)
            ]
        return replace(table, problems=found, caveats=found, divided=table.usable)

    def train_seed(self, run_dir: Path, hyper: dict[str, Any], seed: int) -> dict[str, Any]:
        """Trains with one seed. Returns what `record` tells and the seconds it took."""
        run_dir.mkdir(parents=True, exist_ok=True)
        table, split, used = self.table, self.split(seed), np.flatnonzero(self.table.usable)
        known = np.isin(np.arange(len(table.texts)), [*split["train"], *split["valid"]])
        labels = np.where(known[:, None], table.labels, np.nan)
        # the other tasks have no label in train
        learned = np.flatnonzero(~np.isnan(labels[split["train"]]).all(0))
        columns = np.arange(len(table.classes)) if table.classes else learned
        everything = np.full((len(table.texts), len(table.classes or table.label_columns)), np.nan)
        everything[used] = 0.5  # for tasks of which nothing can be learned

        def everywhere(predictions: np.ndarray) -> np.ndarray:
            """Predictions of the used rows for all rows (NaN)."""
            everything[np.ix_(used, columns)] = predictions
            return everything

        problem = Problem(
            texts=[standardize(table.texts[row], self.task.standardize or "none") for row in used],
            pairs=[table.pairs[row] for row in used] if table.pairs else None,
            labels=labels[np.ix_(used, learned)],
            train=np.searchsorted(used, split["train"]),
            valid=np.searchsorted(used, split["valid"]),
            task_type=table.task_type,
            outputs=len(columns),
            score=lambda p: rank(
                self.score(everywhere(p), split["valid"])[self.metric], self.metric
            ),
            seed=seed,
            epochs=hyper.get("epochs"),
            log=run_dir / "program.log",
            python=self.python,
        )
        start = time.monotonic()
        predictions = everywhere(self.baseline.fit_predict(problem))
        return {
            "seconds": round(time.monotonic() - start, 1),
            **self.record(run_dir, split, predictions),
        }
