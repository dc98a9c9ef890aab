"""How to predict, and what predictions for a file are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.ops.precision import Precision
from exlm.tasks.labels.scores import RowScorer
from exlm.tasks.rows.reading import ReadOptions

ENSEMBLE = "ensemble"  # the mean of several models, among their names


@dataclass(frozen=True)
class PredictOptions(ReadOptions):
    """How to predict.

    Attributes:
        calibrated: divide the logits by the temperature that was fitted on the validation rows, so
            that probabilities are closer to how often they are right. Which class is the most
            probable stays the same for one model, with each task type that `exlm` has.
        label_columns: the columns of the labels, in the order of the training where they have
            other names; where absent, those with the names of the training.
        pair_column: the column of the second texts, if it has another name than in the training.
        interval: a share of rows, such as 0.9. Add bounds of every number, `lower ...` and
            `upper ...`, or the possible classes, `set ...`, that contain the truth in this share of
            rows, if they are like the validation rows. `coverage` in the scores is the true share.
        explain: an .html page to write: by how much each prediction changes when a token or word is
            masked, drawn on the molecules; the numbers are in the column `explanation`. Takes a
            prediction for every token of a row, and memory for the whole table.
        distance: add a column: 1 - a molecule's highest Tanimoto similarity (ECFP4) to a training
            molecule.
        precision: fp32, which gives the same numbers on all machines, within rounding; bf16, which
            is faster on some; or auto, as in training."""

    calibrated: bool = False
    interval: float | None = None
    explain: str | None = None
    distance: bool = False
    precision: Precision = "fp32"
    label_columns: list[str] | None = None
    pair_column: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """How the rows of a file that have labels are scored."""

    scorers: Mapping[str, RowScorer]  # by the name of the model; of several, ENSEMBLE comes first
    rows: np.ndarray  # the numbers of the rows to score
    # how many of them have a text or molecule of the training; None if this is not known
    seen_rows: int | None = None
    positives: int | None = None  # how many have label 1, if every row has one of two classes
    unknown_labels: int = 0  # rows with a label that the models do not know
    # of the first model, by the name of the entry in a report: the scores of every label and of
    # every class by itself, and which classes are predicted for which; {} where there are none
    details: Mapping[str, Mapping[str, Mapping[str, float]]] = field(
        default_factory=lambda: {"labels": {}, "classes": {}, "confusion": {}}
    )


@dataclass(frozen=True)
class Predictions:
    """What the models predict for a file, and how it is scored."""

    # every row of the file, with its prediction or, in the column `problem`, why it has none
    frame: pd.DataFrame
    counts: dict[str, int]  # of rows, by what they are
    evaluation: Evaluation | None = None
    note: str = ""  # why there is no evaluation, if the file has labels
    # label columns of the frame as the numbers that they say, if all their texts are numbers
    label_numbers: Mapping[str, pd.Series] = field(default_factory=dict)


def nothing_to_score(path: str, problem: str) -> InputError:
    """The error for a file that is to be scored, and cannot be."""
    # The problem may be an error of its own, which begins with the file.
    return InputError(f"{path}: nothing can be scored: {problem.removeprefix(f'{path}: ')}")


class Predictor(NamedTuple):
    """What predicts for a file with the models of all seeds."""

    # for the whole file; with True, what cannot be scored is an InputError before anything is
    # predicted
    predict: Callable[[bool], Predictions]
    # for some rows of the file; None if all rows must be predicted together
    predict_rows: Callable[[FileRows], Predictions] | None = None
    label_columns: Sequence[str] = ()  # the columns of the file that have labels
