"""What `exlm fill` says of texts: a record for each text, with one for each of its fillings, and a
writer for each ending of a file. The fields have the names of the output, which the docstring of
`fill` explains."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from rdkit import Chem
from rdkit.Chem import rdDepictor

from exlm.data.drawing import Segment, coloured, draw_grid, draw_molecule
from exlm.data.frames import write_frame
from exlm.errors import InputError
from exlm.filling.sites import Template
from exlm.storage.files import render

MOST_DRAWINGS = 300  # on a page or in a picture
PAGE = Path(__file__).with_name("fillings.html")


@dataclass(frozen=True)
class Molecule:
    """What is known of a filling that should be a molecule; all but `valid` is None if it is
    none."""

    valid: bool
    smiles: str | None = None
    unique: bool | None = None
    new: bool | None = None
    qed: float | None = None
    sa_score: float | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class Filling:
    """A filling of a text."""

    text: str  # the whole text
    tokens: list[list[str]]  # those that fill each mask
    log_probability: float
    path: list[int] | None = None  # the state of each token, in one pass
    path_probability: float | None = None  # only `viterbi` gives it
    masked: str | None = None  # of sites: the text with masks that was filled
    site_of_mask: list[int] | None = None  # of sites: the site of each mask, from 0
    # Of sites all choices of lengths are equally probable; with all paths the model says how
    # probable so many tokens are.
    length_probability: float | None = None
    molecule: Molecule | None = None
    # the filled text in parts, in order, each with the mask that it fills
    segments: list[Segment] = field(default_factory=list)

    @property
    def probability(self) -> float:
        """Among all fillings with as many tokens."""
        return math.exp(self.log_probability)

    @property
    def segments_of_sites(self) -> list[Segment]:
        """The segments, each with the site that it fills."""
        sites = self._sites_of_masks()
        return [(text, None if mask is None else sites[mask]) for text, mask in self.segments]

    def _sites_of_masks(self) -> list[int]:
        """The site of each mask; without sites, masks side by side are one."""
        if self.site_of_mask is not None:
            return self.site_of_mask
        sites = []
        site = 0
        for number, (text, mask) in enumerate(self.segments):
            if mask is not None:
                sites.append(site)
            elif number > 0 and text.strip():
                site += 1
        return sites

    @property
    def filling(self) -> str:
        """What fills each site, with a space between two of them."""
        sites: dict[int, str] = {}
        for text, site in self.segments_of_sites:
            if site is not None:
                sites[site] = sites.get(site, "") + text
        return " ".join(text.strip() for text in sites.values())

    def to_json(self) -> dict[str, Any]:
        """The filling as an entry of a line of JSON."""
        names = ["filling", "text", "tokens", "probability", "log_probability"]
        for name in ("path_probability", "masked", "length_probability"):
            if getattr(self, name) is not None:
                names.append(name)
        entry = {name: getattr(self, name) for name in names}
        return entry if self.molecule is None else entry | vars(self.molecule)


@dataclass(frozen=True)
class FilledText:
    """A text and its fillings, or the problem that it has."""

    line: int
    text: str
    fillings: list[Filling] = field(default_factory=list)
    exact: bool | None = None
    kept: float | None = None
    passes: int | None = None
    warning: str | None = None
    problem: str | None = None
    states: list[list[dict[str, Any]]] | None = None  # of each mask, if they are asked for
    left_out: int = 0
    name: str | None = None
    template: Template | None = None  # what stays and its sites, if it has sites

    def to_json(self) -> dict[str, Any]:
        """The text and its fillings as a line of JSON."""
        record = {**vars(self), "fillings": [filling.to_json() for filling in self.fillings]}
        del record["template"]
        if self.states is None:
            del record["states"]
        return record


# the columns of a table, and those that say something of a text without fillings
COLUMNS = ["line", "name", "text", "filling", "filled", "probability", "log_probability"]
COLUMNS += ["token_count", "length_probability", "passes"]
OF_MOLECULES = [field.name for field in fields(Molecule)]
LAST_COLUMNS = ["warning", "problem"]
OF_TEXT = ["line", "name", "text", "passes", *LAST_COLUMNS]


def _jsonl(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for filled in filled_texts:
            print(json.dumps(filled.to_json(), ensure_ascii=False), file=stream)


def _table(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    columns = [*COLUMNS, *(OF_MOLECULES if molecules else []), *LAST_COLUMNS]
    rows = [row for filled in filled_texts for row in _rows(filled)]
    # as objects, so that whole numbers stay whole beside cells without one
    write_frame(pd.DataFrame(rows, columns=columns, dtype=object), path)


def _sdf(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for filled, filling in _different_molecules(filled_texts):
            molecule = Chem.MolFromSmiles(filling.text)
            rdDepictor.Compute2DCoords(molecule)
            molecule.SetProp("_Name", filled.name or "")
            # RDKit's older code leaves out cis and trans in rings
            if Chem.FindMolChiralCenters(molecule, useLegacyImplementation=False):
                # The centres of SMILES are absolute; without the flag, those of an SDF are not.
                molecule.SetIntProp("_MolFileChiralFlag", 1)
            row = _row(filled, filling)
            for name in [*COLUMNS, *OF_MOLECULES]:
                if row.get(name) is not None:
                    molecule.SetProp(name, str(row[name]))
            print(Chem.SDWriter.GetText(molecule).rstrip(), file=stream)


def _rows(filled: FilledText) -> list[dict[str, Any]]:
    """A row for each filling of a text, or one that says why there is none."""
    return [_row(filled, filling) for filling in filled.fillings] or [_of_text(filled)]


def _row(filled: FilledText, filling: Filling) -> dict[str, Any]:
    row = filling.to_json()
    row["filled"] = row.pop("text")  # the column `text` is for what was filled
    row["token_count"] = sum(map(len, filling.tokens))
    return row | _of_text(filled)


def _of_text(filled: FilledText) -> dict[str, Any]:
    return {name: getattr(filled, name) for name in OF_TEXT}


def _different_molecules(filled_texts: list[FilledText]) -> Iterator[tuple[FilledText, Filling]]:
    """The first filling of every molecule, each with its text."""
    for filled in filled_texts:
        for filling in filled.fillings:
            if filling.molecule is not None and filling.molecule.unique:
                yield filled, filling


def _drawable(filled_texts: list[FilledText]) -> list[tuple[FilledText, Filling]]:
    """The first MOST_DRAWINGS different molecules. InputError if there are none."""
    drawable = list(islice(_different_molecules(filled_texts), MOST_DRAWINGS))
    if not drawable:
        raise InputError("no filling is a molecule, so there is nothing to draw; raise --n_best")
    return drawable


def _png(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    pictures = []
    legends = []
    for _, filling in _drawable(filled_texts):
        picture = coloured(filling.text, filling.segments_of_sites)
        if picture is not None:
            pictures.append(picture)
            legends.append(f"{filling.filling}   p {filling.probability:.3g}")
    path.write_bytes(draw_grid(pictures, legends))


def _page(filled_texts: list[FilledText], path: Path, molecules: bool) -> None:
    drawings = []
    for filled, filling in _drawable(filled_texts):
        svg = draw_molecule(filling.text, filling.segments_of_sites)
        drawings.append({"line": filled.line, "of": filled.text, "filling": filling, "svg": svg})
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
