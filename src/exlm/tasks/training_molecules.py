"""The molecules or texts that models were trained on: which rows are among them, and how far other
molecules are from them."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from rdkit.DataStructs import BulkTanimotoSimilarity, ExplicitBitVect

from exlm.data.chemistry import fingerprints, standardize
from exlm.errors import InputError
from exlm.storage.files import write_text
from exlm.tasks.saved_task import SeedModel
from exlm.tasks.table import TextTable

# beside the model of every seed, because random splits differ: one SMILES a line, or the mark of a
# text, which does not show it
TRAINING_MOLECULES = "train.smi"
TRAINING_MARKS = "train.sha256"


def write_training_molecules(run_dir: Path, molecules: Sequence[str]) -> None:
    """Keeps the molecules that the model of a seed is trained on beside it."""
    write_text(run_dir / TRAINING_MOLECULES, "".join(f"{smiles}\n" for smiles in molecules))


def training_molecules(run_dirs: Sequence[Path]) -> set[str]:
    """The molecules that models were trained on, as far as these are kept beside them."""
    files = [run_dir / TRAINING_MOLECULES for run_dir in run_dirs]
    lines = [file.read_text(encoding="utf-8").splitlines() for file in files if file.is_file()]
    return set(chain.from_iterable(lines))


def write_training_marks(run_dir: Path, marks: Sequence[str]) -> None:
    """Keeps the `marks_of` what the model of a seed is trained on beside it."""
    write_text(run_dir / TRAINING_MARKS, "".join(f"{mark}\n" for mark in marks))


def training_marks(run_dirs: Sequence[Path]) -> set[str]:
    """The marks of the texts that models were trained on, as far as these are kept."""
    files = [run_dir / TRAINING_MARKS for run_dir in run_dirs]
    return set(chain.from_iterable(f.read_text().splitlines() for f in files if f.is_file()))


def marks_of(table: TextTable, rows: np.ndarray, spelling: Callable[[str], str]) -> list[str]:
    """16 hexadecimal digits for each of the rows of a table, which tell texts or pairs of texts
    apart, all written in one `spelling`."""
    marks = []
    for row in rows:
        texts = [table.texts[row], *([table.pairs[row]] if table.pairs else [])]
        key = "\t".join(map(spelling, texts))
        marks.append(hashlib.sha256(key.encode()).hexdigest()[:16])
    return marks


def training_fingerprints(models: Sequence[SeedModel]) -> list[ExplicitBitVect]:
    """The ECFP4 (2,048 bits) of the molecules that models were trained on, as these read them.
    InputError if these were not kept."""
    run_dirs = [model.directory for model in models]
    for run_dir in run_dirs:
        if not (run_dir / TRAINING_MOLECULES).is_file():
            raise InputError(
                f"{run_dir / TRAINING_MOLECULES} does not exist; "
                "distances need a model fine-tuned on molecules by this version"
            )
    how = models[0].saved.get("standardize", "none")
    molecules = sorted(standardize(text, how) for text in training_molecules(run_dirs))
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to one of these: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
