"""Drawings of fillings that are molecules, with the atoms that were filled in marked in the colour of their mask."""

import json
import re
from collections.abc import Sequence
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import rdkit_problem
from exlm.data.tokenization import SMILES_PATTERN
from exlm.filling.figure import MASK_COLOURS
from exlm.tasks.table import are_molecules

SIZE = 360, 240
ATOM = re.compile(r"\[[^\]]+\]|Br?|Cl?|[NOSPFIbcnosp*]")
TOKEN = re.compile(SMILES_PATTERN)


def are_smiles(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> bool:
    """Whether the model speaks SMILES: its tokenizer says so, or else most of its fillings are molecules."""
    pieces = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    return pieces.get("pattern") == {"Regex": SMILES_PATTERN} or are_molecules(texts)


def add_drawings(fillings: Sequence[dict[str, Any]]) -> None:
    """Adds `drawing`, an SVG or None, and `problem`, why it is no molecule or None, to each filling."""
    with rdBase.BlockLogs():
        for entry in fillings:
            entry["problem"] = rdkit_problem(entry["text"])
            entry["drawing"] = None if entry["problem"] else drawing(entry["text"], entry["pieces"])


def drawing(smiles: str, pieces: Sequence[tuple[str, int | None]]) -> str | None:
    """The molecule as SVG, or None if there is no atom. `pieces` are those of the SMILES, with their masks."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    owners = _owners(pieces)
    marked = {} if len(owners) != molecule.GetNumAtoms() else {i: m for i, m in enumerate(owners) if m is not None}
    canvas = rdMolDraw2D.MolDraw2DSVG(*SIZE)
    options: Any = canvas.drawOptions()
    options.clearBackground, options.padding = False, 0.08
    colours = {i: _rgb(MASK_COLOURS[mask % 2]) for i, mask in marked.items()}
    rdMolDraw2D.PrepareAndDrawMolecule(
        canvas, molecule, highlightAtoms=list(marked), highlightAtomColors=colours, highlightBonds=[]
    )
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def _owners(pieces: Sequence[tuple[str, int | None]]) -> list[int | None]:
    """The mask that each atom was filled into, in the order of the SMILES, which is RDKit's."""
    return [mask for text, mask in pieces for token in TOKEN.findall(text) if ATOM.fullmatch(token)]


def _rgb(colour: str) -> tuple[float, ...]:
    """#RRGGBB as RDKit wants it, light enough for a letter on top."""
    return tuple((int(colour[i : i + 2], 16) / 255 + 1) / 2 for i in (1, 3, 5))
