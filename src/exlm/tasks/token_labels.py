"""Labels of units: of the residues of a protein, or of the words of a text. They are arrays over
the units of a row, so that they do not depend on the tokenizer. What a model says about a unit is
what it says about its first token."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from exlm.errors import Diverged
from exlm.tasks.inference import run
from exlm.tasks.table import LabelledTable

RESIDUE, WORD = r"\S", r"\S+"  # the units, as regular expressions
NOT_READ = "-"  # in place of the label of a unit that was cut off


def units(cells: Iterable[Any], unit: str) -> list[list[str]]:
    """The residues or words in every cell."""
    return [re.findall(unit, str(cell)) for cell in cells]


def read_labels(table: LabelledTable, task: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Class indices [rows, units], NaN where there is no label, and what is wrong with each row, ""
    if nothing is. `task` has label_columns, mask_column, unit and classes."""
    frame, mask, unit = table.frame.fillna(""), task["mask_column"], task["unit"]
    texts, names = units(table.texts, unit), units(frame[task["label_columns"][0]], unit)
    counts = units(frame[mask], unit) if mask else names
    index = {name: i for i, name in enumerate(task["classes"])}
    labels, problems = np.full((len(texts), max(map(len, texts))), np.nan), [""] * len(texts)
    for row, (own, count) in enumerate(zip(names, counts, strict=True)):
        if not len(texts[row]) == len(own) == len(count):
            problems[row] = (
                f"{len(texts[row])} residues or words, but {len(own)} labels and a mask of {len(count)}"
            )
        elif strange := set(own) - set(index):
            problems[row] = f"the model has no label {min(strange)!r}"
        else:
            chosen = [not mask or entry != "0" for entry in count]
            labels[row, : len(own)] = np.where(chosen, [index[name] for name in own], np.nan)
    return labels, problems


def first_tokens(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, task: dict[str, Any]
) -> np.ndarray:
    """The first token of every unit, -1 where a text has none, or where it was cut: [rows,
    units]."""
    options: dict[str, Any] = dict(
        truncation=True, max_length=task["max_length"], return_offsets_mapping=True
    )
    spans = [[match.span() for match in re.finditer(task["unit"], text)] for text in texts]
    first = np.full((len(texts), max(map(len, spans))), -1)
    tokenizer.padding_side = "right"  # so that tokens are counted from the first one
    for row, offsets in enumerate(tokenizer(texts, **options)["offset_mapping"]):
        owner = np.full(len(texts[row]), -1)
        for unit, span in enumerate(spans[row]):
            owner[slice(*span)] = unit
        # special tokens have no characters
        for token, (start, end) in reversed([*enumerate(offsets)]):
            # the last character decides: a token may begin with a space
            if end > start and owner[end - 1] >= 0:
                first[row, owner[end - 1]] = token
    return first


def unit_logits(
    model: nn.Module,
    table: LabelledTable,
    chosen: np.ndarray,
    task: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
) -> np.ndarray:
    """Outputs for the units of chosen rows [all rows, units, classes], NaN where none; Diverged if
    one is no number."""
    texts, classes = table.texts, len(task["classes"])
    result = np.full(
        (len(texts), max(map(len, units(texts, task["unit"]))), classes), np.nan, np.float32
    )
    if not len(chosen):
        return result
    longest = max(len(example["input_ids"]) for example in table.examples)

    def padded(**batch: Tensor) -> Tensor:
        logits = model(**batch).logits
        return F.pad(logits, (0, 0, 0, longest - logits.shape[1])).flatten(1)

    first = first_tokens([texts[row] for row in chosen], tokenizer, task)[..., None]
    logits = run(model, padded, longest * classes, table, chosen, tokenizer, task["precision"])[
        chosen
    ]
    if np.isnan(logits).any():
        raise Diverged(
            "the model's outputs are not numbers; it has diverged, train it with a lower learning rate"
        )
    found = np.take_along_axis(logits.reshape(-1, longest, classes), first.clip(0), 1)
    result[chosen, : first.shape[1]] = np.where(first < 0, np.nan, found)
    return result


def spelled(predictions: np.ndarray, texts: list[str], task: dict[str, Any]) -> list[str]:
    """The most probable labels of every row as one string; "" for rows without any."""
    names, space = np.array([*task["classes"], NOT_READ]), "" if task["unit"] == RESIDUE else " "
    known = ~np.isnan(predictions[..., 0])
    best = names[np.where(known, np.nan_to_num(predictions).argmax(-1), -1)]
    rows = zip(best, units(texts, task["unit"]), known.any(1), strict=True)
    return [
        space.join(labels[: len(text)]) if any_known else "" for labels, text, any_known in rows
    ]
