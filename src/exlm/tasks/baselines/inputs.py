"""What a baseline gets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exlm.tasks.labels.label_types import LabelType


@dataclass(frozen=True)
class FitInputs:
    """What a baseline learns from, and the texts that it has to predict.

    Attributes:
        texts: [rows] SMILES, standardized, or texts; all of them are predicted.
        pairs: [rows] the second texts, if the task is on pairs.
        labels: [rows, labels that train has], classes as indices [rows, 1]; NaN where a label is
            missing, and in rows that are only predicted.
        train: numbers of the rows to learn from.
        valid: numbers of the rows that choose the epoch or the strength of regularisation.
        outputs: predictions for a row: classes for multiclass, labels for all others.
        score: how good predictions [rows, outputs] are on valid; higher is better.
        epochs: the most epochs of a program, if not its own number.
        log: the file that gets the output of a program."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    train: np.ndarray
    valid: np.ndarray
    label_type: LabelType
    outputs: int
    score: Callable[[np.ndarray], float]
    seed: int
    epochs: int | None
    log: Path
