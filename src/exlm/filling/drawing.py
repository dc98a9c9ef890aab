"""Drawings of filled molecules in which what was filled in is coloured."""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.colors import to_rgba
from rdkit import Chem
from rdkit.Chem.Draw import rdMolDraw2D

from exlm.data.tokenization import SMILES_PATTERN

TINTS = ("#BF9000", "#C55A11")  # of masks or sites, in turn, as in the paper
COLUMNS = 3  # molecules in a row of a picture
WIDTH, HEIGHT = 360, 260  # of a molecule, in pixels
Colours = dict[int, tuple[float, float, float, float]]  # by the number of an atom


def coloured(
    smiles: str, segments: Sequence[tuple[str, int | None]]
) -> tuple[Chem.Mol, Colours] | None:
    """The molecule, and the colours of the atoms that were filled in: those of segments with a
    number, of their mask or site. None if it is no molecule or empty."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    number_of_character = [number for text, number in segments for _ in text]
    # in RDKit's order
    number_of_atom = []
    for match in re.finditer(SMILES_PATTERN, smiles):
        token = match[0]
        if token[0] in "[*" or token.isalpha():
            number_of_atom.append(number_of_character[match.start()])
    # RDKit may have removed hydrogens, and it is not known which
    colours: Colours = {}
    if len(number_of_atom) == molecule.GetNumAtoms():
        for atom, number in enumerate(number_of_atom):
            if number is not None:
                colours[atom] = to_rgba(TINTS[number % 2], 0.5)
    return molecule, colours


def draw_molecule(smiles: str, segments: Sequence[tuple[str, int | None]]) -> str | None:
    """The molecule as SVG, with filled-in atoms in the colours of their masks or sites. None if it
    is no molecule or empty."""
    drawn = coloured(smiles, segments)
    if drawn is None:
        return None
    molecule, colours = drawn
    canvas: Any = rdMolDraw2D.MolDraw2DSVG(WIDTH, 240)
    canvas.drawOptions().clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule, "", list(colours), [], colours)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def draw_grid(molecules: Sequence[tuple[Chem.Mol, Colours]], legends: Sequence[str]) -> bytes:
    """A PNG picture of molecules, COLUMNS in a row, each above its legend."""
    rows = -(-len(molecules) // COLUMNS)
    canvas: Any = rdMolDraw2D.MolDraw2DCairo(COLUMNS * WIDTH, rows * HEIGHT, WIDTH, HEIGHT)
    canvas.drawOptions().legendFontSize = 18
    canvas.DrawMolecules(
        [molecule for molecule, _ in molecules],
        legends=list(legends),
        highlightAtoms=[list(colours) for _, colours in molecules],
        highlightBonds=[[] for _ in molecules],
        highlightAtomColors=[colours for _, colours in molecules],
    )
    canvas.FinishDrawing()
    return canvas.GetDrawingText()
