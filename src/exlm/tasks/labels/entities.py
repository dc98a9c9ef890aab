"""Entities of texts whose words have labels, as B-PER and I-PER mark them, and how predictions of
them are scored."""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
import pandas as pd

from exlm.tasks.labels.metrics import NAN

BILOU = {"L": "E", "U": "S"}  # how BILOU marks the last of several units, and a single one


class Entity(NamedTuple):
    """Where an entity is, and what kind it is of."""

    first_unit: int  # counted over the units of all rows
    unit_count: int
    kind: str


def has_entities(class_names: Sequence[str] | None) -> TypeGuard[Sequence[str]]:
    """Whether classes mark entities: O, and others such as B-PER and I-PER."""
    entities = [name for name in class_names or () if name != "O"]
    return bool(entities) and all(re.fullmatch("[BIESLU]-.+", name) for name in entities)


def entity_f1(labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]) -> float:
    """The F1 score of whole entities, as the package seqeval and the script conlleval define it;
    NaN if there are none. `class_names` are those of `has_entities`.

    Labels [rows, units] and predictions [rows, units, classes] are NaN for units that do not count.
    An entity begins at B or S, after E or S, and where the units before it are of another kind."""
    true, predicted = _true_and_predicted(labels, predictions, class_names)
    count = len(true) + len(predicted)
    return 2 * len(true & predicted) / count if count else NAN


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
        right = len(true_of_kind & predicted_of_kind)
        scores[kind] = {
            "entities": len(true_of_kind),
            "precision": right / max(len(predicted_of_kind), 1),
            "recall": right / max(len(true_of_kind), 1),
            "f1": 2 * right / max(len(true_of_kind) + len(predicted_of_kind), 1),
        }
    return scores


def _true_and_predicted(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> tuple[set[Entity], set[Entity]]:
    """The entities of labels and those of predictions."""
    rows, columns = np.nonzero(~np.isnan(labels) & ~np.isnan(predictions[..., 0]))
    true = _entities(rows, labels[rows, columns].astype(int), class_names)
    return true, _entities(rows, predictions[rows, columns].argmax(-1), class_names)


def _entities(rows: np.ndarray, tags: np.ndarray, class_names: Sequence[str]) -> set[Entity]:
    """All entities, from the row and the class of every unit."""
    names = [class_names[tag] for tag in tags]
    prefixes = [BILOU.get(name[0], name[0]) for name in names]
    units = pd.DataFrame({"row": rows, "prefix": prefixes, "kind": [name[2:] for name in names]})
    before = units.shift()
    goes_on = (
        units["prefix"].isin(["I", "E"])
        & before["prefix"].isin(["B", "I"])
        & (units["row"] == before["row"])
        & (units["kind"] == before["kind"])
    )
    inside = units["prefix"] != "O"
    begins = inside & ~goes_on
    sizes = np.bincount(begins.cumsum()[inside])[1:]
    starts = np.flatnonzero(begins)
    return set(map(Entity, starts.tolist(), sizes.tolist(), units["kind"][begins]))
