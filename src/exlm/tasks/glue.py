"""The eight GLUE tasks of the paper (Wang et al., 2018): files, columns, labels, metrics and the sets' real sizes.

Test labels are not public: results are on the development sets, as in the paper.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from exlm.data.readers import COMPRESSIONS
from exlm.errors import InputError, first_line
from exlm.tasks.frames import listed, plain_suffix, read_frame
from exlm.tasks.table import TaskType

HUB_NAME = "nyu-mll/glue"
SUFFIXES = {".tsv", ".txt", ".csv", ".parquet"}


@dataclass(frozen=True)
class Task:
    """One GLUE task.

    Attributes:
        layouts: (text, second text, label) columns: those of the original TSV files, then those of the hub.
        task_type: what is predicted.
        metric: the paper's; it chooses the epoch and the grid cell.
        sizes: rows of the real parts.
        classes: the labels of the original files, in the hub's order.
        header: columns of a file without header line.
        parts: development sets by name, and the stems of their files.
    """

    layouts: tuple[tuple[str, str | None, str], ...]
    task_type: TaskType
    metric: str
    sizes: dict[str, int]
    classes: tuple[str, ...] | None = None
    header: tuple[str, ...] | None = None
    parts: tuple[tuple[str, tuple[str, ...]], ...] = (("valid", ("dev", "validation", "msr_paraphrase_test")),)


_SENTENCES = ("sentence1", "sentence2", "label")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[str, Task] = {
    "mnli": Task(
        (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label")),
        "multiclass",
        "accuracy",
        {"train": 392702, "valid": 9815, "mismatched": 9832},
        ("entailment", "neutral", "contradiction"),
        parts=(
            ("valid", ("dev_matched", "validation_matched")),
            ("mismatched", ("dev_mismatched", "validation_mismatched")),
        ),
    ),
    "qqp": Task(
        (("question1", "question2", "is_duplicate"), ("question1", "question2", "label")),
        "binary",
        "accuracy",
        {"train": 363846, "valid": 40430},
    ),
    "qnli": Task(
        (("question", "sentence", "label"),), "multiclass", "accuracy", {"train": 104743, "valid": 5463}, _ENTAILMENT
    ),
    "sst-2": Task((("sentence", None, "label"),), "binary", "accuracy", {"train": 67349, "valid": 872}),
    "cola": Task(
        (("sentence", None, "label"),),
        "binary",
        "matthews",
        {"train": 8551, "valid": 1043},
        header=("source", "label", "mark", "sentence"),
    ),
    "rte": Task((_SENTENCES,), "multiclass", "accuracy", {"train": 2490, "valid": 277}, _ENTAILMENT),
    "mrpc": Task(
        (("#1 String", "#2 String", "Quality"), _SENTENCES), "binary", "accuracy", {"train": 3668, "valid": 408}
    ),
    "sts-b": Task(
        (("sentence1", "sentence2", "score"), _SENTENCES), "regression", "spearman", {"train": 5749, "valid": 1500}
    ),
}
OTHER_NAMES = {"sst2": "sst-2", "stsb": "sts-b"}


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, in any case, or None."""
    name = OTHER_NAMES.get(name.lower(), name.lower())
    return name if name in GLUE else None


def glue_frames(name: str, data_dir: str | None = None) -> tuple[dict[str, pd.DataFrame], str]:
    """The parts of a GLUE task (a key of GLUE), and where they were found.

    data_dir: a folder with one folder per task, each with the original TSV files, the hub's Parquet files or
        CSV files (compressed or not); or the name of a hub data set. $EXLM_DATA/text/glue where absent, else
        ../shared/data/text/glue.

    Raises InputError, with the places looked at, for a part that is not there.
    """
    task = GLUE[name]
    if data_dir and not Path(data_dir).exists() and data_dir.count("/") == 1:
        return _hub(name, data_dir), data_dir
    root = Path(data_dir or Path(os.environ.get("EXLM_DATA", "../shared/data")) / "text" / "glue")
    folder = _task_folder(root, name)
    frames = {"train": read_frame(_part(folder, ("train", "msr_paraphrase_train")), task.header)}
    for part, stems in task.parts:
        if part == "valid" or any(_files(folder, stems)):  # MNLI's mismatched part may be missing
            frames[part] = read_frame(_part(folder, stems), task.header)
    return frames, str(folder)


def columns(name: str, frame: pd.DataFrame, path: str) -> tuple[str, str | None, str]:
    """The (text, second text, label) columns of a task's frame."""
    for layout in GLUE[name].layouts:
        if all(column is None or column in frame for column in layout):
            return layout
    wanted = " or ".join(listed(filter(None, layout)) for layout in GLUE[name].layouts)
    raise InputError(f"{path}: {name} needs the columns {wanted}, found {listed(frame)}")


def classes(name: str, labels: pd.Series) -> list[str] | None:
    """The classes of a multiclass task: words in the original files, their numbers on the hub."""
    names = GLUE[name].classes
    if names is None:
        return None
    numbered = labels.astype(str).str.fullmatch(r"-?\d+").all()
    return [str(i) for i in range(len(names))] if numbered else list(names)


def departures(name: str, frames: dict[str, pd.DataFrame]) -> list[str]:
    """How the parts differ in size from the real ones: such scores do not compare with published ones."""
    sizes = GLUE[name].sizes
    found = [
        f"{part} has {len(frame):,} rows, GLUE's has {sizes[part]:,}"
        for part, frame in frames.items()
        if abs(len(frame) - sizes[part]) > sizes[part] // 1000
    ]
    return found + [f"{part} is missing" for part in sizes if part not in frames]


def _task_folder(root: Path, name: str) -> Path:
    wanted = name.replace("-", "")
    candidates = sorted(root.iterdir()) if root.is_dir() else []
    for folder in candidates:
        if folder.is_dir() and folder.name.lower().replace("-", "") == wanted:
            return folder
    raise InputError(
        f"no folder {name} in {root.resolve()}; put the task's files there, or name their parent folder (or, with a "
        f"network, the data set {HUB_NAME}) with task.data_dir"
    )


def _files(folder: Path, stems: tuple[str, ...]) -> Iterator[Path]:
    """Files of a part: STEM.tsv and the like, or the hub's STEM-00000-of-00001.parquet."""
    for path in sorted(folder.iterdir()):
        plain = path.with_suffix("") if path.suffix in COMPRESSIONS else path
        if plain.stem.split("-0")[0] in stems and plain_suffix(path) in SUFFIXES:
            yield path


def _part(folder: Path, stems: tuple[str, ...]) -> Path:
    found = next((files for stem in stems if (files := list(_files(folder, (stem,))))), [])
    if len(found) != 1:
        there = listed(path.name for path in found) if found else f"only {listed(p.name for p in folder.iterdir())}"
        raise InputError(
            f"{folder} must have one file {' or '.join(stems)} ({listed(sorted(SUFFIXES))}); it has {there}"
        )
    return found[0]


def _hub(name: str, data_set: str) -> dict[str, pd.DataFrame]:
    from datasets import load_dataset

    wanted = {"train": "train"} | {part: stems[1] for part, stems in GLUE[name].parts}
    try:
        whole = load_dataset(data_set, name.replace("-", ""))
        return {part: whole[split].to_pandas() for part, split in wanted.items()}
    except Exception as error:  # the library and the network raise anything
        raise InputError(
            f"{data_set} is no folder here, and {name} could not be loaded from a hub data set of that name "
            f"({first_line(error)})"
        ) from error
