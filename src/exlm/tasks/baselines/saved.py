"""What a baseline leaves for predictions: the rows that it learned from.

It is fitted to them again, with the same seed, which gives the same model. So a file that somebody
passes on is data; a saved object of scikit-learn could run any code where it is loaded."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from tqdm import tqdm

from exlm.data.chemistry import molecule_problem, standardize
from exlm.errors import InputError
from exlm.storage.files import read_or_empty, write_json
from exlm.tasks.baselines import BASELINES
from exlm.tasks.baselines.base import BaselineInputs
from exlm.tasks.baselines.programs import environment
from exlm.tasks.encoders import SavedTask, prediction_names
from exlm.tasks.grid import BASELINE_FILE
from exlm.tasks.metrics import goodness, score_predictions
from exlm.tasks.table import LabelledTable
from exlm.tasks.table_task import FileToPredict, TableTask


@dataclass(frozen=True)
class FittedBaseline:
    """A baseline, what it learns from and what it has to predict. `BaselineInputs` tells of the
    fields that it has too; molecules are standardized."""

    name: str  # the key in BASELINES
    task: SavedTask
    metric: str  # chooses the strength of regularisation on the valid rows
    seed: int
    epochs: int | None
    environments: str  # the folder of the Python environments of programs
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray

    def predictions(self, log: Path) -> np.ndarray:
        """Predictions for all rows, [rows, outputs]: 0.5 for labels of which nothing can be
        learned. `log` is for the output of a program."""
        baseline = BASELINES[self.name]
        classes = self.task["classes"]
        # Nothing can be learned of a label column that is empty in train.
        learnable = np.flatnonzero(~np.isnan(self.labels[self.train]).all(0))
        columns = np.arange(len(classes)) if classes else learnable

        def all_outputs(predictions: np.ndarray) -> np.ndarray:
            outputs = np.full((len(self.texts), len(prediction_names(self.task))), 0.5)
            outputs[:, columns] = predictions
            return outputs

        def score(predictions: np.ndarray) -> float:
            scores = score_predictions(
                self.task["task_type"],
                self.labels[self.valid],
                all_outputs(predictions)[self.valid],
                self.task["error_units"],
            )
            return goodness(scores[self.metric], self.metric)

        inputs = BaselineInputs(
            texts=self.texts,
            pairs=self.pairs,
            labels=self.labels[:, learnable],
            train=self.train,
            valid=self.valid,
            task_type=self.task["task_type"],
            outputs=len(columns),
            score=score,
            seed=self.seed,
            epochs=self.epochs,
            log=log,
            python=program_python(self.name, self.environments),
        )
        return all_outputs(baseline.fit_predict(inputs))

    def save(self, run_dir: Path) -> None:
        """Writes the rows of train and valid, and all that else is needed to fit it again."""
        rows = np.sort(np.concatenate([self.train, self.valid]))
        learned_from = replace(
            self,
            texts=[self.texts[row] for row in rows],
            pairs=[self.pairs[row] for row in rows] if self.pairs else None,
            labels=self.labels[rows].tolist(),
            train=np.searchsorted(rows, self.train).tolist(),
            valid=np.searchsorted(rows, self.valid).tolist(),
        )
        write_json(run_dir / BASELINE_FILE, learned_from)

    @classmethod
    def load(cls, run_dir: Path) -> "FittedBaseline":
        """What `save` wrote; InputError if the file is damaged."""
        content = read_or_empty(run_dir / BASELINE_FILE)
        try:
            labels = np.array(content.pop("labels"), dtype=float)
            train, valid = (np.array(content.pop(part), dtype=int) for part in ("train", "valid"))
            return cls(**content, labels=labels, train=train, valid=valid)
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{run_dir / BASELINE_FILE} is damaged; restore it or train the baseline again"
            ) from None

    def predict(self, texts: list[str], pairs: list[str] | None, log: Path) -> np.ndarray:
        """Predictions for other texts, by the model that was trained: [texts, outputs]."""
        unknown = np.full((len(texts), self.labels.shape[1]), np.nan)
        with_texts = replace(
            self,
            texts=self.texts + texts,
            pairs=self.pairs + pairs if self.pairs and pairs else None,
            labels=np.concatenate([self.labels, unknown]),
        )
        return with_texts.predictions(log)[len(self.texts) :]


def program_python(name: str, environments: str) -> Path | None:
    """The Python of a baseline that is a program of its own, installed at first use."""
    packages = BASELINES[name].packages
    return environment(packages, Path(environments).expanduser()) if packages else None


def leave_out_what_is_no_molecule(table: LabelledTable) -> LabelledTable:
    """The table, in which the problem of every row that RDKit cannot parse is named."""
    problems = [
        problem or molecule_problem(text) or ""
        for problem, text in zip(table.problems, table.texts, strict=True)
    ]
    return replace(table, problems=problems)


class BaselinePredictions(TableTask):
    """Predictions with saved baselines: of `TableTask` what comes after a model's outputs."""

    predicts_in_chunks: ClassVar[bool] = False  # every chunk of a file would fit the model again
    can_explain: ClassVar[bool] = False

    @classmethod
    def _run(
        cls, file: FileToPredict, rows: pd.DataFrame, shows_progress: bool
    ) -> tuple[LabelledTable, dict[str, np.ndarray]]:
        saved = file.models[0].saved
        table = cls.table_to_predict(rows, file.path, file.options, saved)
        if file.molecules:
            table = leave_out_what_is_no_molecule(table)
        table.check(file.path, file.options.on_invalid)
        usable_rows = np.flatnonzero(table.usable)
        texts = [standardize(table.texts[row], saved["standardize"]) for row in usable_rows]
        pairs = [table.pairs[row] for row in usable_rows] if table.pairs else None
        runs = {}
        for model in tqdm(file.models, "fitting again", unit="model", disable=not shows_progress):
            fitted = FittedBaseline.load(model.directory)
            predictions = np.full((len(table.texts), len(prediction_names(saved))), np.nan)
            predictions[usable_rows] = fitted.predict(texts, pairs, model.directory / "predict.log")
            runs[model.directory.name] = predictions
        return table, runs
