"""Classification and regression on one text or a pair: load the data once, then train any number of seeds."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdkit
import torch
from transformers import PreTrainedModel

from exlm.errors import InputError
from exlm.pretrained import save_model
from exlm.randomness import Purpose, mix
from exlm.storage import write_text
from exlm.tasks.config import FinetuneConfig, TaskConfig, check_metric
from exlm.tasks.datasets import GLUE, glue_classes, glue_columns, glue_differences, glue_frames, molnet_differences
from exlm.tasks.encoders import load_encoder, load_tokenizer_of, take_encoder
from exlm.tasks.frames import existing, listed, read_frame
from exlm.tasks.metrics import MAIN_METRIC, evaluate
from exlm.tasks.splits import PARTS, Split, make_split, random_split, split_hash
from exlm.tasks.supervised import (
    RowBatches,
    Rows,
    predict_rows,
    prediction_columns,
    supervised_loss,
    tokenize_rows,
    train_selected,
    with_columns,
)
from exlm.tasks.table import LabelledTable, are_molecules, join_parts, make_table

DEFAULT_LENGTH = 512
PROBLEM_TYPE = {
    "binary": "multi_label_classification",
    "multilabel": "multi_label_classification",
    "multiclass": "single_label_classification",
    "regression": "regression",
}


class Classification:
    """A labelled table, tokenised, and how to train a model on it.

    Attributes:
        metric: chooses epochs and grid cells.
        facts: what else results must say and agree on: hash of the data, how they depart from the published ones.
        invalid: rows with something wrong, as a table.
    """

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        table, self.departures = load_labelled(task)
        if task.train_rows is not None:
            self.departures = [*self.departures, f"at most {task.train_rows} rows of the train part are used"]
        seen = task.molecules is None and task.dataset not in GLUE and are_molecules(table.texts)
        molecules = bool(task.molecules) or seen
        default_split = "parts" if table.parts is not None else "scaffold" if molecules else "random"
        self.task = replace(task, molecules=molecules, split=task.split or default_split)
        self.model, self.from_scratch, self.start_from = model, from_scratch, start_from
        task_type = table.task_type
        metric = task.metric or (GLUE[task.dataset].metric if task.dataset in GLUE else MAIN_METRIC[task_type])
        self.metric = check_metric(metric, task_type)
        self.tokenizer, longest = load_tokenizer_of(model)
        wanted = task.max_length or DEFAULT_LENGTH
        self.max_length = min(wanted, longest or wanted)
        self.rows = tokenize_rows(table, self.tokenizer, self.max_length, molecules, task.on_invalid == "keep")
        self.departures = [
            *self.departures,
            *molnet_differences(task.dataset, len(table.texts), self.rows.usable.sum()),
        ]
        self.facts = {"data_sha256": _content_hash(table), "metric": self.metric, "departures": self.departures}
        self.invalid = self.rows.report()

    def announce(self) -> None:
        """Says what was understood of the table, and which rows cannot be used."""
        task, table = self.task, self.rows.table
        guess = "" if task.task_type or task.dataset in GLUE else " (inferred; set task.task_type if that is wrong)"
        kind = "molecules" if task.molecules else "pairs of texts" if table.pairs else "texts"
        print(
            f"{task.dataset}: {len(table.texts)} {kind}, {table.task_type} of {listed(table.label_columns, 5)}{guess}"
        )
        for departure in self.departures:
            print(f"note: {departure}; scores do not compare with published ones")
        if not len(self.invalid):
            return
        first = self.invalid.iloc[0]
        example = f"{first['part']} row {first['row']}, value {str(first['value'])[:80]!r}: {first['reason']}".strip()
        if task.on_invalid == "error":
            raise InputError(f"{task.dataset}: {example}; correct or remove it, or set task.on_invalid to skip")
        actions = ", ".join(f"{count} {action}" for action, count in self.invalid["action"].value_counts().items())
        reported = f"{len(self.invalid)} of {len(table.texts)} rows are reported"
        print(f"{reported} ({actions}; see invalid_rows.csv), the first: {example}")

    def train_seed(self, place: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains a seed, keeps the epoch that is best on valid; returns the scores of the parts.

        Predictions are written for every row, but not for a train part with a file of its own.
        """
        torch.manual_seed(seed)
        split = split_rows(self.task, self.rows, seed)
        self._check_valid(split["valid"])
        facts = self._facts(split, hyper)
        network = self._build(hyper, facts)
        batches = self._batches(split["train"], facts, hyper, seed)
        loss = partial(supervised_loss, problem_type=PROBLEM_TYPE[self.rows.table.task_type])
        score = partial(self._score, rows=split["valid"], facts=facts)
        best_epoch = train_selected(network, loss, batches, place, hyper, seed, score, self.metric)
        wanted = self.rows.usable.copy()
        if self.rows.table.parts is not None:
            wanted &= self.rows.table.parts != "train"
        predictions = predict_rows(network, self.rows.examples, np.flatnonzero(wanted), facts, self.tokenizer)
        self._write_predictions(place, split, predictions, facts)
        save_model(place, network.eval(), self.tokenizer)
        return {
            "best_epoch": best_epoch,
            "split": {part: len(chosen) for part, chosen in split.items()},
            "split_sha256": split_hash(split),
            "left_out": int((~self.rows.usable).sum()),
            "rdkit": rdkit.__version__,
            "scores": {
                part: evaluate(self.rows.table.task_type, self.rows.table.labels[rows], predictions[rows])
                for part, rows in split.items()
                if part != "train" and len(rows)
            },
        }

    def _check_valid(self, rows: np.ndarray) -> None:
        """The metric must be able to tell epochs apart."""
        table = self.rows.table
        width = len(table.classes) if table.classes else table.labels.shape[1]
        guesses = np.random.default_rng(0).random((len(rows), width))
        if not np.isfinite(evaluate(table.task_type, table.labels[rows], guesses)[self.metric]):
            raise InputError(
                f"{self.metric} of the valid part is not defined (only one class or value in it), so no epoch can be "
                "chosen; use another split, for example task.split random"
            )

    def _facts(self, split: Split, hyper: FinetuneConfig) -> dict[str, Any]:
        """What prediction must know about the task."""
        table = self.rows.table
        mean, std = _scale(table, split["train"])
        return {
            "task_type": table.task_type,
            "text_column": table.text_column,
            "pair_column": self.task.pair_column
            or (table.pairs and glue_columns(self.task.dataset, table.frame, "")[1]),
            "label_columns": table.label_columns,
            "classes": table.classes,
            "molecules": self.task.molecules,
            "max_length": self.max_length,
            "precision": hyper.precision,
            "mean": mean,
            "std": std,
        }

    def _build(self, hyper: FinetuneConfig, facts: dict[str, Any]) -> PreTrainedModel:
        table = self.rows.table
        names = table.classes or table.label_columns
        changes = {
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": PROBLEM_TYPE[table.task_type],
            "classifier_pooling": hyper.pooling,
            "task": facts,
        }
        network, _ = load_encoder(self.model, "classification", hyper, changes, self.from_scratch)
        if self.start_from:
            take_encoder(network, self.start_from)
        return network

    def _batches(self, train: np.ndarray, facts: dict[str, Any], hyper: FinetuneConfig, seed: int) -> RowBatches:
        assert hyper.batch_size  # filled in by `resolve`
        labels = self.rows.table.labels
        if facts["task_type"] == "regression":
            labels = (labels - facts["mean"]) / facts["std"]
        return RowBatches(self.rows.examples, labels, train, hyper.batch_size, self.tokenizer, seed)

    def _write_predictions(self, place: Path, split: Split, predictions: np.ndarray, facts: dict[str, Any]) -> None:
        rows, table = self.rows, self.rows.table
        part = np.full(len(rows.examples), "", dtype=object)
        for name, chosen in split.items():
            part[chosen] = name
        names = prediction_columns(facts)
        columns = {"split": part} | {name: predictions[:, i] for i, name in enumerate(names)}
        frame = with_columns(table.frame, columns | {"problem": rows.reasons()})
        if table.parts is not None:
            own = [table.text_column, facts["pair_column"], *table.label_columns]
            frame = frame.loc[table.parts != "train", [n for n in frame if n in own or n not in table.frame]]
        place.mkdir(parents=True, exist_ok=True)
        write_text(place / "predictions.csv", frame.to_csv(index=False))

    def _score(self, model: PreTrainedModel, rows: np.ndarray, facts: dict[str, Any]) -> dict[str, float]:
        predictions = predict_rows(model, self.rows.examples, rows, facts, self.tokenizer)
        return evaluate(facts["task_type"], self.rows.table.labels[rows], predictions[rows])


