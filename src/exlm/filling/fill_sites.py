"""Fills the sites of texts. A template has a text with masks for each choice of the lengths of its
sites (`sites.py`). Each of these is filled by itself, and then their fillings are merged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from exlm.errors import InputError
from exlm.filling.filler import Filler
from exlm.filling.graphs import MASKS
from exlm.filling.results import FilledText, Filling, most_probable_first
from exlm.filling.sites import MOST_CHOICES, Template


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
