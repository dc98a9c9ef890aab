"""What needs RDKit to know: whether strings are molecules."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from rdkit import Chem, rdBase

SAMPLE = 100  # texts looked at to tell whether they are molecules
# No names after a space: RDKit would take the rest as one, the tokenizer as atoms.
_PARSER: Any = Chem.SmilesParserParams()
_PARSER.sanitize = _PARSER.removeHs = _PARSER.allowCXSMILES = _PARSER.parseName = False


def molecule_problem(smiles: str) -> str | None:
    """Why `smiles` is not a molecule, or None if it is one. RDKit's own log is silenced.

    Accepts what `Chem.MolFromSmiles` accepts, except for spaces inside and the empty string. Stereochemistry is not
    perceived and hydrogens are not removed, which rejects nothing and takes half of the time.
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
