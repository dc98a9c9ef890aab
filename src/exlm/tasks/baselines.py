"""The command `exlm baseline`: simple and well-known models on the same data, splits, seeds and metrics as ours."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from exlm.data.chemistry import BITS, RADIUS, molecule_problem, standardize
from exlm.errors import InputError
from exlm.storage import plain
from exlm.tasks import baseline_models as models
from exlm.tasks.config import TaskConfig, identity, resolve
from exlm.tasks.finetune import run_task
from exlm.tasks.inference import Rows, TextKind
from exlm.tasks.labelled import LabelledTask
from exlm.tasks.metrics import rank
from exlm.tasks.table import LabelledTable


@dataclass(frozen=True)
class Baseline:
    """A model that is trained from nothing on the labelled data alone."""

    fit_predict: Callable[[models.Problem], np.ndarray]  # predictions [rows, outputs]
    molecules: bool  # whether it reads molecules; else it reads text
    settings: dict[str, Any]
    environment: tuple[str, ...] = ()  # packages of a program of its own


_ECFP = {"radius": RADIUS, "bits": BITS}
_LINEAR = {"strengths": models.STRENGTHS}
BASELINES: dict[str, Baseline] = {
    "ecfp-rf": Baseline(models.random_forest, True, {**_ECFP, "trees": models.TREES}),
    "ecfp-knn": Baseline(models.neighbours, True, {**_ECFP, "neighbours": models.NEIGHBOURS}),
    "ecfp-lr": Baseline(models.linear, True, {**_ECFP, **_LINEAR}),
    "chemprop": Baseline(models.chemprop, True, {}, models.CHEMPROP),
    "attentivefp": Baseline(models.attentivefp, True, {}, models.ATTENTIVEFP),
    "tfidf-lr": Baseline(models.linear_on_words, False, _LINEAR),
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
    """Trains a baseline once per seed. Data, splits, metrics and files are those of `exlm finetune`.

    No model is written. `exlm report` shows the results beside the models of the same data. If it is interrupted and
    run again, finished seeds are not repeated.

    Args:
        name: for molecules ecfp-rf, ecfp-knn, ecfp-lr (ECFP4 fingerprints with a random forest, nearest neighbours or
            logistic regression), chemprop (D-MPNN) or attentivefp; for text tfidf-lr (TF-IDF with logistic regression).
        dataset: the labelled data, as in `task.dataset` of `exlm finetune`.
        output: directory; runs/baselines/NAME/DATASET where absent.
        task: what else there is to say of the data; leave out `task.dataset`.
        seeds: seeds of the baseline and of random splits; 0, 1 and 2 where absent.
        environments: where chemprop and attentivefp get a Python environment, made at first use (needs a network).
        epochs: the most epochs of chemprop (50 where absent) or attentivefp (100), for example fewer of many molecules.

    Returns the content of `results.json`, as `exlm finetune` does."""
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; use one of {', '.join(BASELINES)}")
    if epochs is not None and (epochs < 1 or not BASELINES[name].environment):
        raise InputError(f"epochs is {epochs}; give at least 1, and only to chemprop or attentivefp")
    task = resolve(replace(task, dataset=dataset))[0]
    trainer = BaselineTask(name, task, Path(environments).expanduser())
    own = [f"{package}=={version(package)}" for package in ("rdkit", "scikit-learn")]
    hyper: dict[str, Any] = {**BASELINES[name].settings, "packages": BASELINES[name].environment or own}
    hyper |= {"epochs": epochs} if epochs else {}
    directory = Path(output or f"runs/baselines/{name}/{Path(dataset).name.split('.')[0].lower()}")
    settings = plain({"baseline": name, "task": identity(trainer.task), **trainer.data_settings})
    recipe = {"name": name, "dataset": dataset, "output": output, "task": task, "epochs": epochs}
    return run_task(directory, trainer, {"": hyper}, seeds, settings, recipe)


class BaselineTask(LabelledTask):
    """A labelled table, and how to train a baseline on it."""

    def __init__(self, name: str, task: TaskConfig, environments: Path) -> None:
        self.baseline = BASELINES[name]
        if task.task_type in ("question_answering", "token_classification"):
            raise InputError(f"{task.task_type} has no baseline; use a table with labels for each row as a whole")
        super().__init__(task, TextKind(None, "none"))
        if self.task.molecules != self.baseline.molecules:
            fitting = ", ".join(key for key, entry in BASELINES.items() if entry.molecules == self.task.molecules)
            found = f"{task.dataset} has {'molecules' if self.task.molecules else 'text'}"
            raise InputError(f"{found}, which {name} does not read; use {fitting}, or set task.molecules")
        packages = self.baseline.environment
        self.python = models.interpreter(packages, environments) if packages else None

    def read_rows(self, table: LabelledTable) -> Rows:
        """The rows without tokens. What RDKit cannot parse is left out."""
        found = table.problems
        if self.task.molecules and self.task.on_invalid == "keep":
            raise InputError("a baseline cannot keep what RDKit cannot parse; set task.on_invalid to skip")
        if self.task.molecules:
            found = [reason or molecule_problem(text) or "" for reason, text in zip(found, table.texts, strict=True)]
        return Rows(table, [], found, found)

    def train_seed(self, run_dir: Path, hyper: dict[str, Any], seed: int) -> dict[str, Any]:
        """Trains with one seed. Returns what `record` tells and the seconds it took."""
        run_dir.mkdir(parents=True, exist_ok=True)
        table, split, used = self.rows.table, self.split(seed), np.flatnonzero(self.rows.usable)
        known = np.isin(np.arange(len(table.texts)), [*split["train"], *split["valid"]])
        labels = np.where(known[:, None], table.labels, np.nan)
        learned = np.flatnonzero(~np.isnan(labels[split["train"]]).all(0))  # the other tasks have no label in train
        columns = np.arange(len(table.classes)) if table.classes else learned
        everything = np.full((len(table.texts), len(table.classes or table.label_columns)), np.nan)
        everything[used] = 0.5  # for tasks of which nothing can be learned

        def everywhere(predictions: np.ndarray) -> np.ndarray:
            """Predictions of the used rows for all rows (NaN)."""
            everything[np.ix_(used, columns)] = predictions
            return everything

        problem = models.Problem(
            texts=[standardize(table.texts[row], self.task.standardize or "none") for row in used],
            pairs=[table.pairs[row] for row in used] if table.pairs else None,
            labels=labels[np.ix_(used, learned)],
            train=np.searchsorted(used, split["train"]),
            valid=np.searchsorted(used, split["valid"]),
            task_type=table.task_type,
            outputs=len(columns),
            score=lambda p: rank(self.score(everywhere(p), split["valid"])[self.metric], self.metric),
            seed=seed,
            epochs=hyper.get("epochs"),
            log=run_dir / "program.log",
            python=self.python,
        )
        start = time.monotonic()
        predictions = everywhere(self.baseline.fit_predict(problem))
        return {"seconds": round(time.monotonic() - start, 1), **self.record(run_dir, split, predictions)}
