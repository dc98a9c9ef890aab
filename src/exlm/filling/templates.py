"""Templates: what stays of a molecule or a protein with sites, pieces of which only the number of
tokens is said. A template has a text with masks for each choice of the lengths of its sites."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod

import numpy as np
from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.errors import InputError
from exlm.filling.molecule_sites import (
    SITE,
    find_groups,
    free_groups,
    join_fragments,
    remove_points,
    to_smiles,
)
from exlm.filling.options import FillCommandOptions, parse_numbers

MASK = "[MASK]"
MOST_CHOICES = 1000  # how many choices of lengths a text may have, over all its sites


@dataclass(frozen=True)
class Template:
    """What stays of a text that has sites."""

    masked_texts: list[str]  # the text with masks, for each choice of the lengths of all sites
    sites_of_masks: list[list[int]]  # for each of these, the number of the site of every mask
    original: str | None = None  # the molecule, before a piece of it was freed
    core: Chem.Mol | None = None  # the molecule without its sites: every filled one must contain it


def protein_template(sequence: str, options: FillCommandOptions) -> Template:
    """The template of a protein. The residues that `site` names, counted from 1 and both ends
    included, are free. InputError if it does not have them."""
    if options.keep is not None or options.replace is not None:
        raise InputError(
            "keep and replace are SMARTS, for models of molecules; "
            "give the residues that are free, as --site 30-37"
        )
    places = [parse_numbers(entry, "site") for entry in options.site or []]
    places.sort(key=lambda residues: residues[0])
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
    lengths = [[len(residues)] for residues in places]
    return _make_template([*texts, sequence[end:]], lengths, range(len(places)))


def molecule_template(smiles: str, options: FillCommandOptions) -> Template:
    """The template of a molecule. Its sites are what hangs on the atoms of the SMARTS `keep`, the
    atoms of the SMARTS `replace`, or else its attachment points. With a SMARTS, a site has as many
    tokens as now, unless `site` says otherwise. InputError if the molecule does not fit."""
    problem = molecule_problem(smiles)
    if problem:
        raise InputError(problem)
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    original = None
    lengths_now: dict[str, range] = {}
    if options.keep is None and options.replace is None:
        with_sites = join_fragments(molecule)
    else:
        original = smiles
        groups = find_groups(molecule, options.keep, options.replace)
        with_sites, lengths_now = free_groups(molecule, groups)
    # texts, with the number of a site between two of them
    pieces = SITE.split(to_smiles(with_sites, sampled=options.samples is not None))
    numbers = pieces[1::2]
    lengths = _lengths_of_sites(numbers, options.site or [], lengths_now)
    template = _make_template(pieces[::2], lengths, list(map(int, numbers)))
    return replace(template, original=original, core=remove_points(with_sites))


def _lengths_of_sites(
    numbers: Sequence[str], entries: Sequence[str], lengths_now: dict[str, range]
) -> list[range]:
    """How many tokens each of the sites with these numbers may have, by the entries of `--site`:
    `1=3-8` is for the site `[*:1]`, `3-8` for all others. Without an entry a site has as many as
    now. InputError if an entry has no site or a site no entry, or for too many choices."""
    length_of_name: dict[str, range] = {}
    for entry in entries:
        name, _, length = entry.rpartition("=")
        if name and name not in numbers:
            there_are = " and ".join(sorted(numbers))
            raise InputError(f"site is {entry}, but there is no site {name}, only {there_are}")
        if name in length_of_name:
            raise InputError(f"site has {entry} for what it has before; leave out one of both")
        length_of_name[name] = parse_numbers(length, "site")
    lengths = []
    for number in numbers:
        by_entry = length_of_name.get(number) or length_of_name.get("")
        length_of_site = by_entry or lengths_now.get(number)
        if length_of_site is None:
            raise InputError(
                f"how many tokens site {number} may have is not said; add --site {number}=3-8"
            )
        lengths.append(length_of_site)
    choices = prod(map(len, lengths))
    if choices > MOST_CHOICES:
        raise InputError(
            f"the sites have {choices:,} choices of lengths together; "
            f"give shorter ranges, for at most {MOST_CHOICES:,}"
        )
    return lengths


def _make_template(
    texts: Sequence[str], lengths_of_sites: Sequence[Sequence[int]], numbers: Sequence[int]
) -> Template:
    """The template of texts with a site between two of them. Of `CC` and `O`, with a site of one or
    two tokens, the masked texts are `CC[MASK]O` and `CC[MASK][MASK]O`."""
    masked_texts = []
    sites_of_masks = []
    for lengths in product(*lengths_of_sites):
        masks = [MASK * length for length in lengths]
        pieces = chain.from_iterable(zip(texts, [*masks, ""], strict=True))
        masked_texts.append("".join(pieces))
        sites_of_masks.append(np.repeat(numbers, lengths).tolist())
    return Template(masked_texts, sites_of_masks)
