"""Fills sites: pieces of a molecule or a protein of which only the number of tokens is said. A
*template* is what stays and where the sites are; it has a text with masks for each choice of the
lengths of its sites. Each of these is filled by itself, and then their fillings are merged."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from math import prod

import numpy as np
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
from exlm.filling.options import FillSettings, parse_lengths
from exlm.filling.results import FilledText, Filling, InputText, Template, most_probable_first

MOST_CHOICES = 1000  # how many choices of lengths a text may have, over all its sites


def fill_sites(
    filler: Filler, texts: Sequence[InputText], settings: FillSettings
) -> Iterator[FilledText]:
    """Yields each text with its template and the fillings of its sites, in order."""
    with_templates = [_with_template(text, settings) for text in texts]
    # all choices of lengths, those of one text after the other
    masked_texts: list[InputText] = []
    for text in with_templates:
        if text.template is not None:
            # Samples depend on these numbers, which no other text may change.
            first = (text.line - 1) * MOST_CHOICES + 1
            masked_texts += map(InputText, count(first), text.template.masked_texts)
    filled_choices = filler.fill(masked_texts)
    for text in with_templates:
        if text.template is None:
            yield text.filled()
        else:
            choices = list(islice(filled_choices, len(text.template.masked_texts)))
            yield _merged(text, choices, text.template)


def _with_template(text: InputText, settings: FillSettings) -> InputText:
    """The text with its template, or with the problem that it has."""
    if text.problem is not None:
        return text
    if MASKS.search(text.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return replace(text, problem=problem)
    make_template = molecule_template if settings.molecules else protein_template
    try:
        return replace(text, template=make_template(text.text, settings))
    except InputError as error:
        return replace(text, problem=str(error))


def _merged(text: InputText, choices: list[FilledText], template: Template) -> FilledText:
    """The text with the fillings of all its choices of lengths."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return text.filled(problem=problems[0])
    fillings: list[Filling] = []
    for choice, lengths in zip(choices, template.choices, strict=True):
        site_of_mask = np.repeat(template.numbers_of_sites, lengths).tolist()
        for filling in choice.fillings:
            fillings.append(
                replace(
                    filling,
                    masked=choice.text,
                    site_of_mask=site_of_mask,
                    # All choices are taken to be equally probable.
                    length_probability=1 / len(usable),
                )
            )
    warnings = [choice.warning for choice in usable if choice.warning is not None]
    if problems:
        warnings.append(f"{len(problems)} of {len(choices)} choices of lengths: {problems[0]}")
    exact = [choice.exact for choice in usable]
    return text.filled(
        fillings=most_probable_first(fillings),
        exact=None if None in exact else all(exact),
        kept=min(choice.kept for choice in usable if choice.kept is not None),
        passes=max(choice.passes for choice in usable if choice.passes is not None),
        warning=warnings[0] if warnings else None,
    )


def protein_template(sequence: str, settings: FillSettings) -> Template:
    """A protein whose residues at the places of `site` are free: from 1, both ends included.
    InputError for places that it does not have."""
    if settings.keep is not None or settings.replace is not None:
        raise InputError(
            "keep and replace are SMARTS, for models of molecules; "
            "give the residues that are free, as --site 30-37"
        )
    places = [parse_lengths(entry, "site") for entry in settings.site or []]
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
    lengths = [range(len(residues), len(residues) + 1) for residues in places]
    return Template([*texts, sequence[end:]], lengths, list(range(len(lengths))))


def molecule_template(smiles: str, settings: FillSettings) -> Template:
    """A molecule with sites: what hangs on the atoms that the SMARTS `keep` matches, the atoms that
    `replace` matches, or else its attachment points. Those of `keep` and `replace` have as many
    tokens as now, unless `site` says otherwise. InputError if the molecule does not fit them."""
    problem = molecule_problem(smiles)
    if problem:
        raise InputError(problem)
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(smiles)
    original = None
    lengths_now: dict[str, range] = {}
    if settings.keep is None and settings.replace is None:
        with_sites = joined(molecule)
    else:
        original = smiles
        groups = groups_to_free(molecule, settings.keep, settings.replace)
        with_sites, lengths_now = freed(molecule, groups)
    # texts, with the number of a site between two of them
    pieces = SITE.split(to_smiles(with_sites, sampled=settings.samples is not None))
    numbers = pieces[1::2]
    lengths = _lengths_of_sites(numbers, settings.site or [], lengths_now)
    core = without_points(with_sites)
    return Template(pieces[::2], lengths, list(map(int, numbers)), original, core)


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
        length_of_name[name] = parse_lengths(length, "site")
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
