"""The data sets that are known by name: MoleculeNet (Wu et al., 2018) and GLUE (Wang et al., 2018).

The tables say how the files are laid out, what is predicted, and how many rows the published sets have.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from exlm.errors import InputError, first_line
from exlm.tasks.frames import listed, read_frame
from exlm.tasks.table import TaskType


@dataclass(frozen=True)
class MoleculeSet:
    """One MoleculeNet set and how to fine-tune on it.

    The hyper-parameters of the seven classification sets are those of the ExLM paper's fine-tuning table.
    The regression sets are not in the paper: their values are ours, close to Uni-Mol's.
    `rows` is the published size, for the seven sets that of the paper's table of results. Its BACE alone is a slip
    (1,531): the set has 1,513 molecules, and the paper's train, valid and test add up to 1,512.
    """

    text_column: str
    label_columns: list[str] | None  # None: every other numeric column
    task_type: TaskType
    rows: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup_ratio: float  # share of the steps
    dropout: float
    pooler_dropout: float
    other_names: tuple[str, ...] = ()  # other public names of the file, less .csv or .csv.gz


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task. Test labels are not public: results are on the development sets, as in the paper."""

    task_type: TaskType
    metric: str  # the paper's; it chooses the epoch and the grid cell
    rows: dict[str, int]  # published sizes of the train and the development sets
    layouts: tuple[tuple[str, str | None, str], ...]  # text, second text, label columns: original files, then the hub
    classes: tuple[str, ...] | None = None  # the labels of the original files, in the hub's order
    header: tuple[str, ...] | None = None  # columns of a file without header line


_ESOL = "measured log solubility in mols per litre"
_PAIR = ("sentence1", "sentence2", "label")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")

# fmt: off
MOLECULENET: dict[str, MoleculeSet] = {
    "bace": MoleculeSet("mol", ["Class"], "binary", 1513, 60, 64, 1e-4, 0.06, 0.1, 0.2),
    "bbbp": MoleculeSet("smiles", ["p_np"], "binary", 2039, 40, 128, 4e-4, 0.06, 0.1, 0.1, ("BBBP",)),
    "tox21": MoleculeSet("smiles", None, "multilabel", 7831, 80, 128, 1e-4, 0.06, 0.1, 0.1),
    "sider": MoleculeSet("smiles", None, "multilabel", 1427, 100, 32, 5e-4, 0.4, 0.1, 0.0),
    "muv": MoleculeSet("smiles", None, "multilabel", 93087, 40, 128, 2e-5, 0.2, 0.1, 0.1),
    "clintox": MoleculeSet("smiles", None, "multilabel", 1478, 100, 256, 5e-5, 0.1, 0.1, 0.5),
    "toxcast": MoleculeSet("smiles", None, "multilabel", 8575, 80, 64, 1e-4, 0.06, 0.1, 0.1, ("toxcast_data",)),
    "esol": MoleculeSet("smiles", [_ESOL], "regression", 1128, 100, 256, 5e-4, 0.06, 0.1, 0.2, ("delaney-processed",)),
    "freesolv": MoleculeSet("smiles", ["freesolv"], "regression", 642, 60, 64, 8e-5, 0.1, 0.1, 0.2),
    "lipophilicity": MoleculeSet("smiles", ["lipo"], "regression", 4200, 80, 32, 1e-4, 0.06, 0.1, 0.1, ("lipo",)),
}
GLUE: dict[str, GlueTask] = {
    "mnli": GlueTask("multiclass", "accuracy", {"train": 392702, "valid": 9815, "mismatched": 9832},
                     (("sentence1", "sentence2", "gold_label"), ("premise", "hypothesis", "label")), _INFERENCE),
    "qqp": GlueTask("binary", "accuracy", {"train": 363846, "valid": 40430},
                    (("question1", "question2", "is_duplicate"), ("question1", "question2", "label"))),
    "qnli": GlueTask("multiclass", "accuracy", {"train": 104743, "valid": 5463},
                     (("question", "sentence", "label"),), _ENTAILMENT),
    "sst-2": GlueTask("binary", "accuracy", {"train": 67349, "valid": 872}, (("sentence", None, "label"),)),
    "cola": GlueTask("binary", "matthews", {"train": 8551, "valid": 1043}, (("sentence", None, "label"),),
                     header=("source", "label", "mark", "sentence")),
    "rte": GlueTask("multiclass", "accuracy", {"train": 2490, "valid": 277}, (_PAIR,), _ENTAILMENT),
    "mrpc": GlueTask("binary", "accuracy", {"train": 3668, "valid": 408},
                     (("#1 String", "#2 String", "Quality"), _PAIR)),
    "sts-b": GlueTask("regression", "spearman", {"train": 5749, "valid": 1500},
                      (("sentence1", "sentence2", "score"), _PAIR)),
}
# fmt: on

