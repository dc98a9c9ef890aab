"""The molecules or texts that models were trained on: which rows are among them, and how far other
molecules are from them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from rdkit.DataStructs import BulkTanimotoSimilarity, ExplicitBitVect

from exlm.data.chemistry import fingerprints
from exlm.data.columns import in_one_line
from exlm.data.spelling import Spelling
from exlm.errors import InputError
from exlm.storage.files import write_text
from exlm.tasks.rows.table import TextTable
from exlm.tasks.tables.seed_models import SeedModel
from exlm.upgrades import upgrade_training_text

# beside the model of every seed, because random splits differ: one SMILES a line, or the mark of a
# text, which does not show it
TRAINING_MOLECULES = "train.smi"
TRAINING_MARKS = "train.sha256"


@dataclass(frozen=True)
class TrainingTexts:
    """What some trainings learned from, as far as they kept it."""

    run_dirs: Sequence[Path]  # the directories of the trainings
    spelling: Callable[[str], str]  # texts with one spelling are equal
    molecules: bool  # whether the rows of tables are molecules; else texts or pairs, kept as marks

    @cached_property
    def lines(self) -> set[str]:
        """The molecules or marks; empty if nothing was kept."""
        return _lines(self.run_dirs, _file_name(self.molecules))

    @cached_property
    def keys(self) -> set[str]:
        """What equal texts have in common: their spelling or mark."""
        return set(map(self.spelling, self.lines)) if self.molecules else self.lines

    def find_in(self, table: TextTable) -> np.ndarray | None:
        """Which rows of a table have a text, or pair of texts, of the trainings: [rows] bool; None
        if nothing was kept."""
        if not self.keys:
            return None
        keys = self._lines_of(table)
        if self.molecules:
            keys = list(map(self.spelling, keys))
        return np.array([key in self.keys for key in keys])

    def write_with(self, table: TextTable, rows: np.ndarray, run_dir: Path) -> None:
        """Keeps beside the model of a seed what it is trained on: some rows of a table, and the
        texts of the training that it goes on from. If the earlier training kept nothing, nothing is
        kept: a record of half the training would mislead."""
        if self.run_dirs and not self.lines:
            return
        lines_of_table = self._lines_of(table)
        lines = [lines_of_table[row] for row in rows]
        all_lines = lines + sorted(self.lines - set(lines))
        text = "".join(f"{line}\n" for line in all_lines)
        write_text(run_dir / _file_name(self.molecules), text)

    def _lines_of(self, table: TextTable) -> list[str]:
        """What is kept of every row of a table: its molecule, or 16 hexadecimal digits that tell
        texts or pairs of texts apart."""
        if self.molecules:
            return list(map(in_one_line, table.texts))
        marks = []
        for row, text in enumerate(table.texts):
            texts = [text, table.pairs[row]] if table.pairs else [text]
            key = "\t".join(map(self.spelling, texts))
            marks.append(hashlib.sha256(key.encode()).hexdigest()[:16])
        return marks


def _file_name(molecules: bool) -> str:
    return TRAINING_MOLECULES if molecules else TRAINING_MARKS


def _lines(run_dirs: Sequence[Path], name: str) -> set[str]:
    """The lines of the files of this name beside models, as far as they are there."""
    files = [run_dir / name for run_dir in run_dirs]
    text = b"".join(file.read_bytes() for file in files if file.is_file()).decode()
    return {upgrade_training_text(line) for line in text.split("\n") if line}


def training_fingerprints(models: Sequence[SeedModel]) -> list[ExplicitBitVect]:
    """The ECFP4 (2,048 bits) of the molecules that models were trained on, as the models read them.
    InputError if the molecules were not kept."""
    run_dirs = [model.directory for model in models]
    for run_dir in run_dirs:
        file = run_dir / TRAINING_MOLECULES
        if not file.is_file():
            raise InputError(
                f"{file} does not exist, so the molecules of the training are not known (of a "
                "shared copy, say, or of what went on from one); leave out distance"
            )
    spelling = Spelling(molecules=True, form=models[0].saved_task.standardize)
    lines = _lines(run_dirs, TRAINING_MOLECULES)
    molecules = sorted(map(spelling.as_read, lines))
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to a fingerprint of the
    training: [rows], from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
