"""Fills sites: pieces of a molecule or a protein of which only the number of tokens is said. A
*template* is what stays and where the sites are; it has a text with masks for each choice of the
lengths of its sites. Each of these is filled by itself, and then their fillings are merged."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice, product
from math import prod

from rdkit import Chem, rdBase

from exlm.data.chemistry import molecule_problem
from exlm.errors import InputError
from exlm.filling.filler import Filler
from exlm.filling.graphs import MASKS
from exlm.filling.molecules import (
    SITE,
    freed,
    groups_to_free,
    joined,
    to_smiles,
    without_points,
)
from exlm.filling.options import parse_lengths
from exlm.filling.results import FilledText, Filling, Template, most_probable_first

MASK = "[MASK]"
MOST_CHOICES = 1000  # how many choices of lengths a text may have, over all its sites
# how many tokens each site may have, by its number; None: all sites that are not named
Lengths = dict[int | None, range]


def fill_sites(
    filler: Filler, texts: Sequence[FilledText], make_template: Callable[[str], Template]
) -> Iterator[FilledText]:
    """Yields each text with its template and the fillings of its sites, in order."""
    with_templates = [_with_template(text, make_template) for text in texts]
    # all choices of lengths, those of one text after the other
    masked_texts: list[FilledText] = []
    for text in with_templates:
        if text.template is not None:
            # Samples depend on these numbers, which no other text may change.
            first = (text.line - 1) * MOST_CHOICES + 1
            masked_texts += map(FilledText, count(first), text.template.masked_texts)
    filled_choices = filler.fill(masked_texts)
    for text in with_templates:
        if text.template is None:
            yield text
        else:
            choices = list(islice(filled_choices, len(text.template.masked_texts)))
            yield _merged(text, choices, text.template.sites_of_masks)


def _with_template(text: FilledText, make_template: Callable[[str], Template]) -> FilledText:
    """The text with its template, or with the problem that it has."""
    if text.problem is not None:
        return text
    if not text.text.strip():
        return replace(text, problem="empty text")
    if MASKS.search(text.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return replace(text, problem=problem)
    try:
        return replace(text, template=make_template(text.text))
    except InputError as error:
        return replace(text, problem=str(error))


def _merged(
    text: FilledText, choices: list[FilledText], sites_of_masks: list[list[int]]
) -> FilledText:
    """The text with the fillings of all its choices of lengths."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return replace(text, problem=problems[0])
    fillings: list[Filling] = []
    for choice, site_of_mask in zip(choices, sites_of_masks, strict=True):
        for filling in choice.fillings:
            filling_of_sites = replace(
                filling,
                masked=choice.text,
                site_of_mask=site_of_mask,
                # All choices are taken to be equally probable.
                length_probability=1 / len(usable),
            )
            fillings.append(filling_of_sites)
    warnings = [choice.warning for choice in usable if choice.warning is not None]
    if problems:
        warnings.append(f"{len(problems)} of {len(choices)} choices of lengths: {problems[0]}")
    exact = [choice.exact for choice in usable]
    return replace(
        text,
        fillings=most_probable_first(fillings),
        exact=None if None in exact else all(exact),
        kept=min(choice.kept for choice in usable if choice.kept is not None),
        passes=max(choice.passes for choice in usable if choice.passes is not None),
        warning=warnings[0] if warnings else None,
    )


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
