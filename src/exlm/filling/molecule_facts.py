"""What is known of fillings that should be molecules."""

from collections.abc import Set
from dataclasses import replace

from rdkit import Chem, rdBase
from rdkit.Chem import QED

from exlm.data.chemistry import molecule_problem, similarity, standardize
from exlm.filling.filled_text import FilledText, Molecule
from exlm.filling.molecule_sites import SITES
from exlm.filling.templates import Template

MOST_MATCHES = 1000  # ways to find the core of a template in a molecule that are tried


def judge(filled: FilledText, known_molecules: Set[str] | None) -> FilledText:
    """The text, whose fillings say what is known of their molecules.

    Args:
        known_molecules: the canonical SMILES of molecules that are not new, whatever their charges
            and counterions (`parent`); None: it is not known which are new."""
    from rdkit.Contrib.SA_Score import sascorer  # reads a table of fragments first

    original = filled.template.original if filled.template else None
    earlier = set[str]()
    fillings = []
    for filling in filled.fillings:
        molecule = _read_valid_molecule(filling.text, filled.template)
        facts = Molecule(valid=False)
        if molecule is not None:
            smiles = Chem.MolToSmiles(molecule)
            new = None
            if known_molecules is not None:
                new = known_molecules.isdisjoint({smiles, standardize(smiles, "parent")})
            facts = Molecule(
                valid=True,
                smiles=smiles,
                unique=smiles not in earlier,
                new=new,
                qed=round(QED.qed(molecule), 3),
                sa_score=round(sascorer.calculateScore(molecule), 2),
                similarity=None if original is None else round(similarity(smiles, original), 3),
            )
            earlier.add(smiles)
        fillings.append(replace(filling, molecule=facts))
    return replace(filled, fillings=fillings)


def _read_valid_molecule(smiles: str, template: Template | None) -> Chem.Mol | None:
    """The molecule; None if RDKit cannot read it or it has radicals, if it is not in as many pieces
    as the template, or if it is not the template's core with something new at every site alone."""
    if molecule_problem(smiles) is not None:
        return None
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if any(atom.GetNumRadicalElectrons() for atom in molecule.GetAtoms()):
        return None
    if template is None or template.core is None:
        return molecule
    pieces = 1 + template.masked_texts[0].count(".")
    is_whole = len(Chem.GetMolFrags(molecule)) == pieces
    return molecule if is_whole and _hangs_on_sites(molecule, template.core) else None


def _hangs_on_sites(molecule: Chem.Mol, core: Chem.Mol) -> bool:
    """Whether a molecule is the `core` of `remove_points` with new bonds at each of its sites, and
    nowhere else."""
    # A match has, for each atom of the core, the number of an atom of the molecule.
    for match in molecule.GetSubstructMatches(core, uniquify=False, maxMatches=MOST_MATCHES):
        atoms = zip(core.GetAtoms(), map(molecule.GetAtomWithIdx, match), strict=True)
        if all(_has_new_bonds(atom, filled_atom) for atom, filled_atom in atoms):
            return True
    return False


def _has_new_bonds(atom: Chem.Atom, filled_atom: Chem.Atom) -> bool:
    """Whether an atom that stays has its bonds and, for every site beside it, a new one or more."""
    new_bonds = filled_atom.GetDegree() - atom.GetDegree()
    sites = atom.GetIntProp(SITES)
    return new_bonds >= sites if sites else new_bonds == 0
