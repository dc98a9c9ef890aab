"""A labelled table with its metric and its splits: what fine-tuned models and baselines of tables
have in common."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdkit

from exlm.data.columns import listed
from exlm.data.frames import read_frame, with_columns, write_frame
from exlm.errors import InputError
from exlm.randomness import Purpose, draw
from exlm.tasks.config import TaskConfig
from exlm.tasks.datasets import GLUE, glue_table, molnet_differences
from exlm.tasks.inference import TextKind, check_kind
from exlm.tasks.metrics import MAIN_METRIC, METRICS, score_predictions
from exlm.tasks.predictions import prediction_values
from exlm.tasks.splits import RowSplit, make_split, random_split, split_hash
from exlm.tasks.table import LabelledTable, make_table


class LabelledTask:
    """A labelled table, how it is split, and how predictions for it are scored and recorded
    (`kinds.py`)."""

    # says what can be used of it, by the completed `task`
    read_rows: Callable[[LabelledTable], LabelledTable]
    train_seed: Callable[[Path, Any, int], dict[str, Any]]

    def __init__(self, task: TaskConfig, trained_on: TextKind) -> None:
        """Reads the table. `trained_on` is the kind of text that the model knows."""
        table, differences = load_labelled(task)
        wanted = False if task.dataset in GLUE else task.molecules
        molecules = check_kind(table.texts, trained_on.molecules or None, wanted, task.dataset)
        how = task.standardize or (trained_on.standardize if molecules else "none")
        if how != "none" and not molecules:
            raise InputError(
                f"task.standardize {how} rewrites molecules; set task.molecules to true, or leave it out"
            )
        split = task.split or (
            "parts" if table.parts is not None else "scaffold" if molecules else "random"
        )
        kept = task.standardize if how == "none" else how
        self.task = replace(task, molecules=molecules, split=split, standardize=kept)
        main_metric = (
            GLUE[task.dataset].metric if task.dataset in GLUE else MAIN_METRIC[table.task_type]
        )
        self.metric = task.metric or main_metric
        if self.metric not in (known := METRICS[table.task_type]):
            raise InputError(
                f"a {table.task_type} task has no metric {self.metric!r}; use one of {', '.join(known)}"
            )
        self.table = table = self.read_rows(table)
        self.invalid = table.report()
        if task.train_rows is not None:
            differences.append(f"at most {task.train_rows} rows of the train part are used")
        differences += molnet_differences(task.dataset, len(table.texts), table.usable.sum())
        frame = (
            table.frame.astype(str)
            if table.parts is None
            else table.frame.astype(str).assign(**{"": table.parts})
        )
        # cells and parts
        content = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
        digest = hashlib.sha256("\t".join(map(str, frame.columns)).encode() + content).hexdigest()
        self.data_settings = {
            "data_sha256": digest,
            "metric": self.metric,
            "departures": differences,
        }
        inferred = ", ".join(f"task.{option} = {value}" for option, value in table.inferred.items())
        guess = (
            f" (found without being told, set it if it is wrong: {inferred})" if inferred else ""
        )
        kind = "molecules" if molecules else "pairs of texts" if table.pairs else "texts"
        self.summary = f"{len(table.texts)} {kind}, {table.task_type} of {listed(table.label_columns, 5)}{guess}"

    def split(self, seed: int) -> RowSplit:
        """The usable rows by part. InputError if nothing can be learned, or if valid cannot choose
        what is best."""
        table, split = self.table, split_rows(self.task, self.table, seed)
        empty = np.isnan(table.labels[split["train"]]).all(0)
        if table.task_type == "regression" and empty.any():
            column = table.label_columns[int(np.argmax(empty))]
            raise InputError(
                f"column {column!r} has no label in the train part; leave it out or use another split"
            )
        shape = (*table.labels.shape, len(table.classes)) if table.classes else table.labels.shape
        guesses = np.random.default_rng(0).random(shape)
        if not np.isfinite(self.score(guesses, split["valid"])[self.metric]):
            why = "of the valid part is not defined (only one class or value in it), so no epoch can be chosen"
            raise InputError(
                f"{self.metric} {why}; use another split, for example task.split random"
            )
        return split

    def score(self, predictions: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
        """The metrics on the chosen rows, of predictions for all rows: [rows, outputs]."""
        return score_predictions(
            self.table.task_type, self.table.labels[chosen], predictions[chosen]
        )

    def record(self, run_dir: Path, split: RowSplit, predictions: np.ndarray) -> dict[str, Any]:
        """What a seed's result has of its predictions [rows, outputs]: rows, scores and scores of
        each label, by part. Writes the predictions for every row, except for a train part that has
        its own file."""
        self._write_predictions(run_dir, split, predictions)
        sizes = {name: len(chosen) for name, chosen in split.items()}
        result = {
            "split": sizes,
            "split_sha256": split_hash(split),
            "left_out": int((~self.table.usable).sum()),
        }
        reported = {name: chosen for name, chosen in split.items() if name != "train"}
        scores = {name: self.score(predictions, chosen) for name, chosen in reported.items()}
        labels = {
            name: self._label_scores(predictions, chosen) for name, chosen in reported.items()
        }
        return result | {"rdkit": rdkit.__version__, "scores": scores, "labels": labels}

    def _label_scores(self, predictions: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """The metric of every label on some rows, NaN where it is not defined; {} if there is only
        one label."""
        table = self.table
        columns = enumerate(table.label_columns if len(table.label_columns) > 1 else [])
        one = {
            name: (table.labels[rows, i : i + 1], predictions[rows, i : i + 1])
            for i, name in columns
        }
        return {
            name: score_predictions(table.task_type, *found)[self.metric]
            for name, found in one.items()
        }

    def _write_predictions(self, run_dir: Path, split: RowSplit, predictions: np.ndarray) -> None:
        table = self.table
        names = np.full(len(predictions), "", dtype=object)
        for name, chosen in split.items():
            names[chosen] = name
        values = prediction_values(predictions, table.texts, vars(table))
        frame = with_columns(table.frame, {"split": names} | values | {"problem": table.problems})
        if table.parts is not None:
            own = [table.text_column, table.pair_column, *table.label_columns]
            frame = frame.loc[
                table.parts != "train", [n for n in frame if n in own or n not in table.frame]
            ]
        write_frame(frame, run_dir / "predictions.csv")


def load_labelled(task: TaskConfig) -> tuple[LabelledTable, list[str]]:
    """The table of a task, and how its parts differ in size from the published ones (GLUE)."""
    if task.dataset in GLUE:
        return glue_table(task.dataset, task.data_dir)
    files = {"train": task.dataset, "valid": task.valid, "test": task.test}
    frames = {part: read_frame(file, task.header) for part, file in files.items() if file}
    frame = frames if task.valid else frames["train"]
    assert task.task_type != "question_answering"  # it has no labels
    columns = (task.text_column, task.label_columns, task.task_type, None, task.pair_column)
    return make_table(frame, task.dataset, *columns), []


def split_rows(task: TaskConfig, table: LabelledTable, seed: int) -> RowSplit:
    """Splits the usable rows; no part is empty. If there is no valid part, a tenth of train becomes
    valid."""
    assert task.split
    files, usable = table.parts, table.usable
    split = {
        name: chosen[usable[chosen]] for name, chosen in make_split(task.split, table, seed).items()
    }
    if not len(split["valid"]) and files is None:
        carved = random_split(split["train"], (0.9, 0.1, 0.0), seed)
        split |= {"train": carved["train"], "valid": carved["valid"]}
    for name in [name for name, chosen in split.items() if not len(chosen)]:
        if files is None or name in files:
            what = f"the {name} part has no row that can be used; look at its texts and labels, or use another split"
            raise InputError(f"{task.dataset}: {what}")
        del split[name]
    if task.train_rows is not None and task.train_rows < len(split["train"]):
        order = np.argsort(draw(Purpose.TRAIN_ROWS, seed, split["train"]), kind="stable")
        split["train"] = np.sort(split["train"][order[: task.train_rows]])
    return split