FILES = {  # of GLUE, less their endings: the original names and those of the hub
    "train": ("train", "msr_paraphrase_train"),
    "valid": ("dev", "validation", "msr_paraphrase_test", "dev_matched", "validation_matched"),
    "mismatched": ("dev_mismatched", "validation_mismatched"),
}
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
    if name.lower() not in MOLECULENET:
        raise InputError(f"unknown MoleculeNet set {name!r}; use one of {listed(MOLECULENET)}")
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

    rows: as read; usable: those that can be trained on or scored. A thousandth more or less is let pass.
    """
    known = {name.lower(): entry for key, entry in MOLECULENET.items() for name in (key, *entry.other_names)}
    entry = known.get(Path(path).name.lower().removesuffix(".gz").removesuffix(".csv"))
    if entry is None or max(abs(rows - entry.rows), abs(usable - entry.rows)) <= entry.rows // 1000:
        return []
    can_be_used = f" ({usable:,} usable)" if usable != rows else ""
    return [f"the table has {rows:,} rows{can_be_used}, the published one {entry.rows:,}"]


def glue_name(name: str) -> str | None:
    """The key of GLUE that a name means, in any case, with or without hyphens, or None."""
    return {key.replace("-", ""): key for key in GLUE}.get(name.lower().replace("-", ""))


def glue_frames(name: str, data_dir: str | None = None) -> tuple[dict[str, pd.DataFrame], str]:
    """The train and development sets of a GLUE task (a key of GLUE), and where they were found.

    data_dir: a folder with one folder per task, each with the original TSV files, the hub's Parquet files or
        CSV files (compressed or not); or the name of a hub data set. $EXLM_DATA/text/glue where absent.

    Raises InputError, with the folder looked at, for a file that is not there.
    """
    if data_dir and not Path(data_dir).exists() and data_dir.count("/") == 1:
        return _from_hub(name, data_dir), data_dir
    root = data_folder(name, data_dir, "text/glue")
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir()] if root.is_dir() else []
    folder = next((folder for folder in folders if glue_name(folder.name) == name), None)
    if folder is None:
        raise InputError(
            f"no folder {name} in {root.resolve()}; put the task's files there, or name their parent folder (or, with "
            "a network, the data set nyu-mll/glue) with task.data_dir"
        )
    frames = {}
    for split in GLUE[name].rows:
        files: list[Path] = []
        for stem in FILES[split]:  # the files of the first stem that has any
            files = files or [path for path in sorted(folder.iterdir()) if re.fullmatch(stem + FILE_ENDING, path.name)]
        if split == "mismatched" and not files:
            continue
        if len(files) != 1:
            there = "" if files else "only "
            there += listed(path.name for path in files or folder.iterdir())
            wanted = f"{' or '.join(FILES[split])} (.csv, .parquet, .tsv, .txt)"
            raise InputError(f"{folder} must have one file {wanted}; it has {there}")
        frames[split] = read_frame(files[0], GLUE[name].header)
    return frames, str(folder)


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


def glue_columns(name: str, frame: pd.DataFrame, path: str) -> tuple[str, str | None, str]:
    """The (text, second text, label) columns of a GLUE task's frame."""
    for layout in GLUE[name].layouts:
        if all(column is None or column in frame for column in layout):
            return layout
    wanted = " or ".join(listed(filter(None, layout)) for layout in GLUE[name].layouts)
    raise InputError(f"{path}: {name} needs the columns {wanted}, found {listed(frame)}")


def glue_classes(name: str, labels: pd.Series) -> list[str] | None:
    """The classes of a multiclass GLUE task: words in the original files, their numbers on the hub."""
    names = GLUE[name].classes
    if names is None:
        return None
    numbered = labels.astype(str).str.fullmatch(r"-?\d+").all()
    return [str(i) for i in range(len(names))] if numbered else list(names)


def glue_differences(name: str, frames: dict[str, pd.DataFrame]) -> list[str]:
    """How the files of a GLUE task differ in size from the published ones: their scores do not compare with others."""
    published = GLUE[name].rows
    found = [
        f"{split} has {len(frame):,} rows, GLUE's has {published[split]:,}"
        for split, frame in frames.items()
        if abs(len(frame) - published[split]) > published[split] // 1000
    ]
    return found + [f"{split} is missing" for split in published if split not in frames]
