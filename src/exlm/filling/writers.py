"""Writes filled texts: a writer for each ending of a file."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from rdkit import Chem
from rdkit.Chem import rdDepictor

from exlm.data.drawing import colour_atoms, draw_grid, draw_molecule
from exlm.data.writing import write_frame
from exlm.errors import InputError
from exlm.filling.filled_text import FilledText, Filling, Molecule
from exlm.storage.templates import render

MOST_DRAWINGS = 300  # on a page or in a picture
PAGE = Path(__file__).with_name("fillings.html")

# the columns of a table, and the columns that a text without fillings has, too
COLUMNS = ["line", "name", "text", "filling", "filled", "probability", "log_probability"]
COLUMNS += ["token_count", "length_probability", "passes", "exact"]
OF_MOLECULES = [field.name for field in fields(Molecule)]
LAST_COLUMNS = ["warning", "problem"]
OF_TEXT = ["line", "name", "text", "passes", "exact", *LAST_COLUMNS]


def _jsonl(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    rows = [filled.to_json() for filled in filled_texts]
    write_frame(pd.DataFrame(rows, dtype=object), path)


def _table(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    columns = [*COLUMNS, *(OF_MOLECULES if molecules else []), *LAST_COLUMNS]
    rows: list[dict[str, Any]] = []
    for filled in filled_texts:
        rows += [_row(filled, filling) for filling in filled.fillings] or [_row(filled)]
    # Objects, so that whole numbers stay whole beside cells without one.
    write_frame(pd.DataFrame(rows, columns=columns, dtype=object), path)


def _sdf(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for filled, filling in _different_molecules(filled_texts):
            molecule = Chem.MolFromSmiles(filling.text)
            rdDepictor.Compute2DCoords(molecule)
            molecule.SetProp("_Name", filled.name or "")
            # RDKit's older code leaves out cis and trans in rings
            if Chem.FindMolChiralCenters(molecule, useLegacyImplementation=False):
                # The centres of SMILES are absolute; of an SDF they are so with this flag alone.
                molecule.SetIntProp("_MolFileChiralFlag", 1)
            row = _row(filled, filling)
            for name in [*COLUMNS, *OF_MOLECULES]:
                if row.get(name) is not None:
                    molecule.SetProp(name, str(row[name]))
            print(Chem.SDWriter.GetText(molecule).rstrip(), file=stream)


def _row(filled: FilledText, filling: Filling | None = None) -> dict[str, Any]:
    """The row of a filling, or of a text without fillings."""
    row: dict[str, Any] = {}
    if filling is not None:
        row = filling.to_json()
        row["filled"] = row.pop("text")  # the column `text` is for what was filled
        row["token_count"] = sum(map(len, filling.tokens))
    return row | {name: getattr(filled, name) for name in OF_TEXT}


def _different_molecules(filled_texts: list[FilledText]) -> Iterator[tuple[FilledText, Filling]]:
    """The first filling of every molecule, each with its text."""
    for filled in filled_texts:
        for filling in filled.fillings:
            if filling.molecule is not None and filling.molecule.unique:
                yield filled, filling


def _molecules_to_draw(filled_texts: list[FilledText]) -> list[tuple[FilledText, Filling]]:
    """The first MOST_DRAWINGS different molecules. InputError if there are none."""
    molecules = list(islice(_different_molecules(filled_texts), MOST_DRAWINGS))
    if not molecules:
        raise InputError("no filling is a molecule, so there is nothing to draw; raise --n_best")
    return molecules


def _png(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    pictures = []
    legends = []
    for _, filling in _molecules_to_draw(filled_texts):
        picture = colour_atoms(filling.text, filling.segments_of_sites)
        if picture is not None:
            pictures.append(picture)
            legends.append(f"{filling.inserted}   p {filling.probability:.3g}")
    path.write_bytes(draw_grid(pictures, legends))


def _page(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    drawings = []
    for filled, filling in _molecules_to_draw(filled_texts):
        svg = draw_molecule(filling.text, filling.segments_of_sites)
        drawings.append({"line": filled.line, "text": filled.text, "filling": filling, "svg": svg})
    path.write_text(render(PAGE, drawings=drawings), encoding="utf-8")


WRITERS: dict[str, Callable[[list[FilledText], Path, bool], None]] = {
    ".jsonl": _jsonl,
    ".csv": _table,
    ".parquet": _table,
    ".xlsx": _table,
    ".sdf": _sdf,
    ".html": _page,
    ".png": _png,
}
FOR_MOLECULES = (".sdf", ".html", ".png")
