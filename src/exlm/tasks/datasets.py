"""The data sets that are known by name: MoleculeNet (Wu et al., 2018) and GLUE (Wang et al., 2018).

datasets.yaml says how the files are laid out, what is predicted, and how many rows the published sets have.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml

from exlm.errors import InputError, first_line
from exlm.tasks.frames import listed, read_frame
from exlm.tasks.table import LabelledTable, TaskType, make_table


@dataclass(frozen=True)
class MoleculeSet:
    """One MoleculeNet set and how to fine-tune on it."""

    text_column: str
    label_columns: list[str] | None  # None: every other numeric column
    task_type: TaskType
    rows: int  # published size
    train: dict[str, float]  # hyper-parameters: fields of FinetuneConfig
    other_names: Sequence[str] = ()  # other public names of the file, less .csv or .csv.gz


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task."""

    task_type: TaskType
    metric: str  # chooses the epoch and the grid cell
    rows: dict[str, int]  # published sizes of the train and the development sets
    layouts: list[tuple[str, str | None, str]]  # text, second text, label columns: original files, then the hub
    classes: list[str] | None = None  # the labels of the original files, in the hub's order
    header: Sequence[str] = ()  # columns of a file without header line


_KNOWN = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
MOLECULENET = {name: MoleculeSet(**entry) for name, entry in _KNOWN["moleculenet"].items()}
GLUE = {name: GlueTask(**entry) for name, entry in _KNOWN["glue"].items()}
FILES: dict[str, list[str]] = _KNOWN["glue_files"]  # less their endings; of several, the first that is there
FILE_ENDING = r"(-0.*)?(?i:\.(csv|parquet|tsv|txt)(\.gz|\.xz|\.zst)?)"  # the hub has train-00000-of-00001.parquet


def data_folder(dataset: str, data_dir: str | None, below: str) -> Path:
    """The folder of a named data set's files: `data_dir`, else the folder `below` in $EXLM_DATA.

    Raises InputError if neither is given.
    """
    if data_dir:
        return Path(data_dir)
    if base := os.environ.get("EXLM_DATA"):
        return Path(base) / below
    raise InputError(
        f"it is not known where the files of {dataset} are; name their folder with task.data_dir, or set the "
        f"environment variable EXLM_DATA to the folder that holds {below}"
    )


def find_dataset(name: str, data_dir: str | None = None) -> Path:
    """The file of a MoleculeNet set (a MOLECULENET key, in any case), plain or .gz, under any of its names.

    It is looked for in `data_dir`, else in $EXLM_DATA/molecules.
    Raises InputError, with the folder and the names tried, if there is none.
    """
    folder = data_folder(name, data_dir, "molecules")
    stems = (name.lower(), *MOLECULENET[name.lower()].other_names)
    names = [stem + suffix for stem in stems for suffix in (".csv.gz", ".csv")]
    for file in names:
        if (folder / file).is_file():
            return folder / file
    raise InputError(
        f"no {name} in {folder.resolve()}: tried {listed(names)}; download the set from moleculenet.org"
        " into that folder, or name another with data_dir or the environment variable EXLM_DATA"
    )


def molnet_differences(path: str | Path, rows: int, usable: int) -> list[str]:
    """How a table differs in size from the MoleculeNet set that its file is named after (nothing for other files).

    rows: as read; usable: those that can be trained on or scored.
    """
    known = {name.lower(): entry for key, entry in MOLECULENET.items() for name in (key, *entry.other_names)}
    entry = known.get(Path(path).name.lower().removesuffix(".gz").removesuffix(".csv"))
    if entry is None or _same_size(rows, entry.rows) and _same_size(usable, entry.rows):
        return []
    can_be_used = f" ({usable:,} usable)" if usable != rows else ""
    return [f"the table has {rows:,} rows{can_be_used}, the published one {entry.rows:,}"]


def _same_size(rows: int, published: int) -> bool:
    """A thousandth more or less is let pass."""
    return abs(rows - published) <= published // 1000


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, in any case, with or without hyphens, or None."""
    return {key.replace("-", ""): key for key in GLUE}.get(name.lower().replace("-", ""))


def glue_table(name: str, data_dir: str | None = None) -> tuple[LabelledTable, list[str]]:
    """The train and development sets of a GLUE task (a key of GLUE), and how they differ in size from the published.

    data_dir: a folder with one folder per task, each with the original TSV files, the hub's Parquet files or
        CSV files (compressed or not); or the name of a hub data set. $EXLM_DATA/text/glue where absent.

    Raises InputError, with the folder looked at, for files, columns or labels that are not there.
    """
    task = GLUE[name]
    if data_dir and not Path(data_dir).exists() and data_dir.count("/") == 1:
        path, frames = data_dir, _from_hub(name, data_dir)
    else:
        path, frames = _from_folder(name, data_folder(name, data_dir, "text/glue"))
    shared = set.intersection(*(set(frame.columns) for frame in frames.values()))
    layout = next((layout for layout in task.layouts if shared.issuperset(filter(None, layout))), None)
    if layout is None:
        wanted = " or ".join(listed(filter(None, layout)) for layout in task.layouts)
        found = "; ".join(f"{split} has {listed(frame)}" for split, frame in frames.items())
        raise InputError(f"{path}: every file of {name} needs the columns {wanted}; {found}")
    text, second, label = layout
    numbered = frames["train"][label].astype(str).str.fullmatch(r"-?\d+").all()  # as on the hub
    classes = [str(i) for i in range(len(task.classes))] if task.classes and numbered else task.classes
    differences = [
        f"{split} has {len(frame):,} rows, GLUE's has {task.rows[split]:,}"
        for split, frame in frames.items()
        if not _same_size(len(frame), task.rows[split])
    ] + [f"{split} is missing" for split in task.rows if split not in frames]
    return make_table(frames, path, text, [label], task.task_type, classes, second), differences


def _from_folder(name: str, root: Path) -> tuple[str, dict[str, pd.DataFrame]]:
    folder = next((path for path in sorted(root.glob("*")) if path.is_dir() and glue_name(path.name) == name), None)
    if folder is None:
        raise InputError(
            f"no folder {name} in {root.resolve()}; put the task's files there, or name their parent folder (or, with "
            "a network, the data set nyu-mll/glue) with task.data_dir"
        )
    frames = {}
    for split in GLUE[name].rows:
        patterns = [re.compile(stem + FILE_ENDING) for stem in FILES[split]]
        there = [[path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name)] for pattern in patterns]
        files = next(filter(None, there), [])  # those of the first stem that has any
        if split == "mismatched" and not files:
            continue
        if len(files) != 1:
            wanted = f"{' or '.join(FILES[split])} (.csv, .parquet, .tsv, .txt)"
            found = listed(path.name for path in files or folder.iterdir()) or "none"
            raise InputError(f"{folder} must have one file {wanted}; it has {found}")
        frames[split] = read_frame(files[0], GLUE[name].header)
    return str(folder), frames


def _from_hub(name: str, hub_name: str) -> dict[str, pd.DataFrame]:
    from datasets import load_dataset

    try:
        whole = load_dataset(hub_name, name.replace("-", ""))
        files = {split: next(stem for stem in FILES[split] if stem in whole) for split in GLUE[name].rows}
        return {split: whole[file].to_pandas() for split, file in files.items()}
    except Exception as error:  # the library and the network raise anything
        raise InputError(
            f"{hub_name} is no folder here, and {name} could not be loaded from a hub data set of that name "
            f"({first_line(error)})"
        ) from error
