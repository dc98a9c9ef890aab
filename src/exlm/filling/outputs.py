"""Files of fillings: a writer for each ending. All but JSON lines have a row, an entry or a drawing
for each filling."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rdkit import Chem
from rdkit.Chem import rdDepictor
from transformers import PreTrainedTokenizerFast

from exlm.data.drawing import Segment, coloured, draw_grid, draw_molecule
from exlm.errors import InputError
from exlm.filling.proposals import OF_MOLECULES, segments_of
from exlm.filling.texts import Record
from exlm.storage.files import render

COLUMNS = ["line", "name", "text", "filling", "filled", "probability", "log_probability"]
COLUMNS += ["token_count", "length_probability", "passes"]
LAST_COLUMNS = ["warning", "problem"]
MOST_DRAWINGS = 300  # on a page or in a picture
PAGE = Path(__file__).with_name("fillings.html")


class Writing(NamedTuple):
    """What a writer needs besides the records."""

    path: Path
    tokenizer: PreTrainedTokenizerFast
    molecules: bool


def _jsonl(records: Iterable[Record], writing: Writing) -> None:
    with writing.path.open("w", encoding="utf-8") as stream:
        for record in records:
            print(json.dumps(record, ensure_ascii=False), file=stream)


def _csv(records: Iterable[Record], writing: Writing) -> None:
    of_molecules = ["valid", *OF_MOLECULES] if writing.molecules else []
    columns = [*COLUMNS, *of_molecules, *LAST_COLUMNS]
    with writing.path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerows(_rows(record))


def _sdf(records: Iterable[Record], writing: Writing) -> None:
    with writing.path.open("w", encoding="utf-8") as stream:
        for record in records:
            for row in filter(_is_another_molecule, _rows(record)):
                molecule = Chem.MolFromSmiles(row["filled"])
                rdDepictor.Compute2DCoords(molecule)
                molecule.SetProp("_Name", row["name"] or "")
                for name in [*COLUMNS, "valid", *OF_MOLECULES]:
                    if row.get(name) is not None:
                        molecule.SetProp(name, str(row[name]))
                print(Chem.SDWriter.GetText(molecule).rstrip(), file=stream)


def _rows(record: Record) -> list[Record]:
    """A row for each filling, or one that says why there are none."""
    of_record = {name: record[name] for name in ("line", "name", "text", "passes", *LAST_COLUMNS)}
    rows = []
    for entry in record["fillings"]:
        token_count = sum(map(len, entry["tokens"]))
        of_entry = {"filled": entry["text"], "token_count": token_count, "text": record["text"]}
        rows.append({**of_record, **entry, **of_entry})
    return rows or [of_record]


def _is_another_molecule(entry: Record) -> bool:
    """Whether a filling is a molecule that none before it is."""
    return entry.get("valid", False) and entry["unique"]


def _drawable(
    records: Iterable[Record], tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[Record, Record, list[Segment]]]:
    """The first MOST_DRAWINGS fillings that are molecules and not there before, each with its
    record and its segments. InputError if there are none."""
    count = 0
    for record in records:
        for entry in filter(_is_another_molecule, record["fillings"]):
            if count < MOST_DRAWINGS:
                yield record, entry, segments_of(record, entry, tokenizer)
                count += 1
    if not count:
        raise InputError("no filling is a molecule, so there is nothing to draw; raise --n_best")


def _png(records: Iterable[Record], writing: Writing) -> None:
    molecules = []
    legends = []
    for _, entry, segments in _drawable(records, writing.tokenizer):
        drawn = coloured(entry["text"], segments)
        if drawn is not None:
            molecules.append(drawn)
            legends.append(f"{entry['filling']}   p {entry['probability']:.3g}")
    writing.path.write_bytes(draw_grid(molecules, legends))


def _page(records: Iterable[Record], writing: Writing) -> None:
    drawings = []
    for record, entry, segments in _drawable(records, writing.tokenizer):
        svg = draw_molecule(entry["text"], segments)
        drawings.append({**entry, "line": record["line"], "of": record["text"], "svg": svg})
    writing.path.write_text(render(PAGE, drawings=drawings), encoding="utf-8")


WRITERS: dict[str, Callable[[Iterable[Record], Writing], None]] = {
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".sdf": _sdf,
    ".html": _page,
    ".png": _png,
}
FOR_MOLECULES = (".sdf", ".html", ".png")
