"""Fills the sites of texts. A template has a text with masks for each choice of the lengths of its
sites (`sites.py`). Each of these is filled by itself, and then their fillings are merged."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling.graphs import MASKS, TOKENS_PER_BATCH
from exlm.filling.options import FillOptions
from exlm.filling.results import FilledText, Filling, TextToFill
from exlm.filling.sites import MOST_CHOICES, Template
from exlm.filling.texts import fill_masks
from exlm.model.masked_lm import ExLMForMaskedLM


def fill_sites(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[TextToFill],
    make_template: Callable[[str], Template],
    options: FillOptions,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> Iterator[FilledText]:
    """Yields each text with its template and the fillings of its sites, in order."""
    with_templates = [_with_template(to_fill, make_template) for to_fill in texts]
    # all choices of lengths, those of one text after the other
    masked_texts: list[TextToFill] = []
    for to_fill in with_templates:
        if to_fill.template is not None:
            # Samples depend on these numbers, which no other text may change.
            first = (to_fill.line - 1) * MOST_CHOICES + 1
            masked_texts += map(TextToFill, count(first), to_fill.template.masked_texts)
    filled_choices = fill_masks(
        network, tokenizer, masked_texts, options, tokens_per_batch=tokens_per_batch
    )
    for to_fill in with_templates:
        template = to_fill.template
        if template is None:
            yield to_fill.unfilled(to_fill.problem)
        else:
            choices = list(islice(filled_choices, len(template.masked_texts)))
            yield _merged(to_fill, choices, template.sites_of_masks)


def _with_template(to_fill: TextToFill, make_template: Callable[[str], Template]) -> TextToFill:
    """The text with its template, or with the problem that it has."""
    if to_fill.problem is not None:
        return to_fill
    if not to_fill.text.strip():
        return replace(to_fill, problem="empty text")
    if MASKS.search(to_fill.text):
        problem = "it has masks, but site, keep or replace say what is free; leave out either"
        return replace(to_fill, problem=problem)
    try:
        return replace(to_fill, template=make_template(to_fill.text))
    except InputError as error:
        return replace(to_fill, problem=str(error))


def _merged(
    to_fill: TextToFill, choices: list[FilledText], sites_of_masks: list[list[int]]
) -> FilledText:
    """The text with the fillings of all its choices of lengths, the most probable first."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return to_fill.unfilled(problems[0])
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
    return FilledText(
        **vars(to_fill),
        fillings=fillings,
        exact=None if None in exact else all(exact),
        kept=min(kept),
        passes=max(passes),
        warning=warnings[0] if warnings else None,
    )
