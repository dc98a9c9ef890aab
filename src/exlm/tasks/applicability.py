"""How far molecules are from those that a model was trained on: far from these, its predictions deserve less trust."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

from exlm.errors import InputError

TRAINING_MOLECULES = "train.smi"  # one SMILES a line, beside the model of every seed: random splits differ
FAR = 0.7
RADIUS, BITS = 2, 2048  # of the fingerprints, in bonds and in bits


def distance_to_training(run_dirs: Sequence[Path], smiles: Sequence[str]) -> np.ndarray:
    """For each molecule 1 - the highest Tanimoto similarity of its ECFP4 (2,048 bits) to a training molecule: [rows],
    from 0 (the same fingerprint) to 1, NaN where RDKit cannot parse it. InputError if the molecules were not kept."""
    known = set[str]()
    for run_dir in run_dirs:
        path = run_dir / TRAINING_MOLECULES
        if not path.is_file():
            raise InputError(f"{path} does not exist; distances need a model fine-tuned on molecules by this version")
        known |= set(path.read_text(encoding="utf-8").splitlines())
    references = [fingerprint for fingerprint in fingerprints(sorted(known)) if fingerprint is not None]
    closest = [
        np.nan if one is None else max(DataStructs.BulkTanimotoSimilarity(one, references), default=0.0)
        for one in fingerprints(smiles)
    ]
    return 1 - np.array(closest)


def fingerprints(smiles: Sequence[str]) -> list[DataStructs.ExplicitBitVect | None]:
    """The fingerprint of every molecule (ECFP4: a radius of 2 is a diameter of 4), None where RDKit cannot parse it."""
    generator = GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    with rdBase.BlockLogs():
        molecules = [Chem.MolFromSmiles(text) if text else None for text in smiles]
    return [None if molecule is None else generator.GetFingerprint(molecule) for molecule in molecules]
