"""Molecules with sites, as RDKit writes them. A site is one attachment point `[*:1]` of a SMILES,
or two that are bonded to each other, the ends of a linker.

| asked for                     | the molecule with sites                                        |
| ----------------------------- | -------------------------------------------------------------- |
| fragments, `C[*:1].N[*:1]`    | `join_fragments`: `C[*:1][*:1]N`                               |
| a group of `CCO`, as `[OH]`   | `find_groups`, then `free_groups`: `CC[*:1]`                   |

`to_smiles` writes it, and `remove_points` gives what every filled molecule must have."""

import re
from functools import partial
from itertools import count

from rdkit import Chem, rdBase

from exlm.data.tokenization import SMILES_PATTERN
from exlm.errors import InputError

# one site in a SMILES: an attachment point, or both ends of a linker
SITE = re.compile(r"\[\*:(\d+)\](?:\[\*:\1\])?")
POINT = Chem.MolFromSmarts("[#0]")  # an attachment point
SITES = "sites"  # the property of an atom that stays: to how many sites it is bonded
RING_DIGIT = re.compile(r"[=#/\\-]?[\d%]")


def join_fragments(fragments: Chem.Mol) -> Chem.Mol:
    """Gives every attachment point (`[*:1]`, `[*]`, `*`, or RDKit's `[16*]`) a number, and bonds
    the two ends of a linker: points with the same number, or one in each of two fragments."""
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


def _fragment_count(molecule: Chem.Mol, atoms: list[Chem.Atom]) -> int:
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


def find_groups(molecule: Chem.Mol, kept: str | None, replaced: str | None) -> list[set[int]]:
    """The atoms of each group to free: the atoms that the SMARTS `replaced` matches, or else the
    groups that hang on the atoms that `kept` matches."""
    if replaced is not None:
        return [_match(molecule, replaced, "replace")]
    core = _match(molecule, str(kept), "keep")
    cut = [bond for bond in molecule.GetBonds() if _crosses(bond, core)]
    if not cut:
        raise InputError(f"keep is {kept}, which is the whole molecule, so nothing is free")
    bond_numbers = [bond.GetIdx() for bond in cut]
    pieces = Chem.GetMolFrags(Chem.FragmentOnBonds(molecule, bond_numbers, addDummies=False))
    beside = set[int]().union(*map(_atoms_of, cut)) - core
    return [set(piece) for piece in pieces if not beside.isdisjoint(piece)]


def free_groups(original: Chem.Mol, groups: list[set[int]]) -> tuple[Chem.Mol, dict[str, range]]:
    """The molecule in which each group of atoms is a site, numbered from 1, and how many tokens the
    group has now, by the site's number. Atoms that stay keep their bonds, hence their chirality:
    the groups' atoms beside them become attachment points."""
    molecule = Chem.RWMol(original)
    lengths_now: dict[str, range] = {}
    removed = set[int]()
    for number, group in enumerate(groups, 1):
        bonds = [bond for bond in original.GetBonds() if _crosses(bond, group)]
        if len(bonds) not in (1, 2):
            text = Chem.MolFragmentToSmiles(original, sorted(group))
            raise InputError(
                f"the group {text} is bonded to what stays at {len(bonds)} places, not one or two"
            )
        tokens = _token_count(original, group, bonds)
        lengths_now[str(number)] = range(tokens, tokens + 1)
        ends: list[int] = []
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
    # the last first, since the atoms after a removed one get other numbers
    for atom in sorted(removed, reverse=True):
        molecule.RemoveAtom(atom)
    return molecule, lengths_now


def remove_points(molecule: Chem.Mol) -> Chem.Mol:
    """What stays of a molecule with sites; its atoms have the property SITES."""
    marked = Chem.Mol(molecule)
    for atom in marked.GetAtoms():
        points = [other for other in atom.GetNeighbors() if other.GetAtomicNum() == 0]
        atom.SetIntProp(SITES, len(points))
    return Chem.DeleteSubstructs(marked, POINT)


