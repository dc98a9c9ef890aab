"""MoleculeNet (Wu et al., 2018), GLUE (Wang et al., 2018) and SQuAD 2.0 by name; datasets.yaml says
what they hold."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import yaml

from exlm.data.columns import listed
from exlm.data.frames import read_frame
from exlm.errors import InputError
from exlm.tasks.table import LabelledTable, make_table

_KNOWN = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
MOLECULENET = {
    name: SimpleNamespace(**{"other_names": [], **entry})
    for name, entry in _KNOWN["moleculenet"].items()
}
GLUE = {
    name: SimpleNamespace(**{"classes": None, "header": True, **entry})
    for name, entry in _KNOWN["glue"].items()
}
SQUAD = "squad2"
SQUAD_SIZES: dict[str, int] = _KNOWN[SQUAD]
FILES: dict[str, list[str]] = _KNOWN["files"]
# the hub has train-00000-of-00001.parquet
FILE_ENDING = r"(-0.*)?\.(csv|json|parquet|tsv|txt)(\.gz|\.xz|\.zst)?"


def data_folder(dataset: str, data_dir: str | None, below: str) -> Path:
    """The folder of a named data set's files: `data_dir`, or `below` in $EXLM_DATA. InputError if
    neither is given."""
    if not data_dir and "EXLM_DATA" not in os.environ:
        where = f"name their folder with task.data_dir, or the one that holds {below} with the environment variable"
        raise InputError(f"it is not known where the files of {dataset} are; {where} EXLM_DATA")
    return Path(data_dir or Path(os.environ["EXLM_DATA"], below))


def find_file(folder: Path, names: Sequence[str]) -> Path:
    """The file of a folder that has the first possible name of `names`, in any case and with any
    FILE_ENDING."""
    files, found = sorted(folder.glob("*")), list[Path]()
    for name in names:
        pattern = re.compile(re.escape(name) + FILE_ENDING, re.IGNORECASE)
        found = found or [file for file in files if pattern.fullmatch(file.name)]
    if len(found) == 1:
        return found[0]
    wanted = f"one file {' or '.join(names)} (.csv, .json, .parquet, .tsv or .txt)"
    there = listed(file.name for file in found or files) or "none"
    raise InputError(
        f"{folder.resolve()} must have {wanted}; it has {there}; name another folder with task.data_dir"
    )


def find_dataset(name: str, data_dir: str | None = None) -> Path:
    """The file of a MoleculeNet set (a MOLECULENET key, in any case) in `data_dir`, else in
    $EXLM_DATA/molecules."""
    return find_file(
        data_folder(name, data_dir, "molecules"), [name, *MOLECULENET[name.lower()].other_names]
    )


def size_differences(
    found: dict[str, int], published: dict[str, int], unit: str, of: str
) -> list[str]:
    """Which splits are missing, or differ in their number of rows from the published ones by more
    than a thousandth."""
    return [
        f"{split} has {found[split]:,} {unit}, {of} has {size:,}"
        if split in found
        else f"{split} is missing"
        for split, size in published.items()
        if abs(found.get(split, 0) - size) > size // 1000
    ]


def molnet_differences(path: str | Path, rows: int, usable: int) -> list[str]:
    """How the rows and the usable rows of a file differ in number from the MoleculeNet set that it
    is named after."""
    published = {
        name.lower(): entry.rows
        for key, entry in MOLECULENET.items()
        for name in (key, *entry.other_names)
    }
    size = published.get(Path(path).name.lower().removesuffix(".gz").removesuffix(".csv"))
    if size is None or max(abs(rows - size), abs(usable - size)) <= size // 1000:
        return []
    can_be_used = f" ({usable:,} usable)" if usable != rows else ""
    return [f"the table has {rows:,} rows{can_be_used}, the published one {size:,}"]


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, or None. Upper case and hyphens make no difference."""
    return {key.replace("-", ""): key for key in GLUE}.get(name.lower().replace("-", ""))


def glue_table(name: str, data_dir: str | None = None) -> tuple[LabelledTable, list[str]]:
    """The train and development sets of a GLUE task (a key of GLUE), and how their sizes differ
    from the published. `data_dir` ($EXLM_DATA/text/glue where absent) has a folder per task with
    its TSV, Parquet or CSV files."""
    task, root = GLUE[name], data_folder(name, data_dir, "text/glue")
    folder = next(
        (path for path in sorted(root.glob("*")) if path.is_dir() and glue_name(path.name) == name),
        None,
    )
    if folder is None:
        raise InputError(
            f"no folder {name} in {root.resolve()}; name its parent folder with task.data_dir"
        )
    # The mismatched part of MNLI may be absent; `size_differences` notes that.
    splits = [
        split for split in task.rows if split != "mismatched" or any(folder.glob("*mismatched*"))
    ]
    frames = {split: read_frame(find_file(folder, FILES[split]), task.header) for split in splits}
    shared = set.intersection(*(set(frame.columns) for frame in frames.values()))
    layout = next(
        (layout for layout in task.layouts if shared.issuperset(filter(None, layout))), None
    )
    if layout is None:
        wanted = " or ".join(listed(filter(None, layout)) for layout in task.layouts)
        there = listed(sorted(shared))
        raise InputError(
            f"{folder}: every file of {name} needs the columns {wanted}; all have {there}"
        )
    text, second, label = layout
    numbered = frames["train"][label].astype(str).str.fullmatch(r"-?\d+").all()  # as on the hub
    classes = (
        [str(i) for i in range(len(task.classes))] if task.classes and numbered else task.classes
    )
    sizes = {split: len(frame) for split, frame in frames.items()}
    table = make_table(frames, folder, text, [label], task.task_type, classes, second)
    return table, size_differences(sizes, task.rows, "rows", "GLUE's")
