"""A label for every residue or word, such as secondary structure or named entities: how a model is trained on them."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from exlm.data.columns import check_columns
from exlm.errors import InputError
from exlm.model.objectives import IGNORED
from exlm.tasks.classification import Classification
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import Models
from exlm.tasks.inference import Rows
from exlm.tasks.table import LabelledTable
from exlm.tasks.token_labels import RESIDUE, WORD, first_tokens, read_labels, units


class TokenClassification(Classification):
    """A table with a string of labels for every text (`kinds.py`)."""

    models: Models = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        self.columns = task.label_columns or ["label"]
        if len(self.columns) > 1 or task.pair_column:
            raise InputError("token_classification has one text column and one label column; name no others")
        super().__init__(model, replace(task, label_columns=[], molecules=False), from_scratch, start_from)
        self.task = replace(self.task, label_columns=self.columns)

    def read_rows(self, table: LabelledTable) -> Rows:
        mask = self.task.mask_column
        check_columns(table.frame, self.task.dataset, *self.columns, mask)
        unit = WORD if any(len(text.split()) > 1 for text in table.texts) else RESIDUE
        cells = units(table.frame[self.columns[0]].fillna(""), unit)
        classes = sorted({name for names in cells for name in names})
        self.further: dict[str, Any] = {
            "label_columns": self.columns,
            "mask_column": mask,
            "max_length": self.max_length,
        }
        self.further |= {"unit": unit, "classes": classes}
        self.first = first_tokens(table.texts, self.tokenizer, self.further)
        labels, faults = read_labels(table, self.further)
        problems = [problem or fault for problem, fault in zip(table.problems, faults, strict=True)]
        known = replace(table, labels=labels, label_columns=self.columns, problems=problems, classes=classes, unit=unit)
        return super().read_rows(known)

    def labels_of(self, batch: dict[str, Tensor], targets: np.ndarray, chosen: np.ndarray) -> Tensor:
        """The class of every token [n, S]: a unit's class belongs to its first token, all others have IGNORED."""
        targets = targets.reshape(len(chosen), -1)
        first, labels = self.first[chosen], np.full(batch["input_ids"].shape, IGNORED)
        row, unit = np.nonzero((first >= 0) & ~np.isnan(targets))
        labels[row, first[row, unit]] = targets[row, unit]
        return torch.from_numpy(labels)

    def _saved_task(self, train: np.ndarray, hyper: FinetuneConfig) -> dict[str, Any]:
        return super()._saved_task(train, hyper) | self.further
