"""Classification and regression on one text or a pair: load the data once, then train any number of seeds."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdkit
import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from exlm.data.columns import listed
from exlm.errors import InputError
from exlm.model.objectives import classification_loss
from exlm.pretrained import save_model
from exlm.randomness import Purpose, mix
from exlm.storage import write_text
from exlm.tasks.applicability import write_training_molecules
from exlm.tasks.calibration import fit_temperature
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.datasets import GLUE, glue_table, molnet_differences
from exlm.tasks.encoders import Models, fold_units, load_encoder, load_encoder_tokenizer, saved_text_kind
from exlm.tasks.frames import read_frame, with_columns
from exlm.tasks.inference import Rows, check_kind, model_inputs, pad, tokenize_rows
from exlm.tasks.metrics import MAIN_METRIC, METRICS, evaluate
from exlm.tasks.predictions import as_predictions, predict_logits, prediction_columns
from exlm.tasks.splits import Split, make_split, random_split, split_hash
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LabelledTable, make_table

DEFAULT_LENGTH = 512
PROBLEM_TYPE = {"multiclass": "single_label_classification", "regression": "regression"}  # all others: multi-label


class Classification:
    """A labelled table, tokenised, and how to train a model on it (a `Trainer` of `kinds.py`)."""

    models: Models = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    device = "auto"

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        table, differences = load_labelled(task)
        if task.train_rows is not None:
            differences.append(f"at most {task.train_rows} rows of the train part are used")
        glue, trained_on = task.dataset in GLUE, saved_text_kind(model)
        wanted = False if glue else task.molecules
        molecules = check_kind(table.texts, trained_on.molecules or None, wanted, task.dataset)
        how = task.standardize or (trained_on.standardize if molecules else "none")
        if how != "none" and not molecules:
            raise InputError(f"task.standardize {how} rewrites molecules; set task.molecules to true, or leave it out")
        default_split = "parts" if table.parts is not None else "scaffold" if molecules else "random"
        remembered = task.standardize if how == "none" else how
        self.task = replace(task, molecules=molecules, split=task.split or default_split, standardize=remembered)
        self.metric = task.metric or (GLUE[task.dataset].metric if glue else MAIN_METRIC[table.task_type])
        if self.metric not in (known := METRICS[table.task_type]):
            raise InputError(f"a {table.task_type} task has no metric {self.metric!r}; use one of {', '.join(known)}")
        self.new_network = partial(load_encoder, model, self.models, from_scratch=from_scratch, start_from=start_from)
        self.tokenizer, self.max_length = load_encoder_tokenizer(model, task.max_length or DEFAULT_LENGTH)
        self.rows = tokenize_rows(table, self.tokenizer, self.max_length, molecules, task.on_invalid == "keep", how)
        self.invalid = self.rows.report()
        differences += molnet_differences(task.dataset, len(table.texts), self.rows.usable.sum())
        self.data_settings = {"data_sha256": _content_hash(table), "metric": self.metric, "departures": differences}
        inferred = ", ".join(f"task.{option} = {value}" for option, value in table.inferred.items())
        guess = f" (found without being told, set it if it is wrong: {inferred})" if inferred else ""
        kind = "molecules" if molecules else "pairs of texts" if table.pairs else "texts"
        self.summary = f"{len(table.texts)} {kind}, {table.task_type} of {listed(table.label_columns, 5)}{guess}"

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed and keeps the epoch that is best on valid. Writes predictions for every row, except for
        a train split that has its own file. Returns the scores of all splits but train, and if there are several labels
        the metric of each."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        rows, table = self.rows, self.rows.table
        split = split_rows(self.task, rows, seed)
        task = self._saved_task(split["train"], hyper)
        targets = (table.labels - task["mean"]) / task["std"]
        targets = targets[:, 0] if targets.shape[1] == 1 else targets
        names = table.classes or table.label_columns
        problem_type = PROBLEM_TYPE.get(table.task_type, "multi_label_classification")

        def collate(chosen: np.ndarray) -> dict[str, Tensor]:
            batch = pad([rows.examples[row] for row in chosen], self.tokenizer)
            return batch | {"labels": torch.from_numpy(targets[chosen]).float()}

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits = model(**model_inputs(model, batch)).logits.float()
            total, count = classification_loss(logits, batch["labels"].to(logits.device), problem_type)
            return total, count, torch.zeros_like(count)

        def score(predictions: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
            return evaluate(table.task_type, table.labels[chosen], predictions[chosen])

        def validate(model: nn.Module) -> dict[str, float]:
            logits = predict_logits(model, rows, split["valid"], task, self.tokenizer)
            return score(as_predictions(logits, task), split["valid"])

        guesses = np.random.default_rng(0).random((len(rows.examples), len(names)))
        if not np.isfinite(score(guesses, split["valid"])[self.metric]):
            why = "of the valid part is not defined (only one class or value in it), so no epoch can be chosen"
            raise InputError(f"{self.metric} {why}; use another split, for example task.split random")
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        network = self.new_network(hyper, labels | {"problem_type": problem_type, "task": task})
        lengths = [len(example["input_ids"]) for example in rows.examples]
        batches = ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate)
        best_epoch = train_best_epoch(network, loss, batches, run_dir, hyper, validate, self.metric, self.device)
        wanted = rows.usable if table.parts is None else rows.usable & (table.parts != "train")
        logits = predict_logits(network, rows, np.flatnonzero(wanted), task, self.tokenizer)
        predictions = as_predictions(logits, task)
        if table.task_type == "regression":
            task = fold_units(network, task)
        else:
            task["temperature"] = fit_temperature(logits[split["valid"]], table.labels[split["valid"]])
        network.config.task = task
        save_model(run_dir, network, self.tokenizer)
        if self.task.molecules:
            write_training_molecules(run_dir, [table.texts[row] for row in split["train"]])
        self._write_predictions(run_dir, split, predictions, task)
        reported = {name: chosen for name, chosen in split.items() if name != "train"}
        return {
            "best_epoch": best_epoch,
            "split": {name: len(chosen) for name, chosen in split.items()},
            "split_sha256": split_hash(split),
            "left_out": int((~rows.usable).sum()),
            "rdkit": rdkit.__version__,
            "scores": {name: score(predictions, chosen) for name, chosen in reported.items()},
            "labels": {name: self._label_scores(predictions, chosen) for name, chosen in reported.items()},
        }

    def _label_scores(self, predictions: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """The metric of every label on some rows, NaN where it is not defined; {} if there is only one label."""
        table, scores = self.rows.table, dict[str, float]()
        for i, name in enumerate(table.label_columns if len(table.label_columns) > 1 else []):
            one = slice(i, i + 1)
            scores[name] = evaluate(table.task_type, table.labels[rows, one], predictions[rows, one])[self.metric]
        return scores

    def _saved_task(self, train: np.ndarray, hyper: FinetuneConfig) -> dict[str, Any]:
        """What is needed to predict with the model. `mean` and `std` [tasks] are those of the training labels."""
        table = self.rows.table
        mean, std = np.zeros(len(table.label_columns)), np.ones(len(table.label_columns))
        if table.task_type == "regression":
            labels = table.labels[train]
            if (empty := np.isnan(labels).all(0)).any():
                column = table.label_columns[int(np.argmax(empty))]
                raise InputError(f"column {column!r} has no label in the train part; leave it out or use another split")
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

    def _write_predictions(self, run_dir: Path, split: Split, predictions: np.ndarray, task: dict[str, Any]) -> None:
        table = self.rows.table
        names = np.full(len(predictions), "", dtype=object)
        for name, chosen in split.items():
            names[chosen] = name
        values = dict(zip(prediction_columns(task), predictions.T, strict=True))
        frame = with_columns(table.frame, {"split": names} | values | {"problem": self.rows.problems})
        if table.parts is not None:
            own = [table.text_column, table.pair_column, *table.label_columns]
            frame = frame.loc[table.parts != "train", [n for n in frame if n in own or n not in table.frame]]
        write_text(run_dir / "predictions.csv", frame.to_csv(index=False))


def load_labelled(task: TaskConfig) -> tuple[LabelledTable, list[str]]:
    """The table of a task, and how its parts differ in size from the published ones (GLUE)."""
    if task.dataset in GLUE:
        return glue_table(task.dataset, task.data_dir)
    assert task.task_type != "question_answering"
    files = {"train": task.dataset, "valid": task.valid, "test": task.test}
    frames = {part: read_frame(file, task.header) for part, file in files.items() if file}
    frame = frames if task.valid else frames["train"]
    columns = (task.text_column, task.label_columns, task.task_type, None, task.pair_column)
    return make_table(frame, task.dataset, *columns), []


def split_rows(task: TaskConfig, rows: Rows, seed: int) -> Split:
    """Splits the usable rows; no part is empty. If there is no valid part, a tenth of train becomes valid. Train is cut
    to `train_rows` rows, which are drawn anew for every seed."""
    assert task.split
    files = rows.table.parts
    split = {name: chosen[rows.usable[chosen]] for name, chosen in make_split(task.split, rows.table, seed).items()}
    if not len(split["valid"]) and files is None:
        carved = random_split(split["train"], (0.9, 0.1, 0.0), seed)
        split |= {"train": carved["train"], "valid": carved["valid"]}
    for name in [name for name, chosen in split.items() if not len(chosen)]:
        if files is None or name in files:
            what = f"the {name} part has no row that can be used; look at its texts and labels, or use another split"
            raise InputError(f"{task.dataset}: {what}")
        del split[name]
    if task.train_rows is not None and task.train_rows < len(split["train"]):
        order = np.argsort(mix(seed, Purpose.TRAIN_ROWS, split["train"]), kind="stable")
        split["train"] = np.sort(split["train"][order[: task.train_rows]])
    return split


def _content_hash(table: LabelledTable) -> str:
    """SHA-256 of the cells, the names of their columns and the parts they belong to."""
    frame = table.frame.astype(str) if table.parts is None else table.frame.astype(str).assign(**{"": table.parts})
    rows = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    return hashlib.sha256("\t".join(map(str, frame.columns)).encode() + rows.tobytes()).hexdigest()
