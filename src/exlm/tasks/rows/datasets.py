"""MoleculeNet (Wu et al., 2018), GLUE (Wang et al., 2018) and SQuAD 2.0 by name, with their
hyper-parameters; datasets.yaml says what they hold."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from exlm.data.columns import listed
from exlm.data.formats import data_files
from exlm.data.frames import FileRows, read_whole
from exlm.data.open_files import path_of, plain_stem, plain_suffix
from exlm.errors import InputError
from exlm.storage.files import sha256
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.rows.splits import split_columns
from exlm.tasks.rows.table import TextTable, labelled_table


@dataclass(frozen=True)
class MoleculeSet:
    """A data set of MoleculeNet; datasets.yaml describes the fields."""

    text_column: str
    label_columns: list[str] | None
    task_type: str
    rows: int
    default_hyper: dict[str, Any]
    other_names: Sequence[str] = ()


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE; datasets.yaml describes the fields."""

    task_type: str
    metric: str
    rows: dict[str, int]
    columns: list[tuple[str, str | None, str]]
    class_names: list[str] | None = None
    columns_if_missing: Sequence[str] = ()


_ENTRIES = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
MOLECULENET = {name: MoleculeSet(**entry) for name, entry in _ENTRIES["moleculenet"].items()}
GLUE = {name: GlueTask(**entry) for name, entry in _ENTRIES["glue"].items()}
SQUAD = "squad2"
SQUAD_SIZES: dict[str, int] = _ENTRIES[SQUAD]
FILES: dict[str, list[str]] = _ENTRIES["files"]
DECIDED_BY_NAME: list[str] = _ENTRIES["decided_by_name"]
DEFAULT_HYPER: dict[str, dict[str, Any]] = _ENTRIES["defaults"]
HUB_NUMBER = r"(-0\d*-of-\d+.*)?"  # the hub has train-00000-of-00001.parquet
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
        return {**glue_files(config.dataset, config.data_dir)}
    if config.dataset == SQUAD:
        folder = data_folder(SQUAD, config.data_dir, "text/squad2")
        return {part: find_file(folder, FILES[part]) for part in SQUAD_SIZES}
    files = {"train": config.dataset, "valid": config.valid, "test": config.test}
    return {part: file for part, file in files.items() if file}


def data_name(config: TaskConfig) -> str:
    """The name of the data, or the files that they are in."""
    return " and ".join(filter(None, [config.dataset, config.valid, config.test]))


def file_hashes(config: TaskConfig) -> dict[str, str]:
    """The SHA-256 of the files of a config that `resolve` completed, by path."""
    return {str(file): sha256(path_of(file)) for file in task_files(config).values()}


def load_labelled(config: TaskConfig) -> TextTable:
    """The table of a config that `resolve` completed."""
    files = read_files(config)
    class_names = None
    if config.dataset in GLUE:
        config, class_names = _glue_config(config, files)
    return labelled_table(files, config, class_names, split_columns(config.split))


def read_files(config: TaskConfig) -> dict[str, FileRows]:
    """The rows of the file of every part."""
    paths = task_files(config)
    columns_if_missing = GLUE[config.dataset].columns_if_missing if config.dataset in GLUE else ()
    files = data_files(paths.values(), config.header, config.sheet, columns_if_missing)
    return {part: read_whole(file) for part, file in zip(paths, files, strict=True)}


def fill_in(
    hyper: FinetuneConfig, dataset_defaults: dict[str, Any], molecules: bool
) -> FinetuneConfig:
    """Fills in hyper-parameters that were left out, by the data set or else the defaults."""
    defaults = DEFAULT_HYPER["molecules" if molecules else "text"] | dataset_defaults
    missing = {name: value for name, value in defaults.items() if getattr(hyper, name) is None}
    return replace(hyper, **missing)


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


def departures(config: TaskConfig, table: TextTable) -> list[str]:
    """How the rows of a task, and the usable ones among them, differ from the published rows."""
    result = []
    if config.dataset in GLUE:
        sizes = Counter(table.frame.index.get_level_values(0))
        result += size_departures(sizes, GLUE[config.dataset].rows, "rows", "GLUE's")
    if config.train_rows is not None:
        result.append(f"at most {config.train_rows} rows of the train part are used")
    task = file_task(config.dataset, table.frame.columns)
    return result + molnet_departures(task, len(table.texts), int(table.usable.sum()))


def size_departures(
    sizes: dict[str, int], published: dict[str, int], noun: str, owner: str
) -> list[str]:
    """Which parts are missing, or differ by more than a thousandth in their number of rows from the
    published ones of `owner`. `noun` says what rows are called."""
    result = []
    for part, size in published.items():
        if part not in sizes:
            result.append(f"{part} is missing")
        elif _differs(sizes[part], size):
            result.append(f"{part} has {sizes[part]:,} {noun}, {owner} has {size:,}")
    return result


def file_task(path: str | Path, columns: Iterable[str] | None) -> str:
    """The task that a file has, in lower case: the MoleculeNet set that it is named after, if its
    `columns` (None: unknown) have the labels of this, or its own name without endings. A file that
    only the name has in common with a set keeps its ending, so that they are not mixed up."""
    stem = plain_stem(path).lower()
    without_number = re.sub(HUB_NUMBER + "$", "", stem)
    for name, entry in MOLECULENET.items():
        if without_number in (name, *entry.other_names):
            has_labels = columns is None or set(entry.label_columns or []) <= set(columns)
            return name if has_labels else Path(path).name.lower()
    return stem


def molnet_departures(task: str, rows: int, usable: int) -> list[str]:
    """How many more or fewer rows and usable rows a table has than the published set, if its task
    (`file_task`) is a MoleculeNet set."""
    entry = MOLECULENET.get(task)
    if entry is None or not (_differs(rows, entry.rows) or _differs(usable, entry.rows)):
        return []
    can_be_used = f" ({usable:,} usable)" if usable != rows else ""
    return [f"the table has {rows:,} rows{can_be_used}, MoleculeNet's {task} {entry.rows:,}"]


def _differs(rows: int, published: int) -> bool:
    return abs(rows - published) > published // 1000


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, or None. Upper case and hyphens make no difference."""
    return {key.replace("-", ""): key for key in GLUE}.get(name.lower().replace("-", ""))


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
            return {part: find_file(folder, FILES[part]) for part in parts}
    raise InputError(
        f"no folder {name} in {root.resolve()}; name its parent folder with task.data_dir"
    )


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
