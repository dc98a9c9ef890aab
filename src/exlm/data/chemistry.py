"""What needs RDKit to know: whether a string is a molecule."""

from typing import Any

from rdkit import Chem

_PARSER: Any = Chem.SmilesParserParams()
_PARSER.sanitize = _PARSER.removeHs = _PARSER.allowCXSMILES = _PARSER.parseName = False


def rdkit_problem(smiles: str) -> str | None:
    """Why RDKit cannot read `smiles`, or None if it can.

    Accepts what `Chem.MolFromSmiles` accepts, but leaves out its perception of stereochemistry and its
    removal of hydrogens, which reject nothing and take half of its time.
    """
    molecule = Chem.MolFromSmiles(smiles, _PARSER)
    if molecule is None:
        return "not a SMILES string"
    try:
        Chem.SanitizeMol(molecule)
    except ValueError as error:
        return str(error).strip()
    return None
