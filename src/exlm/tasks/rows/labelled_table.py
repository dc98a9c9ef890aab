"""From the files of a task to a table with texts and labels. What the settings do not name is
inferred: the columns, and with `column_labels.py` the type of the labels."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import pandas as pd

from exlm.data.columns import (
    check_columns,
    check_different,
    choose_column,
    in_one_line,
    listed,
    match_columns,
    pair_columns,
)
from exlm.data.decimals import find_possible_thousands
from exlm.data.formats import format_of
from exlm.data.frames import FileRows
from exlm.errors import InputError
from exlm.tasks.config import TaskConfig
from exlm.tasks.labels.column_labels import infer_label_columns, label_cells, read_labels
from exlm.tasks.rows.datasets import GLUE
from exlm.tasks.rows.splits import split_columns
from exlm.tasks.rows.table import LabelledTable, TextTable, add_labels, unlabelled_table
from exlm.tasks.rows.task_files import read_parts
from exlm.tasks.rows.texts import are_pairs


def read_labelled_table(config: TaskConfig) -> LabelledTable:
    """The table of a config that `resolve` completed."""
    files = read_parts(config)
    class_names = None
    if config.dataset in GLUE:
        config, class_names = _glue_config(config, files)
    return labelled_table(files, config, class_names)


def labelled_table(
    files: dict[str, FileRows], config: TaskConfig, class_names: Sequence[str] | None = None
) -> LabelledTable:
    """The texts and labels of the files of a config, by part. `class_names` are those of all
    classes by index, if they are known. InputError if columns cannot be used, a value is no label
    of the task, or no row can be used."""
    path = config.dataset
    rows, text_column, pair_column = join_files(files, config)
    table = unlabelled_table(rows, path, text_column, pair_column)
    if config.text_column is None:
        _check_texts(table, path)
    label_columns = _label_columns(files, config, table)
    cells = label_cells(rows.frame, label_columns, table.problems)
    labels = read_labels(
        cells,
        path,
        config.task_type,
        class_names,
        config.positive,
        may_be_thousands=find_possible_thousands(cells, rows.frame, rows.separators),
    )
    has_no_label = np.where(np.isnan(labels.values).all(axis=1), "no label", "")
    settings = {
        "text_column": text_column,
        "pair_column": pair_column,
        "label_columns": listed(map(in_one_line, label_columns), 5),
        "task_type": labels.task_type,
        "positive": labels.binary_names and labels.binary_names[1],
    }
    inferred = {
        name: value for name, value in settings.items() if value and getattr(config, name) is None
    }
    labelled = add_labels(table, labels, has_no_label.tolist(), inferred)
    if not labelled.usable.any():
        raise InputError(
            f"{path}: no row can be used with the labels in {listed(label_columns)}, first row 1, "
            f"value {labelled.texts[0][:80]!r}: {labelled.problems[0]}; correct it, or choose "
            "other columns"
        )
    return labelled


def _label_columns(files: dict[str, FileRows], config: TaskConfig, table: TextTable) -> list[str]:
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
        not_labels = [*texts, *split_columns(config.split)]
        others = table.frame[train_columns].drop(columns=not_labels, errors="ignore")
        if others.columns.empty:
            is_workbook = format_of(config.dataset) == "xlsx"
            another = "sheet with --sheet" if is_workbook else "file"
            raise InputError(
                f"{config.dataset} has no column for labels, only {listed(train_columns)}; "
                f"add one, or name another {another}"
            )
        names = infer_label_columns(others, table.problems, config.dataset)
    for part, file in files.items():
        if not set(names) <= set(file.frame):
            raise _difference(files, config, part, "in the columns of labels")
    return names


def join_files(files: dict[str, FileRows], config: TaskConfig) -> tuple[FileRows, str, str | None]:
    """The rows of the only file, or of all files by (part, row), and their columns of texts and of
    second texts. Each file may call these columns in its own way; in the result they are called as
    in train. Columns that a file lacks are filled with ""."""
    text_column, pair_column = _text_columns(files["train"].frame, config, config.dataset)
    if len(files) == 1:
        return files["train"], text_column, pair_column
    # Without pairs, a file that has the column of train's texts has its texts there, even if empty.
    text_setting = text_column if pair_column is None else config.text_column
    frames = {}
    problems = dict[tuple[str, int], str]()
    separators = {part: mark for part, file in files.items() for mark in file.separators.values()}
    for part, file in files.items():
        name = _file_name(config, part)
        config_of_file = config
        if config.pair_column is None:
            setting_here = text_setting if text_setting in file.frame else None
            config_of_file = replace(config, text_column=setting_here)
        text_here, pair_here = _text_columns(file.frame, config_of_file, name)
        if (pair_here is None) != (pair_column is None):
            raise _difference(files, config, part, "in whether a row has two texts")
        frames[part] = file.frame.rename(columns={text_here: text_column, pair_here: pair_column})
        check_different(list(frames[part].columns), name)
        problems |= {(part, row): problem for row, problem in file.problems.items()}
    all_columns = list(dict.fromkeys(chain(*(frame.columns for frame in frames.values()))))
    frames = {
        part: frame.reindex(columns=all_columns, fill_value="") for part, frame in frames.items()
    }
    return FileRows(pd.concat(frames), problems, separators), text_column, pair_column


def _check_texts(table: TextTable, path: str) -> None:
    """InputError if most texts are missing in a column that was found by its name: it may have
    remarks."""
    missing = sum(not text for text in table.texts)
    if missing > len(table.texts) / 2 and len(table.frame.columns) > 2:
        raise InputError(
            f"{path}: the column {table.text_column!r}, which was found by its name, is empty in "
            f"{missing} of {len(table.texts)} rows; name the column of the texts with text_column"
        )


def _file_name(config: TaskConfig, part: str) -> str:
    """What messages call the file of a part."""
    names = {"train": config.dataset, "valid": config.valid, "test": config.test}
    return names.get(part) or f"{config.dataset}, {part} part"


def _difference(
    files: dict[str, FileRows], config: TaskConfig, part: str, subject: str
) -> InputError:
    """The error for the file of a part that differs from train in the `subject`."""
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
    text_column = choose_column(frame, text_column, where, config.label_columns or [])
    if pair_column is None and are_pairs(frame[text_column]):
        pair_column = text_column
    return text_column, pair_column


def _glue_config(
    config: TaskConfig, files: dict[str, FileRows]
) -> tuple[TaskConfig, list[str] | None]:
    """The config of a GLUE task, with the first of its possible columns that every file has, and
    the names of its classes by index."""
    task = GLUE[config.dataset]
    shared = set.intersection(*(set(rows.frame.columns) for rows in files.values()))
    complete = [columns for columns in task.columns if shared.issuperset(filter(None, columns))]
    if not complete:
        needed = " or ".join(listed(filter(None, columns)) for columns in task.columns)
        raise InputError(
            f"every file of {config.dataset} needs the columns {needed}; all have "
            f"{listed(sorted(shared))}"
        )
    text_column, pair_column, label_column = complete[0]
    class_names = task.class_names
    # On the hub, labels are the indices of the classes.
    labels = files["train"].frame[label_column].astype(str)
    if class_names and labels.str.fullmatch(r"-?\d+").all():
        class_names = list(map(str, range(len(class_names))))
    config = replace(
        config,
        text_column=text_column,
        pair_column=pair_column,
        label_columns=[label_column],
        task_type=task.task_type,
    )
    return config, class_names
