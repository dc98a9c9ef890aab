"""What a baseline gets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exlm.tasks.labels.label_types import LabelType


@dataclass(frozen=True)
class FitInputs:
    """What a baseline learns from, and the texts that it has to predict."""

    texts: list[str]  # [rows] SMILES, standardized, or texts; all of them are predicted
    pairs: list[str] | None  # [rows] the second texts, if the task is on pairs
    # [rows, labels that train has], classes as indices [rows, 1]; NaN where a label is missing, and
    # in rows that are only predicted
    labels: np.ndarray
    train: np.ndarray  # numbers of the rows to learn from
    valid: np.ndarray  # of those that choose the epoch or the strength of regularisation
    label_type: LabelType
    outputs: int  # predictions for a row: classes for multiclass, labels for all others
    # how good predictions [rows, outputs] are on valid; higher is better
    score: Callable[[np.ndarray], float]
    seed: int
    epochs: int | None  # the most of a program, if not its own number
    log: Path  # gets the output of a program
