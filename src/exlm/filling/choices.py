"""Fills the sites of texts. A template has a text with masks for each choice of the lengths of its
sites (`sites.py`). Each of these is filled by itself, and then their fillings are merged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling.graphs import MASKS, TOKENS_PER_PASS
from exlm.filling.options import FillOptions
from exlm.filling.records import FilledText, Filling
from exlm.filling.sites import MOST_CHOICES, Template
from exlm.filling.texts import fill_masks
from exlm.model.masked_lm import ExLMForMaskedLM


def fill_sites(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    unfilled_texts: Sequence[FilledText],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_pass: int = TOKENS_PER_PASS,
) -> Iterator[FilledText]:
    """Yields each text with its template and the fillings of its sites, in order."""
    with_templates = [_with_template(unfilled, make_template) for unfilled in unfilled_texts]
    with_masks: list[FilledText] = []  # all choices of lengths, those of one text after the other
    for unfilled in with_templates:
        if unfilled.template is not None:
            # Samples depend on these numbers, which no other text may change.
            first = (unfilled.line - 1) * MOST_CHOICES + 1
            with_masks += map(FilledText, count(first), unfilled.template.masked_texts)
    filled = fill_masks(network, tokenizer, with_masks, options, tokens_per_pass=tokens_per_pass)
    for unfilled in with_templates:
        template = unfilled.template
        if template is None:
            yield unfilled
        else:
            choices = list(islice(filled, len(template.masked_texts)))
            yield _merged(unfilled, choices, template.sites_of_masks)


def _with_template(unfilled: FilledText, make_template: Callable[[str], Template]) -> FilledText:
    """The text with its template, or with the problem that it has."""
    if unfilled.problem is not None:
        return unfilled
    if not unfilled.text.strip():
        return replace(unfilled, problem="empty text")
    if MASKS.search(unfilled.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return replace(unfilled, problem=problem)
    try:
        return replace(unfilled, template=make_template(unfilled.text))
    except InputError as error:
        return replace(unfilled, problem=str(error))


def _merged(
    unfilled: FilledText, choices: list[FilledText], sites_of_masks: list[list[int]]
) -> FilledText:
    """The text with the fillings of all its choices of lengths, the most probable first."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return replace(unfilled, problem=problems[0])
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
    fillings.sort(key=lambda filling: -filling.log_probability)
    exact = [choice.exact for choice in usable]
    kept = [choice.kept for choice in usable if choice.kept is not None]
    passes = [choice.passes for choice in usable if choice.passes is not None]
    warnings = [choice.warning for choice in usable if choice.warning is not None]
    if problems:
        warnings.append(f"{len(problems)} of {len(choices)} choices of lengths: {problems[0]}")
    return replace(
        unfilled,
        fillings=fillings,
        exact=None if None in exact else all(exact),
        kept=min(kept),
        passes=max(passes),
        warning=warnings[0] if warnings else None,
    )
