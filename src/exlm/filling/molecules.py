"""What is known of fillings that should be molecules."""

from collections.abc import Set
from dataclasses import replace

from rdkit import Chem, rdBase
from rdkit.Chem import QED

from exlm.data.chemistry import molecule_problem, similarity
from exlm.filling.attachment_points import hangs_on_sites
from exlm.filling.results import Filling, Molecule, Template


def judged(
    fillings: list[Filling], template: Template | None, known_molecules: Set[str] | None
) -> list[Filling]:
    """The fillings of a text with what is known of their molecules.

    Args:
        template: what the texts were made from, if they were. A filling that breaks what stays, or
            is in more pieces, is not valid.
        known_molecules: the canonical SMILES of those that are not new; None: nothing is known of
            it."""
    from rdkit.Contrib.SA_Score import sascorer  # reads a table of fragments first

    original = template.original if template else None
    earlier = set[str]()
    judged_fillings = []
    for filling in fillings:
        molecule = _molecule(filling.text, template)
        facts = Molecule(valid=False)
        if molecule is not None:
            smiles = Chem.MolToSmiles(molecule)
            facts = Molecule(
                valid=True,
                smiles=smiles,
                unique=smiles not in earlier,
                new=None if known_molecules is None else smiles not in known_molecules,
                qed=round(QED.qed(molecule), 3),
                sa_score=round(sascorer.calculateScore(molecule), 2),
                similarity=None if original is None else round(similarity(smiles, original), 3),
            )
            earlier.add(smiles)
        judged_fillings.append(replace(filling, molecule=facts))
    return judged_fillings


def _molecule(smiles: str, template: Template | None) -> Chem.Mol | None:
    """The molecule, if it is one without radicals that is what stays of a template with something
    at its sites alone, in as many pieces."""
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
    return molecule if is_whole and hangs_on_sites(molecule, template.core) else None
