"""Entities of texts, as the labels B-PER and I-PER of words mark them, and their scores."""

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from exlm.data.conll import ENTITY_TAG
from exlm.tasks.labels.metrics import NAN


class Entity(NamedTuple):
    first_unit: int  # counted over all rows
    kind: str  # such as PER
    unit_count: int


def has_entities(class_names: Sequence[str] | None) -> TypeGuard[Sequence[str]]:
    """Whether classes mark entities: O, and others such as B-PER and I-PER."""
    names = set(class_names or ())
    return bool(names - {"O"}) and all(map(ENTITY_TAG.fullmatch, names))


def entity_f1(labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]) -> float:
    """The F1 score of whole entities, as the package seqeval and the script conlleval define it;
    NaN if there are none.

    Labels [rows, units] and predictions [rows, units, classes] are NaN for units that do not count.
    An entity begins at B or S, after E or S, and where the units before it are of another kind."""
    true, predicted = _true_and_predicted(labels, predictions, class_names)
    return _scores(true, predicted)["f1"] if true | predicted else NAN


def score_entities(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of the entities of every kind (0 where undefined), and how many
    `entities` there are; arguments as for `entity_f1`."""
    true, predicted = _true_and_predicted(labels, predictions, class_names)
    scores = {}
    for kind in sorted({name[2:] for name in class_names if name != "O"}):
        true_of_kind = {entity for entity in true if entity.kind == kind}
        predicted_of_kind = {entity for entity in predicted if entity.kind == kind}
        scores[kind] = _scores(true_of_kind, predicted_of_kind)
    return scores


def _scores(true: set[Entity], predicted: set[Entity]) -> dict[str, float]:
    right = len(true & predicted)
    return {
        "entities": len(true),
        "precision": right / max(len(predicted), 1),
        "recall": right / max(len(true), 1),
        "f1": 2 * right / max(len(true) + len(predicted), 1),
    }


def _true_and_predicted(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> tuple[set[Entity], set[Entity]]:
    rows, columns = np.nonzero(~np.isnan(labels) & ~np.isnan(predictions[..., 0]))
    probabilities = predictions[rows, columns]
    # What the tokenizer reads as nothing has no probability over 0, and is outside of all entities.
    names = [*class_names, "O"]
    predicted = np.where(probabilities.any(-1), probabilities.argmax(-1), len(class_names))
    true = _entities(rows, labels[rows, columns].astype(int), class_names)
    return true, _entities(rows, predicted, names)


def _entities(rows: np.ndarray, tags: np.ndarray, class_names: Sequence[str]) -> set[Entity]:
    """All entities, from the row and the class of every unit. L and U of BILOU are E and S."""
    unit_counts = dict[tuple[int, str], int]()
    first_unit = 0
    before = None
    for unit, (row, tag) in enumerate(zip(rows, tags, strict=True)):
        prefix = class_names[tag][0]
        kind = class_names[tag][2:]
        if prefix != "O":
            goes_on = prefix in "IEL" and before in ((row, "B", kind), (row, "I", kind))
            if not goes_on:
                first_unit = unit
            unit_counts[first_unit, kind] = unit - first_unit + 1
        before = (row, prefix, kind)
    return {Entity(first, kind, count) for (first, kind), count in unit_counts.items()}
