"""What labels are, for every type of task: what a model learns of them, how its outputs are read,
and how predictions are scored.

A further type is an entry of LABEL_TYPES, and if it has another loss or reads outputs in another
way, a subclass of `LabelType`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from exlm.model.downstream import classification_loss
from exlm.tasks.metrics import BINARY_METRICS, CLASS_METRICS, NUMBER_METRICS, Metric


@dataclass(frozen=True)
class LabelType(ABC):
    """What the labels of a table are: [rows, labels], NaN where one is missing.

    Attributes:
        metrics: those of its predictions; the first one chooses the epoch if no other is named.
        class_per_row: whether every row has one class, in one column.
        of_units: whether the residues or words of a text have labels, each one class."""

    metrics: tuple[Metric, ...]
    class_per_row: bool = False
    of_units: bool = False

    # labels are numbers: models learn them in standard deviations, and predict no probabilities
    is_number: ClassVar[bool] = False
    # labels are indices of classes [rows, 1], predictions the probabilities of all [rows, classes]
    predicts_every_class: ClassVar[bool] = False
    # outputs are logits of the labels, which a temperature may divide
    has_temperature: ClassVar[bool] = True
    problem_type: ClassVar[str]  # the loss, as transformers call it

    def head_names(self, names: list[str]) -> list[str]:
        """A name for every output of the model's head, from those of the classes or labels."""
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


class ZerosAndOnes(LabelType):
    """0 or 1 in every column; predictions are the probabilities of 1."""

    problem_type: ClassVar[str] = "multi_label_classification"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip(outputs, -700, 700)))


class Classes(LabelType):
    """One of several classes."""

    predicts_every_class: ClassVar[bool] = True
    problem_type: ClassVar[str] = "single_label_classification"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs, -1)


class Numbers(LabelType):
    """Numbers, which outputs are in standard deviations of the training labels."""

    is_number: ClassVar[bool] = True
    has_temperature: ClassVar[bool] = False
    problem_type: ClassVar[str] = "regression"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs


# by the type of task (`task_type`); one that is not here reads no labels of tables
LABEL_TYPES: dict[str, LabelType] = {
    "binary": ZerosAndOnes(BINARY_METRICS, class_per_row=True),
    "multiclass": Classes(CLASS_METRICS, class_per_row=True),
    "multilabel": ZerosAndOnes(BINARY_METRICS),
    "regression": Numbers(NUMBER_METRICS),
    "token_classification": Classes(CLASS_METRICS, of_units=True),
}
