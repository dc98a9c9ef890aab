"""Classification and regression of a text, of a pair, or of every residue or word of a text
(secondary structure, named entities): load the data once, then train any number of seeds."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)

from exlm.data.columns import check_columns
from exlm.errors import InputError
from exlm.model.objectives import IGNORED, classification_loss
from exlm.storage.files import write_text
from exlm.storage.models import save_model
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import (
    Models,
    fold_units,
    load_config,
    load_encoder,
    load_encoder_tokenizer,
)
from exlm.tasks.inference import model_inputs, pad, text_kind, tokenize_rows
from exlm.tasks.labelled import LabelledTask
from exlm.tasks.metrics import as_rows
from exlm.tasks.predictions import (
    TRAINING_MOLECULES,
    as_predictions,
    fit_temperature,
    predict_logits,
    predict_table,
)
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LabelledTable
from exlm.tasks.token_labels import RESIDUE, WORD, first_tokens, read_labels, units

DEFAULT_LENGTH = 512
PROBLEM_TYPE = {
    **dict.fromkeys(("multiclass", "token_classification"), "single_label_classification"),
    "regression": "regression",
}  # all others: multi-label


class Classification(LabelledTask):
    """A labelled table, tokenised, and how to train a model on it (`kinds.py`)."""

    models: Models = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    device = "auto"
    predict = staticmethod(predict_table)

    def __init__(
        self,
        model: str,
        task: TaskConfig,
        from_scratch: bool = False,
        start_from: str | None = None,
    ) -> None:
        self.tokenizer, self.max_length = load_encoder_tokenizer(
            model, task.max_length or DEFAULT_LENGTH
        )
        self.new_network = partial(
            load_encoder, model, self.models, from_scratch=from_scratch, start_from=start_from
        )
        super().__init__(task, text_kind(load_config(model)))

    def read_rows(self, table: LabelledTable) -> LabelledTable:
        molecules, keep = bool(self.task.molecules), self.task.on_invalid == "keep"
        return tokenize_rows(
            table, self.tokenizer, self.max_length, molecules, keep, self.task.standardize or "none"
        )

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed and keeps the epoch that is best on valid. Returns it, and what
        `record` tells."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        table, split = self.table, self.split(seed)
        task = self._saved_task(split["train"], hyper)
        targets = (table.labels - task["mean"]) / task["std"]
        targets = targets[:, 0] if targets.shape[1] == 1 else targets
        names = table.classes or table.label_columns
        problem_type = PROBLEM_TYPE.get(table.task_type, "multi_label_classification")

        def collate(chosen: np.ndarray) -> dict[str, Tensor]:
            batch = pad([table.examples[row] for row in chosen], self.tokenizer)
            return batch | {"labels": self.labels_of(batch, targets[chosen], chosen)}

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits = model(**model_inputs(model, batch)).logits.float()
            total, count = classification_loss(
                logits, batch["labels"].to(logits.device), problem_type
            )
            return total, count, torch.zeros_like(count)

        def validate(model: nn.Module) -> dict[str, float]:
            logits = predict_logits(model, table, split["valid"], task, self.tokenizer)
            return self.score(as_predictions(logits, task), split["valid"])

        labels = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
        }
        network = self.new_network(hyper, labels | {"problem_type": problem_type, "task": task})
        lengths = [len(example["input_ids"]) for example in table.examples]
        batches = ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate)
        best_epoch = train_best_epoch(
            network, loss, batches, run_dir, hyper, validate, self.metric, self.device
        )
        wanted = table.usable if table.parts is None else table.usable & (table.parts != "train")
        logits = predict_logits(network, table, np.flatnonzero(wanted), task, self.tokenizer)
        predictions = as_predictions(logits, task)
        if table.task_type == "regression":
            task = fold_units(network, task)
        else:
            known, given = as_rows(table.labels[split["valid"]], logits[split["valid"]])
            task["temperature"] = fit_temperature(given, known)
        network.config.task = task
        save_model(run_dir, network, self.tokenizer)
        if self.task.molecules:
            write_text(
                run_dir / TRAINING_MOLECULES,
                "".join(f"{table.texts[row]}\n" for row in split["train"]),
            )
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}

    def labels_of(
        self, batch: dict[str, Tensor], targets: np.ndarray, chosen: np.ndarray
    ) -> Tensor:
        """The targets of a batch's rows as the loss takes them."""
        return torch.from_numpy(targets).float()

    def _saved_task(self, train: np.ndarray, hyper: FinetuneConfig) -> dict[str, Any]:
        """What is needed to predict with the model. `mean` and `std` [tasks] are those of the
        training labels."""
        table = self.table
        mean, std = np.zeros(len(table.label_columns)), np.ones(len(table.label_columns))
        if table.task_type == "regression":
            labels = table.labels[train]
            mean, std = np.nanmean(labels, 0), np.nanstd(labels, 0)
        remembered = ("task_type", "text_column", "pair_column", "label_columns", "classes")
        return {name: getattr(table, name) for name in remembered} | {
            "molecules": self.task.molecules,
            "standardize": self.task.standardize or "none",
            "max_length": self.max_length,
            "precision": hyper.precision,
            "mean": mean.tolist(),
            "std": np.where(std > 0, std, 1.0).tolist(),
        }


class TokenClassification(Classification):
    """A table with a string of labels for every text (`kinds.py`)."""

    models: Models = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

    def __init__(
        self,
        model: str,
        task: TaskConfig,
        from_scratch: bool = False,
        start_from: str | None = None,
    ) -> None:
        self.columns = task.label_columns or ["label"]
        if len(self.columns) > 1 or task.pair_column:
            raise InputError(
                "token_classification has one text column and one label column; name no others"
            )
        super().__init__(
            model, replace(task, label_columns=[], molecules=False), from_scratch, start_from
        )
        self.task = replace(self.task, label_columns=self.columns)

    def read_rows(self, table: LabelledTable) -> LabelledTable:
        mask = self.task.mask_column
        check_columns(table.frame, self.task.dataset, *self.columns, mask)
        unit = WORD if any(len(text.split()) > 1 for text in table.texts) else RESIDUE
        cells = units(table.frame[self.columns[0]].fillna(""), unit)
        classes = sorted({name for names in cells for name in names})
        self.further = dict[str, Any](
            label_columns=self.columns, mask_column=mask, max_length=self.max_length
        )
        self.further |= {"unit": unit, "classes": classes}
        self.first = first_tokens(table.texts, self.tokenizer, self.further)
        labels, faults = read_labels(table, self.further)
        problems = [problem or fault for problem, fault in zip(table.problems, faults, strict=True)]
        known = replace(
            table,
            labels=labels,
            label_columns=self.columns,
            problems=problems,
            classes=classes,
            unit=unit,
        )
        return super().read_rows(known)

    def labels_of(
        self, batch: dict[str, Tensor], targets: np.ndarray, chosen: np.ndarray
    ) -> Tensor:
        """The class of every token [n, S]: a unit's class belongs to its first token, all others
        have IGNORED."""
        targets = targets.reshape(len(chosen), -1)
        first, labels = self.first[chosen], np.full(batch["input_ids"].shape, IGNORED)
        row, unit = np.nonzero((first >= 0) & ~np.isnan(targets))
        labels[row, first[row, unit]] = targets[row, unit]
        return torch.from_numpy(labels)

    def _saved_task(self, train: np.ndarray, hyper: FinetuneConfig) -> dict[str, Any]:
        return super()._saved_task(train, hyper) | self.further
