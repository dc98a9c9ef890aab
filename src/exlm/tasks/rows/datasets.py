"""The data sets that are known by name: MoleculeNet (Wu et al., 2018), GLUE (Wang et al., 2018) and
SQuAD 2.0. What datasets.yaml says of them, and how the rows of a task differ from those that were
published."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from exlm.data.open_files import plain_stem
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.rows.table import LabelledTable


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
FILE_NAMES: dict[str, list[str]] = _ENTRIES["files"]  # possible names, by part
DECIDED_BY_NAME: list[str] = _ENTRIES["decided_by_name"]
DEFAULT_HYPER: dict[str, dict[str, Any]] = _ENTRIES["defaults"]
HUB_NUMBER = r"(-0\d*-of-\d+.*)?"  # names of the hub end so: train-00000-of-00001.parquet


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, or None. Upper case and hyphens make no difference."""
    return {key.replace("-", ""): key for key in GLUE}.get(name.lower().replace("-", ""))


def fill_in(
    hyper: FinetuneConfig, dataset_defaults: dict[str, Any], molecules: bool
) -> FinetuneConfig:
    """Fills in hyper-parameters that were left out, by the data set or else the defaults."""
    defaults = DEFAULT_HYPER["molecules" if molecules else "text"] | dataset_defaults
    missing = {name: value for name, value in defaults.items() if getattr(hyper, name) is None}
    return replace(hyper, **missing)


def departures(config: TaskConfig, table: LabelledTable) -> list[str]:
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
    """The task that a file has, in lower case: the MoleculeNet set that the file is named after, or
    else its own name without endings. If its `columns` (None: unknown) lack the labels of that set,
    the name has its ending: `bace` is the set, and `bace.csv` another table."""
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
