"""What needs RDKit to know: whether strings are molecules."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from rdkit import Chem, rdBase

SAMPLE = 100  # texts looked at to tell whether they are molecules
_PARSER: Any = Chem.SmilesParserParams()
_PARSER.sanitize = _PARSER.removeHs = _PARSER.allowCXSMILES = _PARSER.parseName = False


def rdkit_problem(smiles: str) -> str | None:
    """Why RDKit cannot read `smiles`, or None if it can. RDKit's own log is silenced.

    Accepts what `Chem.MolFromSmiles` accepts, but leaves out its perception of stereochemistry and its
    removal of hydrogens, which reject nothing and take half of its time.
    """
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles, _PARSER)
        if molecule is None:
            return "not a SMILES string"
        try:
            Chem.SanitizeMol(molecule)
        except ValueError as error:
            return str(error).strip()
    return None


def molecule_problem(smiles: str) -> str | None:
    """Why a SMILES cannot be used, or None if it can."""
    if not smiles.strip():
        return "empty SMILES"
    if len(smiles.split()) > 1:  # RDKit would take the rest as a name, the tokenizer as atoms
        return "SMILES contains a space"
    return "RDKit cannot parse it" if rdkit_problem(smiles) else None


def are_molecules(texts: Iterable[str]) -> bool:
    """Whether most of the first texts are SMILES that RDKit can parse."""
    sample = list(islice(filter(None, texts), SAMPLE))
    return sum(molecule_problem(text) is None for text in sample) > len(sample) / 2
