"""The F1 score of named entities, whose words have tags such as B-PER and I-PER."""

import re
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np


def has_entities(classes: Sequence[str] | None) -> TypeGuard[Sequence[str]]:
    """Whether classes mark entities: O, and others such as B-PER and I-PER."""
    entities = [name for name in classes or () if name != "O"]
    return bool(entities) and all(re.fullmatch("[BIES]-.+", name) for name in entities)


def entity_f1(labels: np.ndarray, predictions: np.ndarray, classes: Sequence[str]) -> float:
    """The F1 score of whole entities, as the package seqeval and the script conlleval define it;
    NaN if there are none. `classes` are those of `has_entities`.

    Labels [rows, units] and predictions [rows, units, classes] are NaN for units that do not count.
    An entity begins at B or S, behind E or S, and where the units before it are of another kind."""
    true_tags = np.where(np.isnan(predictions[..., 0]), np.nan, labels)
    rows, columns = np.nonzero(~np.isnan(true_tags))
    true_sizes, true_kinds = _entities(rows, true_tags[rows, columns].astype(int), classes)
    predicted_tags = predictions[rows, columns].argmax(-1)
    predicted_sizes, predicted_kinds = _entities(rows, predicted_tags, classes)
    hits = (true_sizes > 0) & (true_sizes == predicted_sizes) & (true_kinds == predicted_kinds)
    entities = np.sum(true_sizes > 0) + np.sum(predicted_sizes > 0)
    return float(2 * hits.sum() / entities) if entities else float("nan")


def _entities(
    rows: np.ndarray, tags: np.ndarray, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """How many units the entity has that begins at every unit, 0 if none does, and its kind:
    [units] each, from the row and the tag of every unit."""
    prefixes = np.array([name[0] for name in classes])[tags]
    kinds = np.array([name[2:] for name in classes])[tags]
    inside = prefixes != "O"
    goes_on = np.zeros(len(tags), dtype=bool)
    goes_on[1:] = (
        inside[1:]
        & inside[:-1]
        & (rows[1:] == rows[:-1])
        & (kinds[1:] == kinds[:-1])
        & np.isin(prefixes[1:], ("I", "E"))
        & np.isin(prefixes[:-1], ("B", "I"))
    )
    begins = inside & ~goes_on
    sizes = np.zeros(len(tags), dtype=int)
    numbers = np.cumsum(begins)[inside] - 1
    sizes[begins] = np.bincount(numbers, minlength=int(begins.sum()))
    return sizes, kinds
