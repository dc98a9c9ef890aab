"""What a baseline is, what it gets and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exlm.tasks.table import LABEL_TYPES, LabelType, TaskType


@dataclass(frozen=True)
class BaselineInputs:
    """What a baseline learns from, and what it has to predict.

    Attributes:
        texts: [rows] SMILES or texts; all of them are predicted.
        pairs: [rows] the second texts, if the task is on pairs.
        labels: [rows, labels], classes as indices [rows, 1]; NaN where a label is missing, and in
            rows that are neither in train nor in valid.
        train: numbers of the rows to learn from; every label column has a label there.
        valid: numbers of the rows that choose the epoch or the strength of regularisation.
        outputs: predictions for a row: classes for multiclass, labels for all others.
        score: how good predictions [rows, outputs] are on valid; higher is better.
        epochs: the most epochs of a program, if not its own number.
        log: file for the output of a program.
        python: the Python that runs a program."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray
    task_type: TaskType
    outputs: int
    score: Callable[[np.ndarray], float]
    seed: int
    epochs: int | None
    log: Path
    python: Path | None

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.task_type]


@dataclass(frozen=True)
class Baseline:
    """A model that is trained from nothing on the labelled data alone.

    Attributes:
        fit_predict: learns, and returns predictions [rows, outputs].
        molecules: whether it reads molecules; else it reads text.
        settings: what the results tell about it.
        packages: what pip installs for a program in an environment that the first one names."""

    fit_predict: Callable[[BaselineInputs], np.ndarray]
    molecules: bool
    settings: dict[str, Any]
    packages: tuple[str, ...] = ()
