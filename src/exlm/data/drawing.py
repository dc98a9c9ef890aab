"""Drawings of molecules with coloured atoms, such as those that were filled in."""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.colors import to_rgba
from rdkit import Chem

from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError, first_line

TINTS = ("#BF9000", "#C55A11")  # colours of masks or sites, in turn, as in the paper
COLUMNS = 3  # molecules in a row of a picture
WIDTH, HEIGHT = 360, 260  # pixels of a molecule and its legend
HEIGHT_WITHOUT_LEGEND = 240
# Characters of a filled text, and the mask or site that it fills (None: outside of them)
Segment = tuple[str, int | None]
Colours = dict[int, tuple[float, float, float, float]]  # the colour of each atom, by its number


def drawing_module() -> Any:
    """RDKit's rdMolDraw2D, which needs libraries of X11 that small containers do not have. So it is
    imported only where something is drawn; InputError if it cannot be."""
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        raise InputError(
            f"RDKit cannot draw molecules on this system ({first_line(error)}); install the "
            "packages libxrender1 and libxext6 (as Debian names them), or choose another output"
        ) from error
    return rdMolDraw2D


def colour_atoms(smiles: str, segments: Sequence[Segment]) -> tuple[Chem.Mol, Colours] | None:
    """The molecule, and the colours of the atoms that were filled in: those of segments with a
    number, of their mask or site. None if it is no molecule or empty."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    number_of_character = [number for text, number in segments for _ in text]
    colours: Colours = {}
    for atom, start in enumerate(atom_starts(smiles, molecule)):
        number = number_of_character[start]
        if number is not None:
            colours[atom] = to_rgba(TINTS[number % 2], 0.5)
    return molecule, colours


def atom_starts(smiles: str, molecule: Chem.Mol) -> list[int]:
    """The first character of every atom, in RDKit's order; [] if RDKit removed hydrogens, because
    it is not known which."""
    starts = []
    for match in re.finditer(SMILES_PATTERN, smiles):
        token = match[0]
        if token[0] in "[*" or token.isalpha():
            starts.append(match.start())
    return starts if len(starts) == molecule.GetNumAtoms() else []


def draw_molecule(smiles: str, segments: Sequence[Segment]) -> str | None:
    """The molecule as SVG, with filled-in atoms in the colours of their masks or sites. None if it
    is no molecule or empty."""
    drawn = colour_atoms(smiles, segments)
    return draw(*drawn) if drawn else None


def draw(molecule: Chem.Mol, colours: Colours) -> str:
    """The molecule as SVG, with coloured atoms. InputError as `drawing_module` raises it."""
    rdMolDraw2D = drawing_module()
    canvas = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT_WITHOUT_LEGEND)
    canvas.drawOptions().clearBackground = False
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule, "", list(colours), [], colours)
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def draw_grid(molecules: Sequence[tuple[Chem.Mol, Colours]], legends: Sequence[str]) -> bytes:
    """A PNG picture of molecules, COLUMNS in a row, each above its legend. InputError as
    `drawing_module` raises it."""
    rows = -(-len(molecules) // COLUMNS)
    canvas = drawing_module().MolDraw2DCairo(COLUMNS * WIDTH, rows * HEIGHT, WIDTH, HEIGHT)
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