def _token_count(molecule: Chem.Mol, group: set[int], bonds: list[Chem.Bond]) -> int:
    """How many tokens a group of atoms has in a SMILES, with the signs of its `bonds` to the atoms
    that stay, but without these atoms."""
    with_neighbours = group.union(*map(_atoms_of, bonds))
    inside = {bond.GetIdx() for i in group for bond in molecule.GetAtomWithIdx(i).GetBonds()}
    smiles = Chem.MolFragmentToSmiles(molecule, sorted(with_neighbours), sorted(inside))
    return len(re.findall(SMILES_PATTERN, smiles)) - len(with_neighbours - group)


def _atoms_of(bond: Chem.Bond) -> set[int]:
    return {bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()}


def _crosses(bond: Chem.Bond, group: set[int]) -> bool:
    """Whether a bond leads from one of these atoms to another one."""
    return len(_atoms_of(bond) & group) == 1


def _bond(molecule: Chem.RWMol, first: int, second: int) -> None:
    """Bonds the two ends of a site, in the way that RDKit writes without a sign."""
    if molecule.GetBondBetweenAtoms(first, second) is not None:
        molecule.RemoveBond(first, second)
    both = [molecule.GetAtomWithIdx(i).GetIsAromatic() for i in (first, second)]
    bond_type = Chem.BondType.AROMATIC if all(both) else Chem.BondType.SINGLE
    molecule.AddBond(first, second, bond_type)


def to_smiles(molecule: Chem.Mol, sampled: bool) -> str:
    """The SMILES in which each site is one piece between what it is bonded to: RDKit's own, or one
    that begins at another atom; of several SMILES, the one with the smallest `_cost`."""
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    candidates = []
    # -1 is RDKit's own order.
    for root in range(0 if sampled else -1, molecule.GetNumAtoms()):
        smiles = Chem.MolToSmiles(molecule, rootedAtAtom=root)
        # RDKit writes the sign of aromatic bonds at attachment points
        smiles = re.sub(r"(?<=\]):", "", smiles)
        sites = list(SITE.finditer(smiles))
        is_whole = len({site[1] for site in sites}) == len(sites)
        if is_whole and not any(_is_branching(smiles, site) for site in sites):
            candidates.append(smiles)
    if not candidates:
        raise InputError("a site cannot be written as one piece of a SMILES; free another group")
    return min(candidates, key=partial(_cost, sampled=sampled))


def _cost(smiles: str, sampled: bool) -> tuple[int, ...]:
    """What speaks against a SMILES, the worst first: the number of ring digits behind its sites.

    Where fillings are ranked, then that it begins with a site: canonical SMILES, which models
    learn, begin with few kinds of pieces. In `molecules-5M` true pieces of 120 held-out molecules,
    each on one bond, have a joint nll of 9.6 nats at the beginning, of 5.1 in a branch and of 4.1
    at the end. Of equal SMILES the first is taken, RDKit's own if possible.

    Where fillings are `sampled`, then the number of rings that are open at its sites, since a
    filling could close them; then that it does not begin with a site: at the beginning, samples of
    4 to 8 tokens were molecules more than twice as often as in RDKit's own SMILES."""
    sites = list(SITE.finditer(smiles))
    digits = sum(RING_DIGIT.match(smiles, site.end()) is not None for site in sites)
    begins_with_site = sites[0].start() == 0
    if not sampled:
        return digits, begins_with_site
    open_rings = sum(_open_rings(smiles[: site.start()]) for site in sites)
    return digits, open_rings, not begins_with_site


def _is_branching(smiles: str, site: re.Match[str]) -> bool:
    """Whether two atoms are bonded to the last token of a site: both behind it, as in `[*:1](C)N`,
    or one by a ring digit, as in `[*:1]1CCO1`."""
    is_first = site.start() == 0 or smiles[site.start() - 1] == "."
    behind = smiles[site.end() : site.end() + 1]
    return behind == "(" or (is_first and RING_DIGIT.match(smiles, site.end()) is not None)


def _open_rings(smiles: str) -> int:
    """How many ring digits are open where the beginning of a SMILES ends: in `C1CC` one."""
    tokens = re.findall(SMILES_PATTERN, smiles)
    digits = [token for token in tokens if token.isdigit() or token[0] == "%"]
    return sum(digits.count(digit) % 2 for digit in set(digits))
