"""MoleculeNet (Wu et al., 2018) as one table: files, columns, tasks and fine-tuning hyper-parameters."""

import os
from dataclasses import dataclass
from pathlib import Path

from exlm.errors import InputError
from exlm.tasks.table import TaskType, listed


@dataclass(frozen=True)
class Dataset:
    """One MoleculeNet set and how to fine-tune on it.

    The hyper-parameters of the seven classification sets are those of the ExLM paper's fine-tuning table.
    The regression sets are not in the paper: their values are ours, close to Uni-Mol's.
    `rows` is the published size, for the seven sets that of the paper's table of results. Its BACE alone is a slip
    (1,531): the set has 1,513 molecules, and the paper's parts add up to 1,512.
    """

    file: str
    text_column: str
    label_columns: tuple[str, ...] | None  # None: every other numeric column
    task_type: TaskType
    rows: int
    epochs: int
    batch_size: int
    learning_rate: float
    warmup_ratio: float  # share of the steps
    dropout: float
    pooler_dropout: float
    other_names: tuple[str, ...] = ()  # public file names, less .csv or .csv.gz


_ESOL_TARGET = "measured log solubility in mols per litre"

# fmt: off
MOLECULENET: dict[str, Dataset] = {
    "bace": Dataset("bace.csv.gz", "mol", ("Class",), "binary", 1513, 60, 64, 1e-4, 0.06, 0.1, 0.2),
    "bbbp": Dataset("bbbp.csv.gz", "smiles", ("p_np",), "binary", 2039, 40, 128, 4e-4, 0.06, 0.1, 0.1, ("BBBP",)),
    "tox21": Dataset("tox21.csv.gz", "smiles", None, "multilabel", 7831, 80, 128, 1e-4, 0.06, 0.1, 0.1),
    "sider": Dataset("sider.csv.gz", "smiles", None, "multilabel", 1427, 100, 32, 5e-4, 0.4, 0.1, 0.0),
    "muv": Dataset("muv.csv.gz", "smiles", None, "multilabel", 93087, 40, 128, 2e-5, 0.2, 0.1, 0.1),
    "clintox": Dataset("clintox.csv.gz", "smiles", None, "multilabel", 1478, 100, 256, 5e-5, 0.1, 0.1, 0.5),
    "toxcast": Dataset(
        "toxcast.csv.gz", "smiles", None, "multilabel", 8575, 80, 64, 1e-4, 0.06, 0.1, 0.1, ("toxcast_data",)
    ),
    "esol": Dataset(
        "esol.csv.gz", "smiles", (_ESOL_TARGET,), "regression", 1128, 100, 256, 5e-4, 0.06, 0.1, 0.2,
        ("delaney-processed",),
    ),
    "freesolv": Dataset(
        "freesolv.csv.gz", "smiles", ("freesolv",), "regression", 642, 60, 64, 8e-5, 0.1, 0.1, 0.2
    ),
    "lipophilicity": Dataset(
        "lipophilicity.csv.gz", "smiles", ("lipo",), "regression", 4200, 80, 32, 1e-4, 0.06, 0.1, 0.1, ("lipo",)
    ),
}
# fmt: on


def find_dataset(name: str, data_dir: str | None = None) -> Path:
    """The file of a MoleculeNet set (a MOLECULENET key, in any case), plain or .gz, under any of its names.

    It is looked for in `data_dir`, else in $EXLM_DATA/molecules, else in ../shared/data/molecules.
    Raises InputError, with the places and names tried, if there is none.
    """
    if name.lower() not in MOLECULENET:
        raise InputError(f"unknown MoleculeNet set {name!r}; use one of {listed(MOLECULENET)}")
    dataset = MOLECULENET[name.lower()]
    folder = Path(data_dir or Path(os.environ.get("EXLM_DATA", "../shared/data")) / "molecules")
    stems = (dataset.file.removesuffix(".csv.gz"), *dataset.other_names)
    names = [stem + suffix for stem in stems for suffix in (".csv.gz", ".csv")]
    for file in names:
        if (folder / file).is_file():
            return folder / file
    raise InputError(
        f"no {name} in {folder.resolve()}: tried {listed(names)}; download the set from moleculenet.org"
        " into that folder, or name another with data_dir or the environment variable EXLM_DATA"
    )


def departures(path: str | Path, rows: int, usable: int) -> list[str]:
    """How a table departs in size from the MoleculeNet set that its file is named after (nothing for other files).

    rows: as read; usable: those that can be trained on or scored. A thousandth more or less is let pass.
    """
    known = {name.lower(): entry for key, entry in MOLECULENET.items() for name in (key, *entry.other_names)}
    entry = known.get(Path(path).name.lower().removesuffix(".gz").removesuffix(".csv"))
    if entry is None or max(abs(rows - entry.rows), abs(usable - entry.rows)) <= entry.rows // 1000:
        return []
    can_be_used = f" ({usable:,} usable)" if usable != rows else ""
    return [f"the table has {rows:,} rows{can_be_used}, the published one {entry.rows:,}"]
