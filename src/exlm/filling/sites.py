"""Sites: pieces of a molecule or a protein of which only the number of tokens is said. A *template*
is what stays and where the sites are; it has a text with masks for each choice of lengths."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.errors import InputError
from exlm.filling.attachment_points import (
    SITE,
    freed,
    groups_to_free,
    joined,
    to_smiles,
    without_points,
)
from exlm.filling.options import parse_lengths

MASK = "[MASK]"
MOST_CHOICES = 1000  # how many choices of lengths a text may have, over all its sites
# how many tokens each site may have, by its number; None: all sites that are not named
Lengths = dict[int | None, range]


@dataclass(frozen=True)
class Template:
    """What stays of a text that has sites."""

    masked_texts: list[str]  # the text with masks, for each choice of lengths
    sites_of_masks: list[list[int]]  # in each of them, the site of every mask, from 0
    original: str | None = None  # the molecule of which a piece was freed
    core: Chem.Mol | None = None  # what a filled molecule has, with something at its sites alone


def template_maker(
    site: Sequence[str] | None,
    keep: str | None,
    replace: str | None,
    proteins: bool,
    sampled: bool = False,
) -> Callable[[str], Template]:
    """What makes a template of a text, by the options of `exlm fill`. InputError if they do not go
    together or name no numbers; so does the result for texts that they do not fit.

    Args:
        proteins: whether the texts are proteins, and not molecules.
        sampled: whether fillings are sampled, and not searched and ranked."""
    if keep is not None and replace is not None:
        raise InputError("give keep or replace, not both: each says what stays and what is free")
    if not proteins:
        lengths = _parse_sites(site or [])
        return partial(
            molecule_template, lengths=lengths, keep=keep, replace=replace, sampled=sampled
        )
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
    texts = []
    end = 0
    for residues in places:
        first, last = residues[0], residues[-1]
        if last > len(sequence):
            raise InputError(
                f"site {first}-{last} is not in the sequence, which has {len(sequence)} residues"
            )
        if first <= end:
            raise InputError(f"two sites have residue {first}; give it to one of them")
        texts.append(sequence[end : first - 1])
        end = last
    return _template([*texts, sequence[end:]], [[len(residues)] for residues in places])


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
    smiles: str, lengths: Lengths, keep: str | None, replace: str | None, sampled: bool
) -> Template:
    """A molecule with sites: what hangs on the atoms that the SMARTS `keep` matches, the atoms that
    `replace` matches, or else its attachment points. Those of `keep` and `replace` have as many
    tokens as now, unless `lengths` says otherwise."""
    problem = molecule_problem(smiles)
    if problem:
        raise InputError(problem)
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    original = None
    if keep is None and replace is None:
        with_sites = joined(molecule)
    else:
        original = smiles
        groups = groups_to_free(molecule, keep, replace)
        with_sites, tokens_now = freed(molecule, groups)
        if None not in lengths:
            as_now: Lengths = {number: range(n, n + 1) for number, n in tokens_now.items()}
            lengths = as_now | lengths
    # texts, with the number of a site between two of them
    pieces = SITE.split(to_smiles(with_sites, sampled))
    lengths_of_sites = _lengths_of_sites(list(map(int, pieces[1::2])), lengths)
    return _template(pieces[::2], lengths_of_sites, original, without_points(with_sites))


def _template(
    texts: Sequence[str],
    lengths_of_sites: Sequence[Iterable[int]],
    original: str | None = None,
    core: Chem.Mol | None = None,
) -> Template:
    """The template of `texts` with a site between two of them."""
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
