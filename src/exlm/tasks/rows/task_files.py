"""The files of a task: those that its settings name, or those of a data set that is known by name,
in a folder that the settings or $EXLM_DATA name."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from exlm.data.columns import listed
from exlm.data.formats import data_files
from exlm.data.frames import FileRows, read_frames
from exlm.data.open_files import path_of, plain_suffix
from exlm.errors import InputError
from exlm.storage.files import sha256
from exlm.tasks.config import TaskConfig
from exlm.tasks.rows.datasets import (
    DECIDED_BY_NAME,
    FILE_NAMES,
    GLUE,
    HUB_NUMBER,
    MOLECULENET,
    SQUAD,
    SQUAD_SIZES,
    glue_name,
)

FILE_ENDING = HUB_NUMBER + r"\.(csv|json|parquet|tsv|txt)(\.gz|\.xz|\.zst)?"


def resolve(config: TaskConfig) -> tuple[TaskConfig, dict[str, Any]]:
    """The config, completed if its data set is known by name or a JSON file, and the
    hyper-parameters of the data set."""
    name = glue_name(config.dataset) or config.dataset.lower()
    if name in MOLECULENET:
        entry = MOLECULENET[name]
        config = replace(
            config,
            dataset=str(find_dataset(config.dataset, config.data_dir)),
            molecules=config.molecules is not False,
            text_column=config.text_column or entry.text_column,
            label_columns=config.label_columns or entry.label_columns,
            task_type=config.task_type or entry.task_type,
        )
        return config, entry.default_hyper
    if name in GLUE or name == SQUAD:
        for option in DECIDED_BY_NAME:
            if getattr(config, option) is not None:
                raise InputError(
                    f"{name} brings its own files, columns and task type; leave out task.{option}"
                )
        config = replace(config, dataset=name)
    is_squad_json = plain_suffix(config.dataset) == ".json" and not config.task_type
    if name == SQUAD or is_squad_json:
        config = replace(config, task_type="question_answering")
    return config, {}


def task_files(config: TaskConfig) -> dict[str, str | Path]:
    """The file of every part of a config that `resolve` completed."""
    if config.dataset in GLUE:
        return dict(glue_files(config.dataset, config.data_dir))
    if config.dataset == SQUAD:
        folder = data_folder(SQUAD, config.data_dir, "text/squad2")
        return {part: find_file(folder, FILE_NAMES[part]) for part in SQUAD_SIZES}
    files = {"train": config.dataset, "valid": config.valid, "test": config.test}
    return {part: file for part, file in files.items() if file}


def data_name(config: TaskConfig) -> str:
    """The name of the data, or the files that they are in."""
    return " and ".join(filter(None, [config.dataset, config.valid, config.test]))


def file_hashes(config: TaskConfig) -> dict[str, str]:
    """The SHA-256 of the files of a config that `resolve` completed, by path."""
    return {str(file): sha256(path_of(file)) for file in task_files(config).values()}


def data_folder(dataset: str, data_dir: str | None, below: str) -> Path:
    """The folder of a named data set's files: `data_dir`, or `below` in $EXLM_DATA. InputError if
    neither is given."""
    if data_dir:
        return Path(data_dir)
    if "EXLM_DATA" not in os.environ:
        raise InputError(
            f"it is not known where the files of {dataset} are; name their folder with "
            f"task.data_dir, or the one that holds {below} with the environment variable EXLM_DATA"
        )
    return Path(os.environ["EXLM_DATA"], below)


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """The file of a folder that has the first possible name of `names`, in any case and with any
    FILE_ENDING."""
    files = sorted(folder.glob("*"))
    matches: list[Path] = []
    for name in names:
        pattern = re.compile(re.escape(name) + FILE_ENDING, re.IGNORECASE)
        matches = matches or [file for file in files if pattern.fullmatch(file.name)]
    if len(matches) != 1:
        raise InputError(
            f"{folder.resolve()} must have one file {' or '.join(names)} (.csv, .json, .parquet, "
            f".tsv or .txt); it has {listed(file.name for file in matches or files) or 'none'}; "
            f"name another folder with task.data_dir"
        )
    return matches[0]


def find_dataset(name: str, data_dir: str | None = None) -> Path:
    """The file of a MoleculeNet set (a MOLECULENET key, in any case) in `data_dir`, else in
    $EXLM_DATA/molecules."""
    names = [name, *MOLECULENET[name.lower()].other_names]
    return find_file(data_folder(name, data_dir, "molecules"), names)


def glue_files(name: str, data_dir: str | None = None) -> dict[str, Path]:
    """The files of a GLUE task (a key of GLUE) by part. `data_dir` ($EXLM_DATA/text/glue where
    absent) has a folder per task with its TSV, Parquet or CSV files."""
    root = data_folder(name, data_dir, "text/glue")
    for folder in sorted(root.glob("*")):
        if folder.is_dir() and glue_name(folder.name) == name:
            parts = list(GLUE[name].rows)
            # The mismatched part of MNLI may be absent; `departures` tells that.
            if "mismatched" in parts and not any(folder.glob("*mismatched*")):
                parts.remove("mismatched")
            return {part: find_file(folder, FILE_NAMES[part]) for part in parts}
    raise InputError(
        f"no folder {name} in {root.resolve()}; name its parent folder with task.data_dir"
    )


def read_parts(config: TaskConfig) -> dict[str, FileRows]:
    """The rows of every part of a config that `resolve` completed."""
    paths = task_files(config)
    columns_if_missing = GLUE[config.dataset].columns_if_missing if config.dataset in GLUE else ()
    files = data_files(paths.values(), config.header, config.sheet, columns_if_missing)
    rows_of_parts = {}
    for part, file in zip(paths, files, strict=True):
        [rows_of_parts[part]] = read_frames(file)
    return rows_of_parts
