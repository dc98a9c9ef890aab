"""A labelled table as a task: its rows, their parts, and what is odd about them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.data.columns import listed
from exlm.data.delimited import TableLayout
from exlm.data.output_files import describe_counts, output_layout
from exlm.data.writing import with_columns
from exlm.errors import InputError, note
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.scores import metric_names, score_predictions
from exlm.tasks.rows.datasets import GLUE, departures
from exlm.tasks.rows.duplicates import (
    describe_duplicates,
    describe_shared,
    find_groups,
    merged_labels,
    resolve_duplicates,
)
from exlm.tasks.rows.hashes import content_hash
from exlm.tasks.rows.splits import RowSplit, split_by_user, split_rows
from exlm.tasks.rows.summary import describe_table, remarks_on_labels
from exlm.tasks.rows.table import LabelledTable
from exlm.tasks.rows.task_files import file_hashes, task_files
from exlm.tasks.tables.prediction_columns import note_class_called_class
from exlm.tasks.tables.table_config import TableConfig
from exlm.tasks.tables.training_texts import TrainingTexts
from exlm.tasks.task import Task


@dataclass(eq=False, kw_only=True)
class TableTask(Task):
    """A labelled table as a task."""

    config: TableConfig
    table: LabelledTable  # its rows; duplicates that the user does not want cannot be used
    groups: np.ndarray  # [rows] the first row with the same text (`find_groups`)
    # [rows] bool, the rows that can be used as far as the model is not asked, so that the splits of
    # all models and baselines are the same
    rows_to_split: np.ndarray
    merged_labels: dict[str, pd.Series]  # columns for labels that differ from the cells
    # of the fine-tuned model that the training goes on from, if there is one
    earlier_texts: TrainingTexts
    file_sha256: dict[str, str]  # by path
    layout: TableLayout  # of the predictions, which are written as the table is
    splits: dict[int, RowSplit] = field(default_factory=dict)  # those made so far, by seed

    def split_of(self, seed: int) -> RowSplit:
        """The usable rows by part, of which train may be a sample."""
        if seed not in self.splits:
            self.splits[seed] = split_rows(
                self.config,
                self.table,
                seed=seed,
                rows_to_split=self.rows_to_split,
                groups=self.groups,
            )
        return self.splits[seed]

    def task_to_save(self, train_rows: np.ndarray) -> SavedTask:
        """What is saved of the task with a model or a baseline that learns from these rows."""
        table = self.table
        error_scales = None
        if table.labels.type.is_number and len(table.labels.columns) > 1:
            # standard deviations, so that no label counts more than another
            error_scales = deviations(table.labels.values[train_rows])
        return SavedTask(
            task_type=table.labels.task_type,
            text_column=table.text_column,
            pair_column=table.pair_column,
            label_columns=table.labels.columns,
            class_names=table.labels.class_names,
            binary_names=table.labels.binary_names,
            molecules=self.config.molecules,
            standardize=self.config.standardize,
            error_scales=error_scales,
            unit_pattern=table.labels.unit_pattern,
            mask_column=self.config.mask_column if table.labels.type.of_units else None,
        )

    def rows_to_predict(self, split: RowSplit) -> np.ndarray:
        """[rows] bool: all rows of one file; of several files the rows of valid, and all rows that
        are not in the file of train."""
        parts = self.table.parts
        if parts is None:
            return np.ones(len(self.table.texts), dtype=bool)
        rows = parts != "train"
        rows[split["valid"]] = True
        return rows

    @cached_property
    def is_seen_earlier(self) -> np.ndarray | None:
        """[rows] bool: whether the text was in the training that this one goes on from; None if it
        cannot be told."""
        return self.earlier_texts.find_in(self.table)

    @property
    def earlier_run(self) -> Path | None:
        """The directory of the fine-tuned model that the training goes on from, if there is one."""
        return next(iter(self.earlier_texts.run_dirs), None)

    def is_seen(self, split: RowSplit) -> np.ndarray:
        """[rows] bool: whether the text or molecule is one of the train part."""
        return np.isin(self.groups, self.groups[split["train"]])

    def count_seen_earlier(self, split: RowSplit) -> dict[str, int | None]:
        """How many rows of every part but train were in the training that this one goes on from;
        None if it cannot be told."""
        is_seen = self.is_seen_earlier
        return {
            part: None if is_seen is None else int(is_seen[rows].sum())
            for part, rows in split.items()
            if part != "train"
        }

    def check_and_announce(self, seed: int) -> None:
        """Prints the sizes of the parts that a seed has, how many texts or molecules stand in
        several, and a warning of scored rows that the model learns, or has learned in an earlier
        training. InputError if nothing can be learned, or if valid cannot choose what is best."""
        split = self.split_of(seed)
        self._check_labels(split)
        sizes = ", ".join(f"{len(rows)} {name}" for name, rows in split.items())
        remarks = [
            f"seed {seed}: {sizes} (split {self.config.split})",
            describe_shared(self.table, self.groups, split),
        ]
        unused = int(self.table.usable.sum()) - sum(map(len, split.values()))
        if unused:
            or_cut = "" if self.config.train_rows is None else " or beyond train_rows"
            remarks.append(f"{unused} usable rows are in no part{or_cut}")
        print("; ".join(filter(None, remarks)))
        for warning in self._warnings(split):
            seen = with_columns(self.table.frame[:0], {"in_training": []}).columns[-1]
            marked = f"the column {seen} of seed-N/predictions.csv marks them"
            print(f"warning: {warning} ({marked})", file=sys.stderr)

    def _warnings(self, split: RowSplit) -> list[str]:
        """Which rows have scores that are too good, because the model learns them, or has learned
        them in an earlier training."""
        warnings = []
        test_rows = split.get("test", np.arange(0))
        seen_test_rows = int(self.is_seen(split)[test_rows].sum())
        if seen_test_rows:
            warnings.append(
                f"{seen_test_rows} of {len(test_rows)} test rows have a text or molecule "
                "of the train part, which a model may know by heart; leave them out for an honest "
                "number"
            )
        seen_earlier = " and ".join(
            f"{count} of the {len(split[part])} {part} rows"
            for part, count in self.count_seen_earlier(split).items()
            if count
        )
        if seen_earlier:
            warnings.append(
                f"{seen_earlier} have a text or molecule of the training of {self.earlier_run}, so "
                "their scores are too good; use a split by column or file that keeps them in train"
            )
        return warnings

    def _check_labels(self, split: RowSplit) -> None:
        """InputError if nothing can be learned in train, if a number to predict has no label
        there, or if the metric of the valid part is not defined."""
        table = self.table
        train_labels = table.labels.values[split["train"]]
        columns = train_labels.reshape(-1, 1) if table.labels.type.of_units else train_labels
        if all(len(np.unique(column[~np.isnan(column)])) < 2 for column in columns.T):
            raise InputError(
                f"{listed(table.labels.columns, 5)} has only one value in the train part, from "
                "which nothing can be learned; use another split"
            )
        unlabelled = np.isnan(train_labels).all(0)
        if table.labels.type.is_number and unlabelled.any():
            raise InputError(
                f"column {table.labels.columns[unlabelled.argmax()]!r} has no label in the train "
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
        """Whether the metric is defined for the labels of some rows: then a model that guesses has
        a score, too."""
        table = self.table
        labels = table.labels.values[rows]
        # all classes of a row or unit have a probability in the place of a label
        shape = labels.shape if table.labels.type.of_units else labels.shape[:1]
        outputs = len(table.labels.class_names or table.labels.columns)
        scores = score_predictions(
            table.labels.type,
            labels,
            predictions=np.random.default_rng(0).random((*shape, outputs)),
            metrics=[self.metric],
            class_names=table.labels.class_names,
        )
        return bool(np.isfinite(scores[self.metric]))


def make_table_task(
    config: TableConfig,
    table: LabelledTable,
    rows_to_split: np.ndarray,
    spelling: Callable[[str], str],
    earlier_run: Path | None = None,
) -> TableTask:
    """The task of a table that still has all duplicates. Texts with the same `spelling` are equal,
    and `earlier_run` has the fine-tuned model that the training goes on from. InputError if
    duplicates cannot be merged. Prints what is odd about the labels."""
    groups = find_groups(table, spelling)
    user_split = None if config.duplicates == "keep" else split_by_user(config, table)
    merged = resolve_duplicates(table, groups, config.duplicates, user_split)
    earlier_texts = TrainingTexts(
        [earlier_run] if earlier_run else [],
        spelling,
        molecules=config.molecules and table.pairs is None,
    )
    if earlier_run and not earlier_texts.keys:
        note(
            f"{earlier_run} keeps no record of the texts of its training, so it cannot be told "
            "whether valid and test have some of them"
        )
    for remark in remarks_on_labels(merged):
        note(remark)
    note_class_called_class(merged.labels.class_names or merged.labels.columns, merged.labels.type)
    metrics = metric_names(merged.labels.type, merged.labels.class_names)
    default_metric = GLUE[config.dataset].metric if config.dataset in GLUE else metrics[0]
    metric = config.metric or default_metric
    summary_remarks = [
        describe_table(merged, config.molecules),
        describe_counts(merged.reduced_mixtures(config.standardize)),
        describe_duplicates(table, groups, config.duplicates),
    ]
    return TableTask(
        config=config,
        table=merged,
        metric=metric,
        metrics=merged.labels.type.metrics,
        groups=groups,
        rows_to_split=rows_to_split & ~(table.usable & ~merged.usable),
        merged_labels=merged_labels(table, merged),
        earlier_texts=earlier_texts,
        summary="; ".join(filter(None, summary_remarks)),
        reported_rows=merged.reported_rows(),
        departures=departures(config, merged),
        identity=_identity(config, merged, metric),
        file_sha256=file_hashes(config),
        layout=_layout(config, merged.labels.columns),
    )


def _layout(config: TableConfig, label_columns: list[str]) -> TableLayout:
    """How predictions are written: as the file of train is."""
    train_file = str(task_files(config)["train"])
    target = Path("predictions.csv")
    return output_layout(train_file, config.header, target, label_columns, config.sheet)


def deviations(labels: np.ndarray) -> list[float]:
    """The standard deviations of labels [rows, labels] as divisors: 1 where all are equal."""
    stds = np.nanstd(labels, 0)
    return np.where(stds > 0, stds, 1.0).tolist()


def _identity(config: TableConfig, table: LabelledTable, metric: str) -> dict[str, Any]:
    """What other runs must share to have the same data and scores. Settings that were inferred have
    the names of settings, so that a later run that names them is the same."""
    used = {
        "text_column": table.text_column,
        "pair_column": table.pair_column,
        "label_columns": table.labels.columns,
        "task_type": table.labels.task_type,
        "positive": table.labels.binary_names and table.labels.binary_names[1],
        "metric": metric,
    }
    left_out = [name for name in used if used[name] and getattr(config, name) is None]
    return {
        "data_sha256": content_hash(table),
        "metric": metric,
        "inferred": {f"task.{name}": used[name] for name in left_out},
    }
