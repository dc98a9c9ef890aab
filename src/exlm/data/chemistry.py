"""Checks with RDKit whether strings are molecules."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from rdkit import Chem, rdBase

SAMPLE = 100  # number of texts that `are_molecules` checks
# Text after a space is not allowed: RDKit would read it as the molecule's name, but the tokenizer as atoms.
_PARSER: Any = Chem.SmilesParserParams()
_PARSER.sanitize = _PARSER.removeHs = _PARSER.allowCXSMILES = _PARSER.parseName = False


def molecule_problem(smiles: str) -> str | None:
    """Why `smiles` is not a molecule, or None if it is one. RDKit's own log is silenced.

    Accepts what `Chem.MolFromSmiles` accepts, except for spaces inside and the empty string. Stereochemistry is not
    perceived and hydrogens are not removed. This halves the time, and the same strings are accepted.
    """
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, _PARSER) if len(smiles.split()) == 1 else None
        if molecule is None:
            return "not a SMILES string"
        try:
            Chem.SanitizeMol(molecule)
        except ValueError as error:
            return str(error).strip()
    return None


def are_molecules(texts: Iterable[str]) -> bool:
    """Whether most of the first texts are molecules; empty ones do not count."""
    sample = list(islice(filter(None, texts), SAMPLE))
    return sum(molecule_problem(text) is None for text in sample) > len(sample) / 2
