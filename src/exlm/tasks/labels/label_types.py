"""What labels are, for every task type of tables: how cells are read, what a model learns, how its
outputs are read, and how predictions are compared with labels.

| task type            | class          | what a row has             |
| -------------------- | -------------- | -------------------------- |
| regression           | `Numbers`      | a number for each label    |
| multilabel           | `ZerosAndOnes` | 0 or 1 for each label      |
| binary               | `Binary`       | 0 or 1: one of two classes |
| multiclass           | `Classes`      | the index of a class       |
| token_classification | `UnitClasses`  | an index for each unit     |

All but `Numbers` predict probabilities. Other code asks what a label type is by its flags
(`is_number` and so on) or, where scores are meant, by its `metrics`. A further one is a subclass of
`LabelType` and an entry of LABEL_TYPES."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax
from torch import Tensor

from exlm.data.cell_texts import class_name
from exlm.model.downstream import classification_loss
from exlm.tasks.labels.cells import is_whole
from exlm.tasks.labels.metrics import (
    BINARY_METRICS,
    CLASS_METRICS,
    NO_CLASS,
    NUMBER_METRICS,
    UNIT_METRICS,
    Metric,
)


class CellReadings(NamedTuple):
    """The cells of label columns, and what each of them may say; [rows, labels] each."""

    cells: pd.DataFrame  # NaN where missing
    numbers: pd.DataFrame  # NaN where a cell is no number
    with_binary_words: pd.DataFrame  # the numbers, but 0 and 1 for words such as no and yes


class LabelType(ABC):
    """What the labels of a table are: [rows, labels], or indices of classes [rows, 1], NaN where
    missing. Predictions are [rows, labels], or probabilities of classes [rows, classes]."""

    metrics: ClassVar[dict[str, Metric]]  # by name; the first chooses the epoch
    allowed: ClassVar[str]  # what a cell may say; where labels have names, these are listed
    # the loss, as transformers call it; pipelines choose sigmoid or softmax by it
    problem_type: ClassVar[str]
    # labels are numbers: models learn them in standard deviations, and predict no probabilities
    is_number: ClassVar[bool] = False
    is_binary: ClassVar[bool] = False  # every row has one of two classes, called 0 and 1
    has_classes: ClassVar[bool] = False  # labels are indices of classes
    of_units: ClassVar[bool] = False  # the residues or words of a text have labels, not the text

    @property
    def class_per_row(self) -> bool:
        """Whether every row has one class."""
        return self.is_binary or (self.has_classes and not self.of_units)

    def class_names(self, readings: CellReadings) -> list[str]:
        """The names of all classes that cells say, if labels are indices of classes."""
        return []

    @abstractmethod
    def read(self, readings: CellReadings, class_names: Sequence[str] | None) -> pd.DataFrame:
        """The labels that cells say [rows, labels], NaN where a label is missing or not allowed.
        If labels are indices of classes, `class_names` are all classes."""

    def title(self, name: str, labels: np.ndarray) -> str:
        """The `name` of a column, and what is worth telling of its labels [rows]."""
        return name

    def head_names(self, names: list[str]) -> list[str]:
        """A name for every output of the model's head, from the `names` of classes or labels."""
        return names

    def targets(self, labels: np.ndarray) -> Tensor:
        """The labels of some rows [n, labels] as the loss takes them: [n] or [n, labels]."""
        return torch.from_numpy(labels[:, 0] if labels.shape[1] == 1 else labels).float()

    def loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses of a batch's labels, and how many labels these are."""
        return classification_loss(outputs, targets, self.problem_type)

    @abstractmethod
    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """What outputs [rows, `head_names`] stand for: [rows, classes or labels]."""

    def as_rows(self, labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and predictions with a row for everything that has a label and a prediction."""
        return labels, predictions

    def class_probabilities(self, predictions: np.ndarray) -> np.ndarray:
        """The probabilities of all classes of every label: [rows, labels, classes]. Numbers have
        none."""
        raise NotImplementedError

    def most_probable(self, predictions: np.ndarray) -> np.ndarray:
        """The most probable class of every label, by index: [rows, labels]."""
        return self.class_probabilities(predictions).argmax(-1)

    def to_score(self, predictions: np.ndarray) -> np.ndarray:
        """What metrics compare with the labels: [rows, labels]."""
        return predictions

    def errors(self, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """How far predictions are from the labels: [rows, labels], NaN for missing labels."""
        return np.abs(labels - predictions)


class Numbers(LabelType):
    """Numbers. Outputs are numbers in standard deviations of the training labels."""

    metrics: ClassVar[dict[str, Metric]] = NUMBER_METRICS
    allowed: ClassVar[str] = "a number"
    problem_type: ClassVar[str] = "regression"
    is_number: ClassVar[bool] = True

    def read(self, readings: CellReadings, class_names: Sequence[str] | None) -> pd.DataFrame:
        return readings.numbers.where(np.isfinite(readings.numbers))

    def title(self, name: str, labels: np.ndarray) -> str:
        """With the range, in which a -99 for a missing label shows."""
        present = labels[~np.isnan(labels)]
        if not len(present):
            return f"{name} (no label)"
        return f"{name} ({present.min():g} to {present.max():g}, median {np.median(present):g})"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs


class ZerosAndOnes(LabelType):
    """0 or 1 in every column; predictions are the probabilities of 1."""

    metrics: ClassVar[dict[str, Metric]] = BINARY_METRICS
    allowed: ClassVar[str] = "0 or 1"
    problem_type: ClassVar[str] = "multi_label_classification"

    def read(self, readings: CellReadings, class_names: Sequence[str] | None) -> pd.DataFrame:
        return readings.with_binary_words.where(readings.with_binary_words.isin((0, 1)))

    def title(self, name: str, labels: np.ndarray) -> str:
        """With the number of positives."""
        return f"{name} ({(labels == 1).sum()} of {(~np.isnan(labels)).sum()} positive)"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip(outputs, -700, 700)))

    def class_probabilities(self, predictions: np.ndarray) -> np.ndarray:
        return np.stack([1 - predictions, predictions], -1)

    def most_probable(self, predictions: np.ndarray) -> np.ndarray:
        """1 where both are as probable, as metrics count it."""
        return (predictions >= 0.5).astype(int)


class Binary(ZerosAndOnes):
    """0 or 1 in a single column, so that every row has one of two classes."""

    is_binary: ClassVar[bool] = True

    def title(self, name: str, labels: np.ndarray) -> str:
        """The name alone, as for classes."""
        return name


class Classes(LabelType):
    """One of several classes for every row."""

    metrics: ClassVar[dict[str, Metric]] = CLASS_METRICS
    problem_type: ClassVar[str] = "single_label_classification"
    has_classes: ClassVar[bool] = True

    def class_names(self, readings: CellReadings) -> list[str]:
        """All values in order: by number if all are whole numbers, else by letters."""
        names = readings.cells.iloc[:, 0].dropna().map(class_name)
        if not is_whole(readings.cells, readings.numbers):
            return sorted(set(names))
        number_of = dict(zip(names, readings.numbers.iloc[:, 0].dropna(), strict=True))
        return sorted(number_of, key=lambda name: (number_of[name], name))

    def read(self, readings: CellReadings, class_names: Sequence[str] | None) -> pd.DataFrame:
        names = enumerate(class_names or ())
        index_of = {class_name(name): float(index) for index, name in names}
        cells = readings.cells.iloc[:, 0]
        return cells.map(class_name, na_action="ignore").map(index_of).to_frame()

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs, -1)

    def to_score(self, predictions: np.ndarray) -> np.ndarray:
        return self.most_probable(predictions)

    def errors(self, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """1 - the probability of the true class."""
        is_missing = np.isnan(labels)
        of_classes = np.take_along_axis(predictions, np.nan_to_num(labels).astype(int), 1)
        return np.where(is_missing, np.nan, 1 - of_classes)

    def class_probabilities(self, predictions: np.ndarray) -> np.ndarray:
        return predictions[:, None]


class UnitClasses(Classes):
    """One of several classes for every residue or word of a text: labels are [rows, units],
    predictions [rows, units, classes], NaN where a text has no such unit or was cut. Where the
    tokenizer reads a unit as nothing, outputs are -inf, and no class has a probability over 0.
    `rows/units.py` reads the cells."""

    metrics: ClassVar[dict[str, Metric]] = UNIT_METRICS
    of_units: ClassVar[bool] = True

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        is_nothing = np.all(np.isneginf(outputs), -1, keepdims=True)
        return np.where(is_nothing, 0, softmax(np.where(is_nothing, 0, outputs), -1))

    def as_rows(self, labels: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A row for each unit that has both: [n, 1] and [n, classes]."""
        both = ~np.isnan(labels) & np.isfinite(predictions[..., 0])
        return labels[both][:, None], predictions[both]

    def most_probable(self, predictions: np.ndarray) -> np.ndarray:
        """NO_CLASS, which is always wrong, for what the tokenizer reads as nothing."""
        probabilities = self.class_probabilities(predictions)
        return np.where(probabilities.any(-1), probabilities.argmax(-1), NO_CLASS)


# by the task type, if it reads labels of tables
LABEL_TYPES: dict[str, LabelType] = {
    "binary": Binary(),
    "multiclass": Classes(),
    "multilabel": ZerosAndOnes(),
    "regression": Numbers(),
    "token_classification": UnitClasses(),
}
