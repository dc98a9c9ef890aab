"""The rows of a table: their texts and labels, and why some of them cannot be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pandas as pd

from exlm.data.chemistry import Standardize, is_reduced_mixture
from exlm.data.columns import (
    check_columns,
    check_different,
    choose_column,
    in_one_line,
    listed,
    match_columns,
    pair_columns,
)
from exlm.data.decimals import doubtful_points
from exlm.data.frames import FileRows
from exlm.data.problems import HAS_SPECIAL_TOKENS, OnInvalid
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.labels.column_labels import infer_label_columns, label_cells, read_labels
from exlm.tasks.labels.label_types import LABEL_TYPES, LabelType
from exlm.tasks.rows.texts import are_pairs, first_of_each, read_texts

UNUSABLE = "marked in the column problem"  # among counts of rows


@dataclass(frozen=True)
class TextTable:
    """All rows of files, with their texts and, if these are read, their labels. `texts`, `pairs`,
    `problems` and `warnings` are [rows]."""

    frame: pd.DataFrame  # every row and column, in order; by (part, row) where it joins files
    texts: list[str]  # the SMILES or text of each row, "" where missing
    pairs: list[str] | None  # the second text of each row, where the task has two
    text_column: str
    pair_column: str | None
    problems: list[str]  # why a row cannot be used, "" if it can
    warnings: list[str]  # what is odd about a row that can be used, "" if nothing
    is_cut: np.ndarray  # [rows] bool, whether the text was longer than the model reads
    inferred: dict[str, str]  # what was inferred, by the setting that can say otherwise
    # [rows, labels] float64, NaN where missing; [rows, 0] of an `unlabelled_table`; [rows, units]
    # of token_classification
    labels: np.ndarray
    label_columns: list[str] = field(default_factory=list)
    task_type: str = ""
    class_names: list[str] | None = None  # of the indices in `labels`, if these are classes
    binary_names: list[str] | None = None  # what labels 0 and 1 are called, if they have names
    # token_classification: a regular expression for what has a label
    unit_pattern: str = ""
    separators: Mapping[str, str] = field(default_factory=dict)  # of the files, as `FileRows` says

    def doubtful_points(self, cells: pd.DataFrame) -> pd.DataFrame:
        """[rows, labels] which cells of labels may be thousands."""
        return doubtful_points(cells, self.frame, self.separators)

    @property
    def label_type(self) -> LabelType:
        return LABEL_TYPES[self.task_type]

    @property
    def usable(self) -> np.ndarray:
        return np.array(self.problems, dtype=object) == ""

    @property
    def was_cut(self) -> np.ndarray:
        """Which rows are used with a text that was cut: [rows] bool."""
        return self.is_cut & self.usable

    @property
    def parts(self) -> np.ndarray | None:
        """[rows] the file that each row is from (train, valid, test, ...), or None if there is one
        file."""
        index = self.frame.index
        return None if index.nlevels == 1 else np.array(index.get_level_values(0), dtype=str)

    def counts(self, done: str, standardize: Standardize) -> dict[str, int]:
        """How many rows can be used, for which something is `done`, and how many cannot; how many
        are cut or have special tokens; and what `reduced_mixtures` counts."""
        usable = int(self.usable.sum())
        counts = {f"rows {done}": usable, UNUSABLE: len(self.problems) - usable}
        if cut := int(self.was_cut.sum()):
            counts["cut to max_length"] = cut
        if special := sum(text.startswith(HAS_SPECIAL_TOKENS) for text in self.warnings):
            counts["with special tokens of the model in their texts"] = special
        return counts | self.reduced_mixtures(standardize)

    def reduced_mixtures(self, standardize: Standardize) -> dict[str, int]:
        """How many molecules `standardize` reduces to one of several organic components; {} if
        none."""
        molecules = [*self.texts, *(self.pairs or [])]
        count = sum(is_reduced_mixture(text, standardize) for text in molecules)
        return {"mixtures reduced to one organic component": count} if count else {}

    def reported_rows(self) -> pd.DataFrame:
        """All rows with a problem or a warning: part ("" where there is one file), row (from 1),
        value, reason, action."""
        kept = np.where(self.is_cut, "cut", "kept")
        rows = pd.DataFrame(
            {
                "part": "" if self.parts is None else self.parts,
                "row": self.frame.index.get_level_values(-1) + 1,
                "value": self.texts,
                "reason": np.where(self.usable, self.warnings, self.problems),
                "action": np.where(self.usable, kept, "left out"),
            }
        )
        return rows[rows["reason"] != ""]

    def check(self, path: str, on_invalid: OnInvalid) -> None:
        """InputError if no row can be used and these rows begin the file `path`, or if a row has a
        problem or a warning and `on_invalid` is `error`."""
        reported_rows = self.reported_rows()
        none_usable = not self.usable.any()
        begins_file = self.frame.index.get_level_values(-1)[0] == 0
        if (none_usable and begins_file) or (on_invalid == "error" and len(reported_rows)):
            subject = "no row can be used, the first: " if none_usable else ""
            raise InputError(f"{path}: {subject}{first_reported_row(reported_rows)}; correct it")


def first_reported_row(reported_rows: pd.DataFrame) -> str:
    """The first of `TextTable.reported_rows` in words: part, row, value and reason."""
    first = reported_rows.iloc[0]
    words = f"{first.part} row {first.row}, value {str(first.value)[:80]!r}: {first.reason}"
    return words.strip()


def unlabelled_table(
    rows: FileRows, path: str, text_column: str | None, pair_column: str | None = None
) -> TextTable:
    """The texts of the file `path`; a `text_column` of None is found by its usual names. InputError
    if a column is missing."""
    check_columns(rows.frame, path, text_column, pair_column)
    column = choose_column(rows.frame.columns, text_column, path)
    texts, problems = read_texts(rows, column, pair_column, path)
    return TextTable(
        frame=rows.frame,
        texts=texts[0],
        pairs=texts[1] if pair_column else None,
        text_column=column,
        pair_column=pair_column,
        problems=problems,
        warnings=[""] * len(problems),
        is_cut=np.zeros(len(problems), dtype=bool),
        inferred={} if text_column else {"text_column": column},
        labels=np.empty((len(problems), 0)),
        separators=rows.separators,
    )


def labelled_table(
    files: dict[str, FileRows],
    config: TaskConfig,
    class_names: Sequence[str] | None = None,
    not_labels: Sequence[str] = (),
) -> TextTable:
    """The texts and labels of the files of a config, by part. Columns and the task type are
    inferred where they are None (`column_labels.py`); the columns `not_labels` are no labels.
    InputError if columns cannot be used, a value is no label of the task, or no row can be used."""
    path = config.dataset
    rows, text_column, pair_column = join_files(files, config)
    table = unlabelled_table(rows, path, text_column, pair_column)
    if config.text_column is None:
        _check_texts(table, path)
    label_columns = _label_columns(files, config, table, not_labels)
    cells = label_cells(rows.frame, label_columns, table.problems)
    labels = read_labels(
        cells,
        path,
        config.task_type,
        class_names,
        config.positive,
        is_doubtful=table.doubtful_points(cells),
    )
    has_no_label = np.where(np.isnan(labels.values).all(axis=1), "no label", "")
    problems = first_of_each(table.problems, has_no_label.tolist())
    if all(problems):
        raise InputError(
            f"{path}: no row can be used with the labels in {listed(label_columns)}, first row 1, "
            f"value {table.texts[0][:80]!r}: {problems[0]}; correct it, or choose other columns"
        )
    settings = {
        "text_column": text_column,
        "pair_column": pair_column,
        "label_columns": listed(map(in_one_line, label_columns), 5),
        "task_type": labels.task_type,
        "positive": labels.binary_names and labels.binary_names[1],
    }
    return replace(
        table,
        labels=labels.values,
        label_columns=label_columns,
        task_type=labels.task_type,
        class_names=labels.class_names,
        binary_names=labels.binary_names,
        problems=problems,
        inferred={
            name: value
            for name, value in settings.items()
            if value and getattr(config, name) is None
        },
    )


def _label_columns(
    files: dict[str, FileRows], config: TaskConfig, table: TextTable, not_labels: Sequence[str]
) -> list[str]:
    """The columns of the labels, as named, or as inferred from the columns of train. InputError if
    a file lacks one."""
    train_columns = files["train"].frame.columns
    names = match_columns(config.label_columns or [], train_columns)
    check_columns(train_columns, config.dataset, *names)
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise InputError(
            f"{config.dataset}: label_columns has {twice!r} twice; name each column once"
        )
    texts = [table.text_column, table.pair_column]
    for name in names:
        if name in texts:
            raise InputError(
                f"{config.dataset}: column {name!r} is both text and label; choose another"
            )
    if not names:
        others = table.frame[train_columns].drop(columns=[*texts, *not_labels], errors="ignore")
        names = infer_label_columns(others, table.problems, config.dataset)
    for part, file in files.items():
        if not set(names) <= set(file.frame):
            raise _difference(files, config, part, "in the columns of labels")
    return names


def join_files(files: dict[str, FileRows], config: TaskConfig) -> tuple[FileRows, str, str | None]:
    """The rows of the only file, or of all files by (part, row), and their columns of texts and of
    second texts. These are found in each file by itself, also where it lacks the text column that
    the config names, and called as in train. Columns that a file lacks are filled with ""."""
    text_columns = _text_columns(files["train"].frame, config, config.dataset)
    if len(files) == 1:
        return files["train"], *text_columns
    frames = {}
    problems = dict[tuple[str, int], str]()
    separators = {part: mark for part, file in files.items() for mark in file.separators.values()}
    for part, file in files.items():
        name = _file_name(config, part)
        has_other_name = config.pair_column is None and config.text_column not in file.frame
        to_find = replace(config, text_column=None) if has_other_name else config
        columns = _text_columns(file.frame, to_find, name)
        if (columns[1] is None) != (text_columns[1] is None):
            raise _difference(files, config, part, "in whether a row has two texts")
        frames[part] = file.frame.rename(columns=dict(zip(columns, text_columns, strict=True)))
        check_different(list(frames[part].columns), name)
        problems |= {(part, row): problem for row, problem in file.problems.items()}
    all_columns = list(dict.fromkeys(chain(*(frame.columns for frame in frames.values()))))
    frames = {
        part: frame.reindex(columns=all_columns, fill_value="") for part, frame in frames.items()
    }
    return FileRows(pd.concat(frames), problems, separators), *text_columns


def _check_texts(table: TextTable, path: str) -> None:
    """InputError if most texts are missing in a column that was found by its name, as in one of
    remarks."""
    missing = sum(not text for text in table.texts)
    if missing > len(table.texts) / 2 and len(table.frame.columns) > 2:
        raise InputError(
            f"{path}: the column {table.text_column!r}, which was found by its name, is empty in "
            f"{missing} of {len(table.texts)} rows; name the column of the texts with text_column"
        )


def _file_name(config: TaskConfig, part: str) -> str:
    names = {"train": config.dataset, "valid": config.valid, "test": config.test}
    return names.get(part) or f"{config.dataset}, {part} part"


def _difference(
    files: dict[str, FileRows], config: TaskConfig, part: str, subject: str
) -> InputError:
    return InputError(
        f"{config.dataset} has the columns {listed(files['train'].frame)}, and "
        f"{_file_name(config, part)} has {listed(files[part].frame)}; they differ {subject}, so "
        "call columns alike, or name those that all files have with text_column and label_columns"
    )


def _text_columns(frame: pd.DataFrame, config: TaskConfig, where: str) -> tuple[str, str | None]:
    """The columns of the texts and of the second texts of the file `where`: as named, or by their
    usual names. They are one column if its cells are lists of two texts."""
    check_columns(frame, where, config.text_column, config.pair_column)
    text_column = config.text_column
    pair_column = config.pair_column
    if text_column is None and pair_column is None:
        text_column, pair_column = pair_columns(frame.columns)
    text_column = choose_column(frame.columns, text_column, where, config.label_columns or [])
    if pair_column is None and are_pairs(frame[text_column]):
        pair_column = text_column
    return text_column, pair_column