def load_labelled(task: TaskConfig) -> tuple[LabelledTable, list[str]]:
    """The table of a task, and how its parts depart in size from the published ones (GLUE)."""
    assert task.task_type != "question_answering"
    if task.dataset in GLUE:
        frames, path = glue_frames(task.dataset, task.data_dir)
        text, pair, label = glue_columns(task.dataset, frames["train"], path)
        known = glue_classes(task.dataset, frames["train"][label])
        _check_columns(frames, path, (text, pair, label))
        frame, parts = join_parts(frames)
        table = make_table(frame, path, text, [label], GLUE[task.dataset].task_type, known, pair, parts)
        return table, glue_differences(task.dataset, frames)
    files = {"train": task.dataset, "valid": task.valid, "test": task.test}
    frames = {part: read_frame(file) for part, file in files.items() if file}
    frame, parts = join_parts(frames)
    wanted = (task.text_column, task.label_columns, task.task_type, None, task.pair_column)
    table = make_table(frame, task.dataset, *wanted, parts=parts if task.valid else None)
    _check_columns(frames, task.dataset, (table.text_column, task.pair_column))
    return table, []


def _check_columns(frames: dict[str, pd.DataFrame], path: str, names: Iterable[str | None]) -> None:
    """Every part has them: one that has not would be joined to the others as a part of empty cells."""
    for part, frame in frames.items():
        for name in filter(None, names):
            existing(frame, name, f"{path}, {part} part")


