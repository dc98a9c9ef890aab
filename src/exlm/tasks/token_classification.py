"""Classification of every residue or word of a text: secondary structure, named entities.

Residues and words are the units. Labels and predictions are arrays over the units of a row, so that
they do not depend on the tokenizer. What a model says about a unit is what it says about its first
token."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from exlm.data.columns import check_columns, listed
from exlm.data.frames import read_frames
from exlm.errors import InputError
from exlm.ops.expansion import IGNORED
from exlm.tasks.cells import check_no_list_as_text
from exlm.tasks.config import TaskConfig
from exlm.tasks.datasets import load_labelled
from exlm.tasks.encoders import EncoderSource, Models, SavedTask, TunedModel
from exlm.tasks.inference import batch_outputs
from exlm.tasks.metrics import diverged
from exlm.tasks.predictions import PredictOptions
from exlm.tasks.table import LabelledTable, note_unscored
from exlm.tasks.table_task import TableTask

# the units, as regular expressions
RESIDUE = r"\S"
WORD = r"\S+"
NO_LABEL = str(IGNORED)  # in place of the label of a unit that does not count
# usual names of the column of labels, in any case; the first that there is
TAG_COLUMNS = ("label", "labels", "ner_tags", "tags", "ner", "tag", "pos_tags")
NOT_READ = "-"  # in place of the label of a unit that was cut off


class TokenClassification(TableTask):
    """A table with a string of labels for every text (`FinetuningTask`)."""

    model_classes: ClassVar[Models] = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    has_baselines: ClassVar[bool] = False
    can_explain: ClassVar[bool] = False
    padding_side: ClassVar[str | None] = "right"  # so that tokens are counted from the first one

    def __init__(self, encoder: EncoderSource, config: TaskConfig, device: str = "auto") -> None:
        label_columns = config.label_columns or [_tag_column(config)]
        if len(label_columns) > 1 or config.pair_column:
            raise InputError(
                "token_classification has one text column and one label column; name no others"
            )
        config = replace(config, label_columns=label_columns, molecules=False)
        super().__init__(encoder, config, device)

    def load_table(self, config: TaskConfig) -> LabelledTable:
        """The table with the class of every unit; classes are all labels that there are."""
        assert config.label_columns  # named in `__init__`
        [label_column] = config.label_columns
        table = load_labelled(replace(config, label_columns=[]))
        check_columns(table.frame, config.dataset, label_column, config.mask_column)
        check_no_list_as_text(table.frame[label_column], config.dataset)
        has_words = any(len(text.split()) > 1 for text in table.texts)
        has_lists = any(isinstance(cell, list) for cell in table.frame[table.text_column])
        unit = WORD if has_words or has_lists else RESIDUE
        names = chain.from_iterable(units(table.frame[label_column].fillna(""), unit))
        classes = sorted({*names} - {NO_LABEL})
        labels, label_problems = read_labels(table, label_column, config.mask_column, unit, classes)
        problems = [
            problem or label_problem
            for problem, label_problem in zip(table.problems, label_problems, strict=True)
        ]
        return replace(
            table,
            labels=labels,
            label_columns=[label_column],
            problems=problems,
            classes=classes,
            unit=unit,
        )

    def batch_labels(self, batch: dict[str, Tensor], rows: np.ndarray, saved: SavedTask) -> Tensor:
        """The class of every token [n, S]: a unit's class belongs to its first token, all others
        have IGNORED."""
        assert self.table.unit_starts is not None  # `TextReader` found them
        unit_starts = self.table.unit_starts[rows]
        classes = self.table.labels[rows]
        labels = np.full(batch["input_ids"].shape, IGNORED)
        row, unit = np.nonzero((unit_starts >= 0) & ~np.isnan(classes))
        labels[row, unit_starts[row, unit]] = classes[row, unit]
        return torch.from_numpy(labels)

    def saved_table(self, train_rows: np.ndarray) -> SavedTask:
        assert self.table.unit  # `load_table` found it
        saved = super().saved_table(train_rows)
        return {**saved, "unit": self.table.unit, "mask_column": self.config.mask_column}

    @staticmethod
    def table_to_predict(
        frame: pd.DataFrame, path: str, options: PredictOptions, saved: SavedTask
    ) -> LabelledTable:
        table = TableTask.table_to_predict(frame, path, options, saved)
        return replace(table, unit=saved["unit"])

    @classmethod
    def outputs(
        cls, tuned: TunedModel, table: LabelledTable, rows: np.ndarray, progress: str | None = None
    ) -> np.ndarray:
        """Outputs for the units of some rows [all rows, units, classes] float32, NaN where none;
        Diverged if one is no number."""
        network, tokenizer, saved = tuned
        assert table.unit_starts is not None  # `TextReader` found them
        shape = (*table.unit_starts.shape, len(cls.head_names(saved)))
        result = np.full(shape, np.nan, np.float32)
        batches = batch_outputs(
            model=network,
            function=lambda **batch: network(**batch).logits,
            examples=[table.examples[row] for row in rows],
            tokenizer=tokenizer,
            precision=saved["precision"],
            progress=progress,
            padding_side=cls.padding_side,
        )
        for numbers, logits in batches:
            if np.isnan(logits).any():
                raise diverged("the outputs are not numbers")
            starts = table.unit_starts[rows[numbers]]
            unit_logits = np.take_along_axis(logits, starts.clip(0)[..., None], 1)
            unit_logits[starts < 0] = np.nan
            result[rows[numbers]] = unit_logits
        return result

    @staticmethod
    def prediction_columns(
        predictions: np.ndarray, table: LabelledTable, saved: SavedTask
    ) -> dict[str, Any]:
        """The labels of every row in one string."""
        assert saved["classes"]
        labels = spelled(predictions, table.texts, saved["classes"], saved["unit"])
        return {"predicted label": labels}

    @staticmethod
    def saved_labels(table: LabelledTable, input: str, saved: SavedTask) -> np.ndarray:
        """The classes of the units [rows, units], NaN where a row has no labels that fit."""
        [label_column] = saved["label_columns"]
        assert saved["classes"]
        labels, problems = read_labels(
            table, label_column, saved["mask_column"], saved["unit"], saved["classes"]
        )
        cells = table.frame[label_column].fillna("")
        unscored = {row: problems[row] for row, cell in enumerate(cells) if cell and problems[row]}
        note_unscored(unscored, table.frame.index, input)
        return labels


def _tag_column(config: TaskConfig) -> str:
    """The first of TAG_COLUMNS that the table has, in any case."""
    columns = next(read_frames(config.dataset, config.header, 1, sheet=config.sheet)).columns
    names = {str(column).lower(): column for column in reversed(columns)}
    for name in TAG_COLUMNS:
        if name in names:
            return names[name]
    raise InputError(
        f"{config.dataset}: cannot tell the column of labels; "
        f"set label_columns to one of: {listed(columns)}"
    )


def units(cells: Iterable[Any], unit: str) -> list[list[str]]:
    """The residues or words in every cell, which may be a list of them."""
    return [
        [str(item) for item in cell] if isinstance(cell, list) else re.findall(unit, str(cell))
        for cell in cells
    ]


def read_labels(
    table: LabelledTable,
    label_column: str,
    mask_column: str | None,
    unit: str,
    classes: Sequence[str],
) -> tuple[np.ndarray, list[str]]:
    """Class indices [rows, units], NaN where there is no label, and what is wrong with each row, ""
    if nothing is."""
    texts = units(table.texts, unit)
    names_of_rows = units(table.frame[label_column].fillna(""), unit)
    masks = [["1"] * len(names) for names in names_of_rows]
    if mask_column:
        masks = units(table.frame[mask_column].fillna(""), unit)
    index = {name: float(i) for i, name in enumerate(classes)}
    labels = np.full((len(texts), max(map(len, texts))), np.nan)
    problems = [""] * len(texts)
    for row, (text, names, mask) in enumerate(zip(texts, names_of_rows, masks, strict=True)):
        unknown_labels = set(names) - {*index, NO_LABEL}
        if not len(text) == len(names) == len(mask):
            problems[row] = (
                f"{len(text)} residues or words, but {len(names)} labels and a mask of {len(mask)}"
            )
        elif unknown_labels:
            problems[row] = f"the model has no label {min(unknown_labels)!r}"
        else:
            classes_of_units = np.array([index.get(name, np.nan) for name in names])
            is_masked = np.array([mark == "0" for mark in mask], dtype=bool)
            labels[row, : len(names)] = np.where(is_masked, np.nan, classes_of_units)
    return labels, problems


def spelled(
    predictions: np.ndarray, texts: list[str], classes: Sequence[str], unit: str
) -> list[str]:
    """The most probable labels of every row as one string, from predictions [rows, units, classes];
    "" for rows without any."""
    was_read = ~np.isnan(predictions[..., 0])
    best = np.nan_to_num(predictions).argmax(-1)
    labels = np.where(was_read, np.array(classes, dtype=object)[best], NOT_READ)
    space = "" if unit == RESIDUE else " "
    return [
        space.join(labels[row, : len(text_units)]) if was_read[row].any() else ""
        for row, text_units in enumerate(units(texts, unit))
    ]
