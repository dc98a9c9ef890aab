"""Mutations as tables of proteins write them, and whether they fit their wild types."""

import re
from collections.abc import Iterator

from exlm.data.cell_texts import MISSING_TEXTS, text_to_write
from exlm.errors import InputError

WILD_TYPE = ("WT", "_WT", "WILD TYPE", "WILD-TYPE", "WILDTYPE", "P.=", "=")  # as tables write it
# X, B, Z and J stand for several residues
SCORED = frozenset("ACDEFGHIKLMNOPQRSTUVWY")
# codes of three letters, as in p.Val39Ala
RESIDUES = dict(
    ALA="A", ARG="R", ASN="N", ASP="D", CYS="C", GLN="Q", GLU="E", GLY="G", HIS="H", ILE="I",
    LEU="L", LYS="K", MET="M", PHE="F", PRO="P", SER="S", THR="T", TRP="W", TYR="Y", VAL="V",
)  # fmt: skip
RESIDUE_CODE = f"[A-Z]|{'|'.join(RESIDUES)}"
MUTATION = re.compile(rf"(?:P\.)?\(?({RESIDUE_CODE})(-?\d+)({RESIDUE_CODE}|=)\)?")


class Misfit(InputError):
    """A mutation replaces a residue that the wild type does not have there."""


def clean_sequence(cell: object) -> str:
    """A cell as capital letters, without the `*` that may end a protein; "" where it is missing."""
    text = (text_to_write(cell) or "").strip()
    return "" if text in MISSING_TEXTS else text.upper().removesuffix("*")


def new_residues(wild: str, cell: object, first_position: int = 1) -> dict[int, str]:
    """The new residue at every mutated place of the wild type (from 0, ascending), by a cell such
    as `V39A:D40C`, a whole mutant or a word for the wild type.

    Raises Misfit if a mutation does not fit, and InputError if the cell is something else, or names
    no substitution of one residue."""
    mutant = clean_sequence(cell)
    if not wild or not mutant:
        raise InputError("no mutations: the cell is empty" if wild else "no wild type")
    if mutant in WILD_TYPE:
        return {}
    new_residue_at: dict[int, str] = {}
    if len(mutant) == len(wild) and re.fullmatch("[A-Z]+", mutant):
        new_residue_at = dict(enumerate(mutant))
    else:
        for old, position, new in _parse_mutations(str(cell).strip(), len(wild)):
            place = position - first_position
            residue = wild[place] if 0 <= place < len(wild) else "no residue"
            if place in new_residue_at:
                residue = "another mutation"
            if residue != old:
                raise Misfit(
                    f"{old}{position}{new}: at position {position} there is {residue}, not {old}"
                )
            new_residue_at[place] = new
    # A residue that stays is no mutation, and is not masked.
    changes = {place: new for place, new in sorted(new_residue_at.items()) if new != wild[place]}
    for place, new in changes.items():
        if not SCORED.issuperset((wild[place], new)):
            raise InputError(
                f"{wild[place]}{place + first_position}{new}: a gap has no score, nor have X, B, Z "
                "and J, which stand for several residues; name two residues"
            )
    return changes


def _parse_mutations(text: str, residue_count: int) -> Iterator[tuple[str, int, str]]:
    """Yields a residue of the wild type, its position as the table counts, and the new residue."""
    # brackets around all of them, p.[Val39Ala;Asp40Cys], say that they are of one allele
    names = re.sub(r"^P\.\[(.*)\]$", r"\1", text.upper())
    for name in re.split(r"[:,;/+_|\s]+", names):
        match = MUTATION.fullmatch(name)
        if not match:
            raise InputError(
                f"{text[:40]!r} is neither mutations of one allele, such as V39A:D40C, nor a "
                f"mutant with the {residue_count} residues of the wild type"
            )
        old, position, new = match.groups()
        old = RESIDUES.get(old, old)
        yield old, int(position), old if new == "=" else RESIDUES.get(new, new)
