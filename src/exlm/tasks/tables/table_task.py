"""A table as a task, without training: its metric, its splits, and how predictions for it are
scored and written. Fine-tuned models and baselines have this in common."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import rdkit

from exlm.data.columns import listed
from exlm.data.frames import with_columns, write_frame
from exlm.errors import InputError, note
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.results import SeedScores
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import Binary
from exlm.tasks.labels.scores import metric_names, quick_interval, score_labels, score_predictions
from exlm.tasks.rows.datasets import GLUE, departures, file_hashes
from exlm.tasks.rows.duplicates import (
    count_shared,
    describe_duplicates,
    find_groups,
    merged_labels,
    resolve_duplicates,
)
from exlm.tasks.rows.hashes import content_hash, rows_hash, split_hash
from exlm.tasks.rows.splits import RowSplit, part_of_rows, split_by_user, split_rows
from exlm.tasks.rows.table import TextTable, describe_table
from exlm.tasks.tables.output_meaning import OutputMeaning, meaning_of
from exlm.tasks.tables.training_rows import MARKED, TrainingTexts, write_training


class TableTask(ABC):
    """A table that is split, and whose predictions are scored and written: a `Task`
    (`tasks/task.py`) but for its training."""

    def __init__(
        self,
        config: TaskConfig,
        table: TextTable,
        rows_to_split: np.ndarray,
        spelling: Callable[[str], str],
        earlier_run: Path | None = None,
    ) -> None:
        """`config` is complete (`complete_config`). `rows_to_split` ([rows] bool) are those that
        could be used before it was known what the model cannot read: a split divides all of them,
        so that all models and baselines have the same. Texts with the same `spelling` are equal.
        `earlier_run` is the directory of the fine-tuned model that the training goes on from."""
        self.config = config
        self.spelling = spelling
        default = GLUE[config.dataset].metric if config.dataset in GLUE else None
        first_metric, *_ = metric_names(table.label_type, table.class_names)
        self.metric = config.metric or default or first_metric
        self.groups = find_groups(table, spelling)
        user_split = None if config.duplicates == "keep" else split_by_user(config, table)
        self.table = resolve_duplicates(table, self.groups, config.duplicates, user_split)
        self.merged_labels = merged_labels(table, self.table, config.duplicates)
        is_duplicate = table.usable & ~self.table.usable
        self.rows_to_split = rows_to_split & ~is_duplicate
        self.earlier_run = earlier_run
        self.in_earlier_training: np.ndarray | None = None
        if earlier_run is not None:
            molecules = bool(config.molecules) and table.pairs is None
            earlier_texts = TrainingTexts([earlier_run], spelling, molecules)
            self.in_earlier_training = earlier_texts.rows_in(self.table)
            if self.in_earlier_training is None:
                note(
                    f"{earlier_run} keeps no record of the texts of its training, so it cannot be "
                    "told whether valid and test have some of them"
                )
        self.reported_rows = self.table.reported_rows()
        self.identity = {"data_sha256": content_hash(table), "metric": self.metric}
        self.departures = departures(config, table, int(self.table.usable.sum()))
        self.file_sha256 = file_hashes(config)
        self.split_of = cache(self._split)
        self.summary = describe_table(self.table, bool(config.molecules))
        repeated = describe_duplicates(table, self.groups)
        if repeated:
            self.summary += f"; {repeated}"

    @abstractmethod
    def train_seed(self, run_dir: Path, hyper: Any, seed: int) -> SeedScores:
        """Trains with one seed, as `Task` says."""

    def _split(self, seed: int) -> RowSplit:
        """The usable rows by part."""
        return split_rows(
            self.config,
            self.table,
            seed=seed,
            rows_to_split=self.rows_to_split,
            groups=self.groups,
        )

    def announce(self, seed: int) -> None:
        """Prints the sizes of the parts that a seed has, how many texts or molecules stand in
        several, and a warning of scored rows that the model learns, or has learned in an earlier
        training. InputError if nothing can be learned, or if valid cannot choose what is best."""
        split = self.split_of(seed)
        self._check_labels(split)
        sizes = ", ".join(f"{len(rows)} {name}" for name, rows in split.items())
        shared = count_shared(self.groups, split)
        remarks = f"; {shared} texts or molecules stand in several of them" if shared else ""
        unused = int(self.table.usable.sum()) - sum(map(len, split.values()))
        if unused:
            or_cut = "" if self.config.train_rows is None else " or beyond train_rows"
            remarks += f"; {unused} usable rows are in no part{or_cut}"
        print(f"seed {seed}: {sizes} (split {self.config.split}){remarks}")
        in_train = self._in_train(split)[split.get("test", np.arange(0))]
        if in_train.any():
            print(
                f"warning: {in_train.sum()} of {len(in_train)} test rows have a text or molecule "
                "of the train part, which a model may know by heart; leave them out for an honest "
                f"number ({MARKED})",
                file=sys.stderr,
            )
        in_words = " and ".join(
            f"{count} of the {len(split[part])} {part} rows"
            for part, count in self._counts_in_earlier_training(split).items()
            if count
        )
        if in_words:
            print(
                f"warning: {in_words} have a text or molecule of the training of "
                f"{self.earlier_run}, so their scores are too good; use a split by column or file "
                f"that keeps them in train ({MARKED})",
                file=sys.stderr,
            )

    def _check_labels(self, split: RowSplit) -> None:
        """InputError if nothing can be learned in train, if a number to predict has no label there,
        or if the metric of the valid part is not defined."""
        table = self.table
        train_labels = table.labels[split["train"]]
        columns = train_labels.reshape(-1, 1) if table.unit_pattern else train_labels
        if all(len(np.unique(column[~np.isnan(column)])) < 2 for column in columns.T):
            raise InputError(
                f"{listed(table.label_columns, 5)} has only one value in the train part, from "
                "which nothing can be learned; use another split"
            )
        unlabelled = np.isnan(train_labels).all(0)
        if table.label_type.is_number and unlabelled.any():
            raise InputError(
                f"column {table.label_columns[unlabelled.argmax()]!r} has no label in the train "
                "part; leave it out or use another split"
            )
        if not self._has_score(split["valid"]):
            raise InputError(
                f"{self.metric} of the valid part is not defined (only one class or value in it), "
                "so the best epoch or setting cannot be found; use another split, or choose the "
                "rows of each part (task.split column:NAME, or files with task.valid and task.test)"
            )
        if "test" in split and not self._has_score(split["test"]):
            note(
                f"{self.metric} of the test part is not defined, because it has only one class or "
                "value; other rows are needed to tell how good the model is"
            )

    def _has_score(self, rows: np.ndarray) -> bool:
        """Whether the labels of these rows allow the metric."""
        table = self.table
        labels = table.labels[rows]
        # rows or units have the probabilities of all classes in the place of a label
        shape = labels.shape if table.unit_pattern else labels.shape[:1]
        outputs = len(table.class_names or table.label_columns)
        # Any finite predictions show whether the labels allow the metric.
        predictions = np.random.default_rng(0).random((*shape, outputs))
        scores = score_predictions(
            table.label_type,
            labels,
            predictions,
            metrics=[self.metric],
            class_names=table.class_names,
        )
        return bool(np.isfinite(scores[self.metric]))

    def _counts_in_earlier_training(self, split: RowSplit) -> dict[str, int | None]:
        """How many rows of every part but train were in the training that this one goes on from;
        None if it cannot be told."""
        has_row = self.in_earlier_training
        return {
            part: None if has_row is None else int(has_row[rows].sum())
            for part, rows in split.items()
            if part != "train"
        }

    def _in_train(self, split: RowSplit) -> np.ndarray:
        """[rows] bool: the usable rows with a text or molecule of the train part."""
        return self.table.usable & np.isin(self.groups, self.groups[split["train"]])

    def score(
        self,
        predictions: np.ndarray,
        rows: np.ndarray,
        error_units: list[float] | None = None,
        metrics: list[str] | None = None,
    ) -> dict[str, float]:
        """The scores on some rows, of predictions for all rows: [rows, outputs], of token
        classification [rows, units, classes]. `error_units` are those of the method; `metrics` are
        all of the task type where absent."""
        table = self.table
        return score_predictions(
            table.label_type,
            labels=table.labels[rows],
            predictions=predictions[rows],
            error_units=error_units,
            metrics=metrics,
            class_names=table.class_names,
        )

    def task_to_save(self, train_rows: np.ndarray) -> SavedTask:
        """What a model or a baseline keeps of the task that learns from these rows."""
        table = self.table
        error_units = None
        if table.label_type.is_number and len(table.label_columns) > 1:
            # standard deviations, so that no label counts more than another
            error_units = positive_or_one(np.nanstd(table.labels[train_rows], 0)).tolist()
        return SavedTask(
            task_type=table.task_type,
            text_column=table.text_column,
            pair_column=table.pair_column,
            label_columns=table.label_columns,
            class_names=table.class_names,
            binary_names=table.binary_names,
            molecules=self.config.molecules,
            standardize=self.config.standardize or "none",
            error_units=error_units,
            unit_pattern=table.unit_pattern or "",
            mask_column=self.config.mask_column if table.unit_pattern else None,
        )

    def write_predictions(
        self, run_dir: Path, split: RowSplit, predictions: np.ndarray
    ) -> SeedScores:
        """Writes the predictions of a seed [rows, outputs], except for a train part that has its
        own file, and the texts of train. Returns the scores, counts and sizes of the parts; the
        interval is of test, or of valid if there is no test."""
        table = self.table
        saved_task = self.task_to_save(split["train"])
        error_units = saved_task.error_units
        self._write_table(run_dir, split, predictions, meaning_of(saved_task))
        write_training(
            run_dir,
            table=table,
            rows=split["train"],
            spelling=self.spelling,
            molecules=bool(self.config.molecules),
            earlier_run=self.earlier_run,
        )
        scored_parts = {name: rows for name, rows in split.items() if name != "train"}
        main_part = "test" if "test" in split else "valid"
        main_score = partial(
            self.score, predictions, error_units=error_units, metrics=[self.metric]
        )
        interval = quick_interval(
            main_score, split[main_part], self.metric, len(table.label_columns)
        )
        result: SeedScores = {
            "split": {name: len(rows) for name, rows in split.items()},
            "split_sha256": split_hash(split),
            "file_sha256": self.file_sha256,
            "left_out": int((~table.usable).sum()),
            "label_columns": table.label_columns,
            "rdkit": rdkit.__version__,
            "scores": {
                name: self.score(predictions, rows, error_units)
                for name, rows in scored_parts.items()
            },
            "counts": {name: self._counts(rows) for name, rows in scored_parts.items()},
            "rows_sha256": {name: rows_hash(table, rows) for name, rows in scored_parts.items()},
            "interval": {main_part: interval},
            "in_train": {
                name: int(self._in_train(split)[rows].sum()) for name, rows in scored_parts.items()
            },
            "labels": {
                name: self._scores_of_labels(predictions, rows)
                for name, rows in scored_parts.items()
            },
        }
        if self.earlier_run is not None:
            result["in_earlier_training"] = self._counts_in_earlier_training(split)
        return result

    def _counts(self, rows: np.ndarray) -> dict[str, float]:
        """How many rows a part has, and how many of them are positive, if there are two classes."""
        if not isinstance(self.table.label_type, Binary):
            return {"rows": len(rows)}
        positives = int((self.table.labels[rows] == 1).sum())
        return {"rows": len(rows), "positives": positives}

    def _scores_of_labels(self, predictions: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """The score of every label by itself; {} if there is only one label."""
        table = self.table
        scores = score_labels(
            table.label_type, table.label_columns, table.labels[rows], predictions[rows]
        )
        return {label: scores_of_label[self.metric] for label, scores_of_label in scores.items()}

    def rows_to_predict(self, split: RowSplit) -> np.ndarray:
        """[rows] bool: all rows of a table; of several files those of valid, and all that are not
        in the file of train."""
        rows = np.ones(len(self.table.texts), dtype=bool)
        if self.table.parts is not None:
            rows = self.table.parts != "train"
            rows[split["valid"]] = True
        return rows

    def _write_table(
        self, run_dir: Path, split: RowSplit, predictions: np.ndarray, meaning: OutputMeaning
    ) -> None:
        table = self.table
        parts = part_of_rows(split, len(predictions))
        columns = {"split": parts, **meaning.columns([predictions], table), **self.merged_labels}
        in_training = self._in_train(split)
        if self.in_earlier_training is not None:
            in_training |= self.in_earlier_training
        columns["in_training"] = in_training
        frame = with_columns(table.frame, {**columns, "problem": table.problems})
        if table.parts is not None:
            frame = frame[self.rows_to_predict(split)]
        write_frame(frame, run_dir / "predictions.csv")


def positive_or_one(deviations: np.ndarray) -> np.ndarray:
    """Standard deviations as divisors: 1 for labels that are all equal."""
    return np.where(deviations > 0, deviations, 1.0)
