"""The molecules or texts that models were trained on: which rows are among them, and how far other
molecules are from them."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from rdkit.DataStructs import BulkTanimotoSimilarity, ExplicitBitVect

from exlm.data.chemistry import fingerprints, standardize
from exlm.errors import InputError, note
from exlm.storage.files import write_text
from exlm.tasks.encoders.saved_task import SeedModel
from exlm.tasks.rows.splits import RowSplit
from exlm.tasks.rows.table import TextTable

# beside the model of every seed, because random splits differ: one SMILES a line, or the mark of a
# text, which does not show it
TRAINING_MOLECULES = "train.smi"
TRAINING_MARKS = "train.sha256"

MARKED = "the column in_training of seed-N/predictions.csv marks them"


def write_training(
    run_dir: Path,
    table: TextTable,
    rows: np.ndarray,
    spelling: Callable[[str], str],
    molecules: bool,
    earlier_run: Path | None = None,
) -> None:
    """Keeps the molecules that the model of a seed is trained on beside it, or the marks of texts
    and pairs; and those of the training in the directory `earlier_run`, which it goes on from."""
    lines_by_file = dict[str, list[str]]()
    if molecules:
        lines_by_file[TRAINING_MOLECULES] = [table.texts[row] for row in rows]
    if not molecules or table.pairs is not None:
        marks = _marks(table, spelling)
        lines_by_file[TRAINING_MARKS] = [marks[row] for row in rows]
    for name, lines in lines_by_file.items():
        earlier_lines = _lines([earlier_run], name) if earlier_run else set()
        all_lines = lines + sorted(earlier_lines - set(lines))
        write_text(run_dir / name, "".join(f"{line}\n" for line in all_lines))


@dataclass(frozen=True)
class TrainingTexts:
    """What models were trained on: the molecules in one `spelling`, or the marks of texts and
    pairs."""

    keys: set[str]
    spelling: Callable[[str], str]
    molecules: bool  # whether the keys are molecules, and not marks

    def rows_in(self, table: TextTable) -> np.ndarray:
        """Which usable rows of a table have such a text or pair of texts: [rows] bool."""
        if self.molecules:
            keys = list(map(self.spelling, table.texts))
        else:
            keys = _marks(table, self.spelling)
        return np.array([key in self.keys for key in keys]) & table.usable


def read_training(
    run_dirs: Sequence[Path], spelling: Callable[[str], str], molecules: bool
) -> TrainingTexts | None:
    """What the models in these directories were trained on, whose rows have one molecule each, or
    texts or pairs; None if it was not kept."""
    if molecules:
        keys = set(map(spelling, _lines(run_dirs, TRAINING_MOLECULES)))
    else:
        keys = _lines(run_dirs, TRAINING_MARKS)
    return TrainingTexts(keys, spelling, molecules) if keys else None


@dataclass(frozen=True)
class EarlierTraining:
    """The training of the model that a fine-tuning goes on from, and which rows of the new table it
    had, too."""

    run_dir: Path
    has_row: np.ndarray | None  # [rows] bool; None if that training kept no record of its texts

    @classmethod
    def of(
        cls, run_dir: Path, table: TextTable, spelling: Callable[[str], str], molecules: bool
    ) -> Self:
        """That of the model in a directory, with a note if it kept no record; `molecules`: whether
        each row of the table is one molecule."""
        training = read_training([run_dir], spelling, molecules)
        if training is None:
            note(
                f"{run_dir} keeps no record of the texts of its training, so it cannot be told "
                "whether valid and test have some of them"
            )
            return cls(run_dir, None)
        return cls(run_dir, training.rows_in(table))

    def counts(self, split: RowSplit) -> dict[str, int | None]:
        """How many rows of every part but train it had; None if it cannot be told."""
        return {
            part: None if self.has_row is None else int(self.has_row[rows].sum())
            for part, rows in split.items()
            if part != "train"
        }

    def warn(self, split: RowSplit) -> None:
        """Warns of rows to be scored that it had."""
        rows = " and ".join(
            f"{count} of the {len(split[part])} {part} rows"
            for part, count in self.counts(split).items()
            if count
        )
        if rows:
            print(
                f"warning: {rows} have a text or molecule of the training of {self.run_dir}, "
                "so their scores are too good; use a split by column or file that keeps them in "
                f"train ({MARKED})",
                file=sys.stderr,
            )


def _lines(run_dirs: Sequence[Path], name: str) -> set[str]:
    """The lines of the files of this name beside models, as far as they are there."""
    files = [run_dir / name for run_dir in run_dirs]
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return set("".join(texts).splitlines())


def _marks(table: TextTable, spelling: Callable[[str], str]) -> list[str]:
    """16 hexadecimal digits for every row of a table, which tell texts or pairs of texts apart, all
    written in one `spelling`."""
    marks = []
    for row, text in enumerate(table.texts):
        texts = [text, table.pairs[row]] if table.pairs else [text]
        key = "\t".join(map(spelling, texts))
        marks.append(hashlib.sha256(key.encode()).hexdigest()[:16])
    return marks


def training_fingerprints(models: Sequence[SeedModel]) -> list[ExplicitBitVect]:
    """The ECFP4 (2,048 bits) of the molecules that models were trained on, as these read them.
    InputError if these were not kept."""
    run_dirs = [model.directory for model in models]
    for run_dir in run_dirs:
        file = run_dir / TRAINING_MOLECULES
        if not file.is_file():
            raise InputError(
                f"{file} does not exist; "
                "distances need a model fine-tuned on molecules by this version"
            )
    how = models[0].saved_task.standardize
    molecules = sorted(standardize(text, how) for text in _lines(run_dirs, TRAINING_MOLECULES))
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to one of these: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
