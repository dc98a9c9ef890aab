"""Checks with RDKit whether strings are molecules, and brings molecules into one spelling."""

import re
from collections.abc import Iterable, Sequence
from itertools import filterfalse, islice
from typing import Any, Literal

from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem.MolStandardize import rdMolStandardize
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

from exlm.errors import first_line

Standardize = Literal["none", "canonical", "parent"]

RADIUS = 2  # radius of the fingerprints, in bonds
BITS = 2048  # length of the fingerprints
LONGEST_SMILES = 2**13  # characters; RDKit would need seconds, and much memory, for longer ones
NO_SMILES = "not a SMILES string"
_PARSE_ERROR = r"Parse Error: (.+?)(?: while parsing| for input|\n|$)"
# How a bond's mark is written from the bond's other atom
REVERSED = {
    Chem.BondDir.ENDUPRIGHT: Chem.BondDir.ENDDOWNRIGHT,
    Chem.BondDir.ENDDOWNRIGHT: Chem.BondDir.ENDUPRIGHT,
}
SAMPLE_SIZE = 100  # how many of the first texts say whether all are molecules
# Text after a space is not allowed: RDKit would read it as the molecule's name, but the tokenizer
# as atoms.
_PARSER: Any = Chem.SmilesParserParams()
_PARSER.sanitize = False
_PARSER.removeHs = False
_PARSER.allowCXSMILES = False
_PARSER.parseName = False


def molecule_problem(smiles: str) -> str | None:
    """Why `smiles` is not a molecule, in RDKit's words, or None if it is one. Texts that pass
    `_problem_of_text` are accepted if `Chem.MolFromSmiles` accepts them. This takes half its time,
    because stereochemistry is not found and no hydrogen is removed."""
    if problem := _problem_of_text(smiles):
        return problem
    with rdBase.BlockLogs(), rdBase.CaptureErrorLog() as log:
        molecule = Chem.MolFromSmiles(smiles, _PARSER)
        if molecule is None:
            reason = re.search(_PARSE_ERROR, log.messages)
            return f"{NO_SMILES}: {reason[1]}" if reason else NO_SMILES
        try:
            Chem.SanitizeMol(molecule)
        # RDKit's own checks raise RuntimeError.
        except (ValueError, RuntimeError) as error:
            return first_line(error)
    return None


def _problem_of_text(smiles: str) -> str | None:
    """Why RDKit should not read this text, or None. It would leave out other characters than ASCII
    without a word where they begin or end it."""
    if len(smiles) > LONGEST_SMILES:
        return f"{NO_SMILES}: it has over {LONGEST_SMILES:,} characters"
    if not smiles.isascii():
        character = next(filterfalse(str.isascii, smiles))
        return f"{NO_SMILES}: it has {character!r}"
    if smiles.startswith("InChI="):
        return f"{NO_SMILES}, but an InChI, which RDKit's MolFromInchi reads"
    fields = smiles.split()
    if not fields:
        return NO_SMILES
    if len(fields) > 1 and re.search(r"\s\|.*\|", smiles):
        return f"{NO_SMILES}: it has spaces; leave out the extension |...| of CXSMILES"
    if len(fields) > 1:
        return f"{NO_SMILES}: it has spaces"
    if re.search(r"R\d", smiles):
        return f"{NO_SMILES}: an attachment point is written [*:1], not R1"
    return None


def contradiction(smiles: str) -> str:
    """Says if marks / and \\ put both neighbours of an atom on one side of its double bond, as in
    `C/C=C(/C)/O`: RDKit reads neither E nor Z there. "" if none do."""
    # Such a bond has two marks at one end, and at least one at the other.
    has_enough_marks = smiles.count("/") + smiles.count("\\") > 2
    if not has_enough_marks or _problem_of_text(smiles):
        return ""
    with rdBase.BlockLogs():
        molecule: Any = Chem.MolFromSmiles(smiles, _PARSER)
    for bond in molecule.GetBonds() if molecule else []:
        if bond.GetBondType() == Chem.BondType.DOUBLE:
            ends = [_marks(bond.GetBeginAtom()), _marks(bond.GetEndAtom())]
            if all(ends) and any(len(set(marks)) < len(marks) for marks in ends):
                return "its marks / and \\ contradict each other, so RDKit reads neither E nor Z"
    return ""


def _marks(atom: Any) -> list[Chem.BondDir]:
    """The marks of an atom's bonds, as they are written from this atom."""
    marks = []
    for bond in atom.GetBonds():
        mark = bond.GetBondDir()
        if mark in REVERSED:
            is_from_here = bond.GetBeginAtomIdx() == atom.GetIdx()
            marks.append(mark if is_from_here else REVERSED[mark])
    return marks


def element_of(token: str) -> str | None:
    """The element of a SMILES token that is one atom, such as N for `[nH]`; None for others."""
    with rdBase.BlockLogs():
        molecule: Any = Chem.MolFromSmiles(token, _PARSER)
    if molecule is None or molecule.GetNumAtoms() != 1:
        return None
    return molecule.GetAtomWithIdx(0).GetSymbol()


def _molecule(smiles: str) -> Any:
    """The molecule, None if RDKit cannot parse it, or should not read this text."""
    if _problem_of_text(smiles):
        return None
    with rdBase.BlockLogs():
        return Chem.MolFromSmiles(smiles)


def standardize(smiles: str, form: Standardize) -> str:
    """A molecule as canonical SMILES, or as those of its `parent`, the largest fragment without
    charges, so that a salt and its acid become equal. A string that is not a molecule stays as it
    is, and so does every string in the form `none`."""
    molecule = None if form == "none" else _molecule(smiles)
    if molecule is None:
        return smiles
    if form == "parent":
        with rdBase.BlockLogs():
            molecule = rdMolStandardize.LargestFragmentChooser().choose(molecule)
            molecule = rdMolStandardize.Uncharger().uncharge(molecule)
    return Chem.MolToSmiles(molecule)


def is_reduced_mixture(smiles: str, form: Standardize) -> bool:
    """Whether `standardize` takes one of several different components with carbon."""
    molecule = _molecule(smiles) if form == "parent" and "." in smiles else None
    if molecule is None:
        return False
    carbon = Chem.MolFromSmarts("[#6]")
    components = Chem.GetMolFrags(molecule, asMols=True)
    organic = filter(lambda component: component.HasSubstructMatch(carbon), components)
    return len(set(map(Chem.MolToSmiles, organic))) > 1


def are_molecules(texts: Iterable[str]) -> bool:
    """Whether most of the first texts are molecules; empty ones do not count."""
    first_texts = list(islice(filter(None, texts), SAMPLE_SIZE))
    return sum(molecule_problem(text) is None for text in first_texts) > len(first_texts) / 2


def fingerprints(smiles: Sequence[str]) -> list[DataStructs.ExplicitBitVect | None]:
    """The fingerprint of every molecule (ECFP4: a radius of 2 is a diameter of 4), None where RDKit
    cannot parse it, or where it is too long to try."""
    generator = GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    return [molecule and generator.GetFingerprint(molecule) for molecule in map(_molecule, smiles)]


def similarity(first: str, second: str) -> float:
    """The Tanimoto similarity of the fingerprints of two molecules; 0 if one is no molecule."""
    one, other = fingerprints([first, second])
    if one is None or other is None:
        return 0.0
    return DataStructs.TanimotoSimilarity(one, other)
