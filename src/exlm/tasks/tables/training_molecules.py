"""The molecules or texts that models were trained on: which rows are among them, and how far other
molecules are from them."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rdkit.DataStructs import BulkTanimotoSimilarity, ExplicitBitVect

from exlm.data.chemistry import fingerprints, standardize
from exlm.errors import InputError
from exlm.storage.files import write_text
from exlm.tasks.rows.table import TextTable
from exlm.tasks.saved_task import SeedModel

# beside the model of every seed, because random splits differ: one SMILES a line, or the mark of a
# text, which does not show it
TRAINING_MOLECULES = "train.smi"
TRAINING_MARKS = "train.sha256"


def write_training(
    run_dir: Path,
    table: TextTable,
    rows: np.ndarray,
    spelling: Callable[[str], str],
    molecules: bool,
) -> None:
    """Keeps the molecules that the model of a seed is trained on beside it, or the marks of texts
    and pairs."""
    if molecules:
        lines = "".join(f"{table.texts[row]}\n" for row in rows)
        write_text(run_dir / TRAINING_MOLECULES, lines)
    if not molecules or table.pairs is not None:
        lines = "".join(f"{mark}\n" for mark in _marks_of(table, rows, spelling))
        write_text(run_dir / TRAINING_MARKS, lines)


def count_in_training(
    models: Sequence[SeedModel],
    table: TextTable,
    rows: np.ndarray,
    spelling: Callable[[str], str],
    molecules: bool,
) -> int | None:
    """How many of the rows have texts that models were trained on, all written in one `spelling`;
    None if these were not kept."""
    if molecules and table.pairs is None:
        training = set(map(spelling, training_molecules(models)))
        keys = [spelling(table.texts[row]) for row in rows]
    else:
        training = _lines(models, TRAINING_MARKS)
        keys = _marks_of(table, rows, spelling)
    return sum(key in training for key in keys) if training else None


def training_molecules(models: Sequence[SeedModel]) -> set[str]:
    """The molecules that models were trained on, as far as these are kept beside them."""
    return _lines(models, TRAINING_MOLECULES)


def _lines(models: Sequence[SeedModel], name: str) -> set[str]:
    """The lines of the files of this name beside models, as far as they are there."""
    files = [model.directory / name for model in models]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return set("".join(texts).splitlines())


def _marks_of(table: TextTable, rows: np.ndarray, spelling: Callable[[str], str]) -> list[str]:
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
    for model in models:
        file = model.directory / TRAINING_MOLECULES
        if not file.is_file():
            raise InputError(
                f"{file} does not exist; "
                "distances need a model fine-tuned on molecules by this version"
            )
    how = models[0].saved_task.standardize
    molecules = sorted(standardize(text, how) for text in training_molecules(models))
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to one of these: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
