"""Sites: pieces of a molecule or a protein of which only the number of tokens is said. A *template*
is what stays and where the sites are; it has a text with masks for each choice of lengths.

RDKit writes molecules, so that masks stand where the site is. In its SMILES a site is one
attachment point `[*:1]`, or two that are bonded to each other: the ends of a linker."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from math import prod
from typing import Any

from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError
from exlm.filling.options import parse_lengths

MASK = "[MASK]"
MOST_CHOICES = 1000  # of lengths, over all sites of a text
# one site in a SMILES: an attachment point, or both ends of a linker
SITE = re.compile(r"\[\*:(\d+)\](?:\[\*:\1\])?")
POINT = Chem.MolFromSmarts("[#0]")  # an attachment point
RING_DIGIT = re.compile(r"[=#/\\-]?[\d%]")
# how many tokens each site may have, by its number; None: all sites that are not named
Lengths = dict[int | None, range]


@dataclass(frozen=True)
class Template:
    """What stays of a text that has sites."""

    masked_texts: list[str]  # the text with masks, for each choice of lengths
    sites_of_masks: list[list[int]]  # in each of them, the site of every mask, from 0
    original: str | None = None  # the molecule of which a piece was freed
    core: Chem.Mol | None = None  # what a filled molecule has to contain


def template_maker(
    site: Sequence[str] | None,
    keep: str | None,
    replace: str | None,
    letters: bool,
    drawn: bool = False,
) -> Callable[[str], Template]:
    """What makes a template of a text, by the options of `exlm fill`. InputError if they do not go
    together or name no numbers; so does the result for texts that they do not fit.

    Args:
        letters: whether the texts are proteins, and not molecules.
        drawn: whether fillings are drawn, and not searched and ranked."""
    if keep is not None and replace is not None:
        raise InputError("give keep or replace, not both: each says what stays and what is free")
    if not letters:
        lengths = _parse_sites(site or [])
        return partial(molecule_template, lengths=lengths, keep=keep, replace=replace, drawn=drawn)
    if keep is not None or replace is not None:
        raise InputError(
            "keep and replace are SMARTS, for models of molecules; "
            "give the residues that are free, as --site 30-37"
        )
    places = [parse_lengths(entry, "site") for entry in site or []]
    places.sort(key=lambda residues: residues[0])
    return partial(protein_template, places=places)


def protein_template(sequence: str, places: Sequence[range]) -> Template:
    """A protein whose residues at `places`, in order, are free: from 1, both ends included.
    InputError for places that it does not have."""
    masked = ""
    site_of_mask: list[int] = []
    end = 0
    for site, residues in enumerate(places):
        first, last = residues[0], residues[-1]
        if last > len(sequence):
            raise InputError(
                f"site {first}-{last} is not in the sequence, which has {len(sequence)} residues"
            )
        if first <= end:
            raise InputError(f"two sites have residue {first}; give it to one of them")
        masked += sequence[end : first - 1] + MASK * len(residues)
        site_of_mask += [site] * len(residues)
        end = last
    return Template([masked + sequence[end:]], [site_of_mask])


def _parse_sites(entries: Sequence[str]) -> Lengths:
    """The option `--site` for molecules: `3-8` is for all sites, `1=3-8` for the site `[*:1]`."""
    lengths: Lengths = {}
    for entry in entries:
        name, _, numbers = entry.rpartition("=")
        if name and not re.fullmatch(r"[1-9]\d{0,2}", name):
            raise InputError(
                f"site is {entry}; the number of an attachment point stands before the =, "
                "as in 1=3-8 for [*:1]"
            )
        key = int(name) if name else None
        if key in lengths:
            raise InputError(f"site has {entry} for what it has before; leave out one of both")
        lengths[key] = parse_lengths(numbers, "site")
    return lengths


def molecule_template(
    smiles: str, lengths: Lengths, keep: str | None, replace: str | None, drawn: bool
) -> Template:
    """A molecule with sites: what hangs on the atoms that the SMARTS `keep` matches, the atoms that
    `replace` matches, or else its attachment points. Those of `keep` and `replace` have as many
    tokens as now, unless `lengths` says otherwise."""
    problem = molecule_problem(smiles)
    if problem:
        raise InputError(problem)
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    if keep is not None:
        groups = _groups_beside(molecule, keep)
    elif replace is not None:
        groups = [_match(molecule, replace, "replace")]
    else:
        return _template(_joined(molecule), lengths, drawn)
    freed, lengths_now = _freed(molecule, groups)
    if None not in lengths:
        lengths = lengths_now | lengths
    return _template(freed, lengths, drawn, smiles)


def _template(
    molecule: Chem.Mol, lengths: Lengths, drawn: bool, original: str | None = None
) -> Template:
    """The template of a molecule whose attachment points have the numbers of their sites."""
    # texts, with the number of a site between two of them
    pieces = SITE.split(_write(molecule, drawn))
    texts = pieces[::2]
    numbers = list(map(int, pieces[1::2]))
    lengths_of_sites = _lengths_of_sites(numbers, lengths)
    masked_texts = []
    sites_of_masks = []
    for choice in product(*lengths_of_sites):
        masked = texts[0]
        site_of_mask: list[int] = []
        for site, length in enumerate(choice):
            masked += MASK * length + texts[site + 1]
            site_of_mask += [site] * length
        masked_texts.append(masked)
        sites_of_masks.append(site_of_mask)
    core = Chem.DeleteSubstructs(molecule, POINT)
    return Template(masked_texts, sites_of_masks, original, core)


def _lengths_of_sites(numbers: Sequence[int], lengths: Lengths) -> list[range]:
    """How many tokens each of the sites with these numbers may have. InputError if `lengths` has
    other sites or not all, or if there are too many choices."""
    for number in lengths:
        if number is not None and number not in numbers:
            there_are = " and ".join(map(str, sorted(numbers)))
            raise InputError(f"there is no site {number}, only {there_are}")
    lengths_of_sites = []
    for number in numbers:
        if number not in lengths and None not in lengths:
            raise InputError(
                f"how many tokens site {number} may have is not said; add --site {number}=3-8"
            )
        lengths_of_sites.append(lengths[number if number in lengths else None])
    choices = prod(map(len, lengths_of_sites))
    if choices > MOST_CHOICES:
        raise InputError(
            f"the sites have {choices:,} choices of lengths together; "
            f"give shorter ranges, for at most {MOST_CHOICES:,}"
        )
    return lengths_of_sites


def _joined(fragments: Chem.Mol) -> Chem.Mol:
    """A molecule whose attachment points (`[*:1]`, `[*]`, `*`, or RDKit's `[16*]`) all have a
    number, and in which the two ends of a linker are bonded: points with the same number, or one in
    each of two fragments."""
    molecule = Chem.RWMol(fragments)
    points = [atom for atom in molecule.GetAtoms() if atom.GetAtomicNum() == 0]
    if not points:
        raise InputError("no attachment point: write [*:1] where the site is")
    numbers = {atom.GetAtomMapNum() for atom in points}
    unused_numbers = (number for number in count(1) if number not in numbers)
    for atom in points:
        # RDKit's fragments say by the isotope which bond was cut.
        atom.SetIsotope(0)
        atom.SetFormalCharge(0)
        is_beside_point = any(not other.GetAtomicNum() for other in atom.GetNeighbors())
        if atom.GetDegree() not in (1, 2) or is_beside_point:
            raise InputError(
                "an attachment point must have one or two bonds, and none to another point; "
                "of two side by side, write one, with more tokens"
            )
        if atom.GetAtomMapNum() == 0:
            atom.SetAtomMapNum(next(unused_numbers))
    if len(points) == 2 and _fragment_count(molecule, points) == 2:
        points[1].SetAtomMapNum(points[0].GetAtomMapNum())
    for number in {atom.GetAtomMapNum() for atom in points}:
        ends = [atom.GetIdx() for atom in points if atom.GetAtomMapNum() == number]
        if len(ends) > 2:
            raise InputError(f"{len(ends)} attachment points have the number {number}; two can")
        if len(ends) == 2:
            _bond(molecule, *ends)
    if _fragment_count(molecule, points) > 1:
        raise InputError(
            "the fragments are not joined; both ends of a linker have the same number, "
            "as in C[*:1].N[*:1]"
        )
    return molecule


def _fragment_count(molecule: Chem.Mol, atoms: list[Any]) -> int:
    """How many fragments have one of these atoms."""
    numbers = {atom.GetIdx() for atom in atoms}
    return sum(not numbers.isdisjoint(fragment) for fragment in Chem.GetMolFrags(molecule))


def _match(molecule: Chem.Mol, smarts: str, option: str) -> set[int]:
    """The atoms that a SMARTS matches; it must match exactly once."""
    with rdBase.BlockLogs():
        query = Chem.MolFromSmarts(smarts)
    if query is None or not query.GetNumAtoms():
        raise InputError(f"{option} is {smarts}, which is no SMARTS; correct it")
    matches = molecule.GetSubstructMatches(query)
    if len(matches) != 1:
        times = f"matches {len(matches)} times" if matches else "does not match"
        raise InputError(f"{option} is {smarts}, which {times}; give one that matches once")
    return set(matches[0])


def _groups_beside(molecule: Chem.Mol, smarts: str) -> list[set[int]]:
    """The groups of atoms that hang on those that a SMARTS matches."""
    kept = _match(molecule, smarts, "keep")
    cut = [bond for bond in molecule.GetBonds() if _crosses(bond, kept)]
    if not cut:
        raise InputError(f"keep is {smarts}, which is the whole molecule, so nothing is free")
    numbers = [bond.GetIdx() for bond in cut]
    pieces = Chem.GetMolFrags(Chem.FragmentOnBonds(molecule, numbers, addDummies=False))
    beside = set[int]().union(*map(_atoms_of, cut)) - kept
    return [set(piece) for piece in pieces if not beside.isdisjoint(piece)]


def _freed(original: Chem.Mol, groups: list[set[int]]) -> tuple[Chem.Mol, Lengths]:
    """The molecule in which each group of atoms is a site, and how many tokens each has now. Atoms
    that stay keep their bonds, hence their chirality: the groups' atoms beside them become
    attachment points."""
    molecule = Chem.RWMol(original)
    lengths: Lengths = {}
    removed = set[int]()
    for number, group in enumerate(groups, 1):
        bonds = [bond for bond in original.GetBonds() if _crosses(bond, group)]
        if len(bonds) not in (1, 2):
            text = Chem.MolFragmentToSmiles(original, sorted(group))
            raise InputError(
                f"the group {text} is bonded to what stays at {len(bonds)} places; "
                "a site can have one or two"
            )
        tokens = _token_count(original, group, bonds)
        lengths[number] = range(tokens, tokens + 1)
        ends = []
        for bond in bonds:
            (end,) = _atoms_of(bond) & group
            if end not in ends:
                ends.append(end)
            point = Chem.Atom(0)
            point.SetAtomMapNum(number)
            point.SetIsAromatic(bond.GetIsAromatic())
            molecule.ReplaceAtom(end, point)
        if len(ends) == 2:
            _bond(molecule, *ends)
        removed |= group.difference(ends)
    # the last first, since the atoms behind a removed one are numbered anew
    for atom in sorted(removed, reverse=True):
        molecule.RemoveAtom(atom)
    return molecule, lengths


def _token_count(molecule: Chem.Mol, group: set[int], bonds: list[Any]) -> int:
    """How many tokens a group of atoms has in a SMILES, with the signs of its `bonds` to the atoms
    that stay, but without these atoms."""
    with_neighbours = group.union(*map(_atoms_of, bonds))
    inside = {bond.GetIdx() for i in group for bond in molecule.GetAtomWithIdx(i).GetBonds()}
    smiles = Chem.MolFragmentToSmiles(molecule, sorted(with_neighbours), sorted(inside))
    return len(re.findall(SMILES_PATTERN, smiles)) - len(with_neighbours - group)


def _atoms_of(bond: Any) -> set[int]:
    return {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}


def _crosses(bond: Any, group: set[int]) -> bool:
    """Whether a bond leads from one of these atoms to another one."""
    return len(_atoms_of(bond) & group) == 1


def _bond(molecule: Chem.RWMol, first: int, second: int) -> None:
    """Bonds the two ends of a site, in the way that RDKit writes without a sign."""
    if molecule.GetBondBetweenAtoms(first, second) is not None:
        molecule.RemoveBond(first, second)
    both = [molecule.GetAtomWithIdx(i).GetIsAromatic() for i in (first, second)]
    bond_type = Chem.BondType.AROMATIC if all(both) else Chem.BondType.SINGLE
    molecule.AddBond(first, second, bond_type)


def _write(molecule: Chem.Mol, drawn: bool) -> str:
    """The SMILES in which each site is one piece between what it is bonded to: RDKit's own, or one
    that begins at another atom; of several, that with the smallest `_cost`."""
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    candidates = []
    # -1 is RDKit's own order.
    for root in range(0 if drawn else -1, molecule.GetNumAtoms()):
        smiles = Chem.MolToSmiles(molecule, rootedAtAtom=root)
        # RDKit writes the sign of aromatic bonds at attachment points
        smiles = re.sub(r"(?<=\]):", "", smiles)
        sites = list(SITE.finditer(smiles))
        is_whole = len({site[1] for site in sites}) == len(sites)
        if is_whole and not any(_is_branching(smiles, site) for site in sites):
            candidates.append(smiles)
    if not candidates:
        raise InputError("a site cannot be written as one piece of a SMILES; free another group")
    return min(candidates, key=partial(_cost, drawn=drawn))


def _cost(smiles: str, drawn: bool) -> tuple[int, ...]:
    """How many ring digits are behind sites, and what else speaks against a SMILES.

    To rank pieces, it must not begin with a site: canonical SMILES, which models learn, begin with
    few kinds of pieces. In `molecules-5M` true pieces of 120 held-out molecules, each on one bond,
    have a joint nll of 9.6 nats there, of 5.1 in a branch and of 4.1 at the end. Of other SMILES
    the first is taken, RDKit's own if possible.

    Where pieces are `drawn`, fewest rings are open at its sites (their digits could be closed by a
    filling), and it begins with a site: samples of 4 to 8 tokens were molecules more than twice as
    often there as in RDKit's own SMILES."""
    sites = list(SITE.finditer(smiles))
    closing = sum(RING_DIGIT.match(smiles, site.end()) is not None for site in sites)
    begins = sites[0].start() == 0
    if not drawn:
        return closing, begins
    open_rings = sum(_open_rings(smiles[: site.start()]) for site in sites)
    return closing, open_rings, not begins


def _is_branching(smiles: str, site: re.Match[str]) -> bool:
    """Whether two pieces of the molecule are bonded to the last token of a site: both behind it, or
    one by a ring digit."""
    is_first = site.start() == 0 or smiles[site.start() - 1] == "."
    behind = smiles[site.end() : site.end() + 1]
    return behind == "(" or (is_first and RING_DIGIT.match(smiles, site.end()) is not None)


def _open_rings(smiles: str) -> int:
    """How many ring digits are open at the end of the beginning of a SMILES."""
    is_open: set[str] = set()
    for token in re.findall(SMILES_PATTERN, smiles):
        if token.isdigit() or token[0] == "%":
            is_open ^= {token}
    return len(is_open)
