"""What a baseline gets, and how its predictions are scored."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.tasks.labels.metrics import goodness
from exlm.tasks.labels.scores import score_predictions


@dataclass(frozen=True)
class BaselineInputs:
    """What a baseline learns from, and the texts that it has to predict.

    Attributes:
        name: the key in BASELINES.
        saved_task: what is kept of the task.
        metric: what chooses the strength of regularisation on the valid rows.
        epochs: the most epochs of a program, if not its own number.
        environments: the folder of the Python environments of programs.
        log: the file that gets the output of a program.
        texts: [rows] SMILES, standardized, or texts; all of them are predicted. Those that are only
            predicted, which are not saved, are the last ones.
        pairs: [rows] the second texts, if the task is on pairs.
        labels: [rows, labels], classes as indices [rows, 1]; NaN where a label is missing, and in
            rows that are only predicted.
        train: numbers of the rows to learn from.
        valid: numbers of the rows that choose the epoch or the strength of regularisation."""

    name: str
    saved_task: SavedTask
    metric: str
    seed: int
    epochs: int | None
    environments: str
    log: Path
    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.saved_task.task_type]

    @property
    def is_learnable(self) -> np.ndarray:
        """[labels] bool: whether a column has any label in train."""
        return ~np.isnan(self.labels[self.train]).all(0)

    @property
    def learnable_labels(self) -> np.ndarray:
        """[rows, learnable labels]."""
        return self.labels[:, self.is_learnable]

    @property
    def outputs(self) -> int:
        """Predictions for a row: classes for multiclass, learnable labels for all others."""
        return len(self.saved_task.class_names or self.learnable_labels.T)

    def all_labels(self, predictions: np.ndarray) -> np.ndarray:
        """Predictions [rows, outputs] and 0.5 for labels of which nothing can be learned."""
        if self.saved_task.class_names:
            return predictions
        of_all_labels = np.full(self.labels.shape, 0.5)
        of_all_labels[:, self.is_learnable] = predictions
        return of_all_labels

    def score(self, predictions: np.ndarray) -> float:
        """How good predictions [rows, outputs] are on valid; higher is better."""
        scores = score_predictions(
            self.label_type,
            labels=self.labels[self.valid],
            predictions=self.all_labels(predictions)[self.valid],
            error_units=self.saved_task.error_units,
        )
        return goodness(scores[self.metric], self.metric)
