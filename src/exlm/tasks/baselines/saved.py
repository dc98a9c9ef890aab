"""What a baseline leaves for predictions: the rows that it learned from.

It is fitted to them again, with the same seed, which gives the same model. So a file that somebody
passes on is data; a saved object of scikit-learn could run any code where it is loaded."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from exlm.data.problems import OnInvalid
from exlm.data.spelling import Spelling
from exlm.errors import InputError
from exlm.storage.files import read_or_empty, write_json
from exlm.tasks.baselines import BASELINES
from exlm.tasks.baselines.fit_inputs import FitInputs, check_texts, protein_letters
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import goodness
from exlm.tasks.results import BASELINE_FILE
from exlm.tasks.rows.reading import TableTokens
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.labelled_predictions import LabelledPredictions
from exlm.tasks.tables.predictions import PredictOptions
from exlm.tasks.tables.seed_models import SeedModel

ARRAYS = {"labels": float, "train": int, "valid": int}


@dataclass(frozen=True)
class SavedBaseline:
    """The content of `baseline.json`: the rows of train and valid, as in `FitInputs`, with their
    labels in all columns."""

    name: str  # the key in BASELINES
    task: SavedTask
    metric: str  # chooses the strength of regularisation on the valid rows
    seed: int
    epochs: int | None
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray

    def write(self, run_dir: Path) -> None:
        lists = {name: getattr(self, name).tolist() for name in ARRAYS}
        write_json(run_dir / BASELINE_FILE, {**vars(self), **lists, "task": self.task.to_json()})

    @classmethod
    def read(cls, run_dir: Path) -> "SavedBaseline":
        """InputError if the file is damaged or names an unknown baseline."""
        content = read_or_empty(run_dir / BASELINE_FILE)
        try:
            values = {name: content[name] for name in cls.__dataclass_fields__}
            if values["name"] not in BASELINES:
                raise ValueError(f"there is no baseline {values['name']}")
            for name, number in ARRAYS.items():
                values[name] = np.array(values[name], dtype=number)
            return cls(**values | {"task": SavedTask.from_json(values["task"])})
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{run_dir / BASELINE_FILE} is damaged, or of another version of exlm; "
                "restore it or train the baseline again"
            ) from None

    @property
    def _is_learnable(self) -> np.ndarray:
        """[labels] bool: whether a column has any label in train."""
        return ~np.isnan(self.labels[self.train]).all(0)

    def predict(self, table: TextTable, log: Path) -> np.ndarray:
        """Fits the baseline to its rows, and predicts for a table: [rows, classes or labels], NaN
        for rows that cannot be used. `log` gets the output of a program."""
        rows = np.flatnonzero(table.usable)
        spelling = Spelling(BASELINES[self.name].molecules, self.task.standardize)
        texts = [spelling.as_read(table.texts[row]) for row in rows]
        pairs = None
        if self.pairs and table.pairs:
            pairs = self.pairs + [table.pairs[row] for row in rows]
        labels = self.labels[:, self._is_learnable]
        without_labels = np.full((len(rows), labels.shape[1]), np.nan)
        inputs = FitInputs(
            texts=self.texts + texts,
            pairs=pairs,
            labels=np.concatenate([labels, without_labels]),
            train=self.train,
            valid=self.valid,
            label_type=self.task.label_type,
            outputs=len(self.task.class_names or labels.T),
            goodness_on_valid=self._goodness_on_valid,
            seed=self.seed,
            epochs=self.epochs,
            log=log,
        )
        all_predictions = self._fill_up(BASELINES[self.name].fit_predict(inputs))
        predictions = np.full((len(table.texts), all_predictions.shape[1]), np.nan)
        predictions[rows] = all_predictions[len(self.texts) :]
        return predictions

    def _fill_up(self, predictions: np.ndarray) -> np.ndarray:
        """Predictions [rows, outputs] with 0.5 for labels of which nothing can be learned."""
        if self.task.class_names:
            return predictions
        of_all_labels = np.full((len(predictions), self.labels.shape[1]), 0.5)
        of_all_labels[:, self._is_learnable] = predictions
        return of_all_labels

    def _goodness_on_valid(self, predictions: np.ndarray) -> float:
        """How good predictions [rows, outputs] are on valid; higher is better."""
        labelled = LabelledPredictions(self.task, self.labels, self._fill_up(predictions))
        score = labelled.score(self.valid)[self.metric]
        return goodness(score, self.task.label_type.metrics[self.metric])


@dataclass(frozen=True)
class BaselineModel(SeedModel):
    """A saved baseline, which is fitted again to predict."""

    baseline: SavedBaseline
    reads_tokens: ClassVar[bool] = False

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer of proteins, if the baseline learned from proteins."""
        return protein_letters(self.baseline.texts)

    def check_texts(
        self, table: TextTable, path: str, molecules: bool, on_invalid: OnInvalid
    ) -> tuple[TextTable, TableTokens]:
        """The rows without tokens, which baselines do not read."""
        letters = None if molecules else self.tokenizer
        checked = check_texts(table, molecules, letters, on_invalid)
        checked.check(path, on_invalid)
        return checked, TableTokens([])

    def predict(
        self, table: TextTable, tokens: TableTokens, options: PredictOptions, shows_progress: bool
    ) -> np.ndarray:
        return self.baseline.predict(table, self.directory / "predict.log")
