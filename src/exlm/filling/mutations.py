"""Mutations as tables of proteins write them, and whether they fit their wild types."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from exlm.data.columns import MISSING_TEXTS
from exlm.data.frames import as_text
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


class Mutation(NamedTuple):
    """A residue of the wild type, and the one that replaces it."""

    old: str
    position: int  # as the table counts them, where the first residue has `first_position`
    new: str

    def __str__(self) -> str:
        return f"{self.old}{self.position}{self.new}"


def clean_sequence(cell: object) -> str:
    """A cell as capital letters, without the `*` that may end a protein; "" where it is missing."""
    text = (as_text(cell) or "").strip()
    return "" if text in MISSING_TEXTS else text.upper().removesuffix("*")


def parse_mutations(wild: str, cell: object, first_position: int = 1) -> list[Mutation]:
    """The mutations of a cell such as `V39A:D40C`, of a whole mutant, or of the wild type, which
    has none. InputError if the cell is none of these."""
    mutant = clean_sequence(cell)
    if not wild or not mutant:
        raise InputError("no mutations: the cell is empty" if wild else "no wild type")
    if mutant in WILD_TYPE:
        return []
    if len(mutant) == len(wild) and re.fullmatch("[A-Z]+", mutant):
        residues = zip(wild, mutant, strict=True)
        return [
            Mutation(old, position, new)
            for position, (old, new) in enumerate(residues, first_position)
            if old != new
        ]
    mutations = []
    text = str(cell).strip()
    # brackets around all of them, p.[Val39Ala;Asp40Cys], say that they are of one allele
    names = re.sub(r"^P\.\[(.*)\]$", r"\1", text.upper())
    for name in re.split(r"[:,;/+_|\s]+", names):
        match = MUTATION.fullmatch(name)
        if not match:
            raise InputError(
                f"{text[:40]!r} is neither mutations of one allele, such as V39A:D40C, nor a "
                f"mutant with the {len(wild)} residues of the wild type"
            )
        old, position, new = match.groups()
        old = RESIDUES.get(old, old)
        new = old if new == "=" else RESIDUES.get(new, new)
        mutations.append(Mutation(old, int(position), new))
    return mutations


def new_residues(wild: str, mutations: list[Mutation], first_position: int = 1) -> dict[int, str]:
    """The new residue at every mutated place of the wild type (from 0, ascending). InputError if a
    mutation does not fit, or is no substitution of one residue."""
    new_residue_at: dict[int, str] = {}
    for mutation in mutations:
        place = mutation.position - first_position
        residue = wild[place] if 0 <= place < len(wild) else "no residue"
        if place in new_residue_at:
            residue = "another mutation"
        if residue != mutation.old:
            raise InputError(
                f"{mutation}: at position {mutation.position} there is {residue}, "
                f"not {mutation.old}"
            )
        new_residue_at[place] = mutation.new
    # A residue that stays is no mutation, and is not masked.
    changes = {place: new for place, new in sorted(new_residue_at.items()) if new != wild[place]}
    for place, new in changes.items():
        if not SCORED.issuperset((wild[place], new)):
            raise InputError(
                f"{wild[place]}{place + first_position}{new}: a gap has no score, nor have X, B, Z "
                "and J, which stand for several residues; name two residues"
            )
    return changes


def how_to_fit(rows: Sequence[tuple[str, list[Mutation]]], first_position: int) -> str:
    """Advice where most rows do not fit, from the wild type and the mutations of every row."""
    residues = {(wild, old, position) for wild, mutations in rows for old, position, _ in mutations}
    # for each of them, with which numbers of the first residue the wild type has it
    numbers = [
        {position - place for place, residue in enumerate(wild) if residue == old}
        for wild, old, position in residues
    ]
    other_first_positions = set.intersection(*numbers) - {first_position}
    if len(other_first_positions) == 1:
        [number] = other_first_positions
        return (
            f"the numbering seems to be shifted by {abs(number - first_position)}: all rows fit "
            f"with first_position {number}"
        )
    return (
        "the numbering may be shifted (set first_position), or these are no wild types (set "
        "wild_type or text_column)"
    )