def split_rows(task: TaskConfig, rows: Rows, seed: int) -> Split:
    """The split of the usable rows, its train part cut to `train_rows`."""
    split = _usable_split(task, rows, seed)
    if task.train_rows is not None and task.train_rows < len(split["train"]):
        order = np.argsort(mix(seed, Purpose.TRAIN_ROWS, split["train"]), kind="stable")
        split["train"] = np.sort(split["train"][order[: task.train_rows]])
    return split


def _usable_split(task: TaskConfig, rows: Rows, seed: int) -> Split:
    """The split with unusable rows removed, and a valid part (a tenth of train) where there was none."""
    assert task.split
    split = {part: chosen[rows.usable[chosen]] for part, chosen in make_split(task.split, rows.table, seed).items()}
    if not len(split["valid"]) and task.split != "parts":
        carved = random_split(split["train"].tolist(), (0.9, 0.1, 0.0), seed)
        split |= {"train": carved["train"], "valid": carved["valid"]}
    if task.split == "parts":
        for part in split:
            if not len(split[part]) and part in set(rows.table.parts if rows.table.parts is not None else ()):
                raise InputError(
                    f"{task.dataset}: the {part} part has no row that can be used; see its labels and texts"
                )
        return {part: chosen for part, chosen in split.items() if len(chosen)}
    for part in PARTS:
        if not len(split[part]):
            raise InputError(f"the {task.split} split of {task.dataset} leaves no {part} rows; use another split")
    return split


def _content_hash(table: LabelledTable) -> str:
    """SHA-256 of the cells, the names of their columns and the parts they belong to."""
    frame = table.frame.astype(str) if table.parts is None else table.frame.astype(str).assign(**{"": table.parts})
    rows = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    return hashlib.sha256("\t".join(map(str, frame.columns)).encode() + rows.tobytes()).hexdigest()


def _scale(table: LabelledTable, train: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation [tasks] of the training labels; 0 and 1 for classification."""
    if table.task_type != "regression":
        return [0.0] * table.labels.shape[1], [1.0] * table.labels.shape[1]
    known = (~np.isnan(table.labels[train])).any(0)
    if not known.all():
        column = table.label_columns[int(np.argmin(known))]
        raise InputError(f"column {column!r} has no label in the train part; leave it out or use another split")
    mean, std = np.nanmean(table.labels[train], 0), np.nanstd(table.labels[train], 0)
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()
