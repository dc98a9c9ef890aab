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
from exlm.tasks.encoders.loading import SeedModel
from exlm.tasks.rows.table import TextTable

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
    earlier_run: Path | None = None,
) -> None:
    """Keeps beside the model of a seed what it is trained on: if the rows of a table are
    `molecules` these, or else the marks of texts and pairs; and what the training in the directory
    `earlier_run` kept, which it goes on from. If that kept nothing, nothing is kept: a record of
    half the training would mislead."""
    name = TRAINING_MOLECULES if molecules else TRAINING_MARKS
    if earlier_run and not (earlier_run / name).is_file():
        return
    lines_of_table = table.texts if molecules else _marks(table, spelling)
    lines = [lines_of_table[row] for row in rows]
    earlier_lines = _lines([earlier_run], name) if earlier_run else set()
    all_lines = lines + sorted(earlier_lines - set(lines))
    write_text(run_dir / name, "".join(f"{line}\n" for line in all_lines))


class TrainingTexts:
    """What the models in some directories were trained on: the molecules in one `spelling` if the
    rows of tables are `molecules`, or else the marks of texts and pairs."""

    def __init__(
        self, run_dirs: Sequence[Path], spelling: Callable[[str], str], molecules: bool
    ) -> None:
        self.spelling = spelling
        self.molecules = molecules
        if molecules:
            self.keys = set(map(spelling, _lines(run_dirs, TRAINING_MOLECULES)))
        else:
            self.keys = _lines(run_dirs, TRAINING_MARKS)

    def rows_in(self, table: TextTable) -> np.ndarray | None:
        """Which rows of a table have such a text or pair of texts: [rows] bool; None if it was not
        kept what the models were trained on."""
        if not self.keys:
            return None
        texts = map(self.spelling, table.texts)
        keys = texts if self.molecules else _marks(table, self.spelling)
        return np.array([key in self.keys for key in keys])


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
                f"{file} does not exist, so the molecules of the training are not known (of a "
                "shared copy, say, or of what went on from one); leave out distance"
            )
    standardized = models[0].saved_task.standardize
    lines = _lines(run_dirs, TRAINING_MOLECULES)
    molecules = sorted(standardize(text, standardized) for text in lines)
    return [bits for bits in fingerprints(molecules) if bits is not None]


def distance_to_training(training: Sequence[ExplicitBitVect], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 to one of these: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it."""
    distances = np.full(len(smiles), np.nan)
    for row, molecule in enumerate(fingerprints(smiles)):
        if molecule is not None:
            distances[row] = 1 - max(BulkTanimotoSimilarity(molecule, training), default=0.0)
    return distances
