"""Fillings in several passes of the network, by the policy of `exlm.model.passes`: each pass
reveals the masks that are most certain, and the next one reads their tokens. As in `exlm fill` in
one pass, only paths with one state in each mask count. A filling's probability is the product over
its passes, and exact: every pass sums over all tokens of the masks that it does not reveal."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from exlm.filling import search
from exlm.filling.options import FillOptions
from exlm.filling.reading import Example, all_graphs
from exlm.filling.search import Fillings, Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import most_certain
from exlm.randomness import Purpose, draw


@dataclass(frozen=True)
class Beginning:
    """A text of which some masks are revealed."""

    ids: list[int]
    # the places that are still masked
    masks: list[int]
    # of the revealed tokens together
    log_prob: float


class Reading(NamedTuple):
    """What the network says about a beginning."""

    graph: Graph
    # in the text, of the graph's masks and of what else has states there, from left to right
    places: list[int]


class InPasses(NamedTuple):
    """Filled texts: the best first, but samples in the order in which they were drawn."""

    filled: list[Beginning]
    # whether no missing filling is more probable than the last one; only `beam_in_passes` proves it
    proven: bool
    # the smallest `search.share_one_per_mask` in what was read
    share_one_per_mask: float


Read = Callable[[list[Beginning]], Iterable[Reading]]


def read_beginnings(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int,
    beginnings: Sequence[Beginning],
) -> Iterator[Reading]:
    """What the network says about beginnings of fillings of one text, in their order."""
    examples = [Example(beginning.ids, beginning.masks) for beginning in beginnings]
    # All are equally long, so their order is kept.
    for number, graph in all_graphs(network, tokenizer, examples, tokens_per_batch):
        yield Reading(graph, _places(network, examples[number]))


def _places(network: ExLMForMaskedLM, example: Example) -> list[int]:
    """The places in the text that have states: its masks, and with k boundary states also a
    revealed BOS or EOS."""
    config = network.config
    ends = {config.bos_token_id, config.eos_token_id} if config.states_per_boundary > 1 else set()
    inside = range(1, len(example.ids) - 1)
    return [place for place in inside if place in example.masks or example.ids[place] in ends]


def search_in_passes(
    graph: Graph, example: Example, read: Read, passes: int, options: FillOptions, line: int
) -> InPasses:
    """Fillings of one text by the method of `options`. `graph` is the first pass, `read` makes the
    others. The number of the line is part of the seed of samples."""
    start = Beginning(example.ids, example.masks, 0.0)
    first = Reading(graph, example.masks)
    if options.method == "sample":
        seed = (options.seed, line, len(example.masks))
        return sample_in_passes(start, first, read, passes, options.n_best, seed)
    return beam_in_passes(start, first, read, passes, options.n_best, options.beam)


def beam_in_passes(
    start: Beginning, first: Reading, read: Read, passes: int, n_best: int, width: int
) -> InPasses:
    """The `n_best` most probable fillings that a beam search finds; each pass keeps the `width`
    best beginnings.

    A beginning is at least as probable as all fillings that continue it. So the search has proven
    that it found the best if the n-th filling is at least as probable as every beginning that was
    dropped or not listed."""
    beginnings = [start]
    readings: Iterable[Reading] = [first]
    # how probable a filling that is not among the results can be at most (logarithm)
    missed = -math.inf
    share = 1.0
    for passes_left in range(passes, 0, -1):
        size = n_best if passes_left == 1 else width
        best = list[Beginning]()
        for beginning, reading in zip(beginnings, readings, strict=True):
            if len(best) == size and beginning.log_prob <= best[-1].log_prob:
                # neither this nor a later beginning can enter the best
                missed = max(missed, beginning.log_prob)
                break
            places, paths = _revealed(beginning, reading, passes_left)
            fillings = search.beam_search(paths, len(places), size, width)
            longer = [*best, *_continued(beginning, places, fillings)]
            longer.sort(key=lambda filled: -filled.log_prob)
            best = longer[:size]
            if len(longer) > size:
                missed = max(missed, longer[size].log_prob)
            missed = max(missed, beginning.log_prob + _most_unlisted(fillings, size))
            share = min(share, search.share_one_per_mask(reading.graph))
        beginnings = best
        readings = read(beginnings)
    proven = len(beginnings) == n_best and beginnings[-1].log_prob >= missed
    return InPasses(beginnings, proven or missed == -math.inf, share)


def sample_in_passes(
    start: Beginning, first: Reading, read: Read, passes: int, count: int, seed: tuple[int, ...]
) -> InPasses:
    """`count` fillings drawn pass by pass; `seed`, the pass and the number of the beginning decide
    each draw."""
    beginnings = [start]
    readings: Iterable[Reading] = [first]
    share = 1.0
    for passes_left in range(passes, 0, -1):
        longer = list[Beginning]()
        # all from the start, then one from each beginning
        draws = count // len(beginnings)
        for number, (beginning, reading) in enumerate(zip(beginnings, readings, strict=True)):
            places, paths = _revealed(beginning, reading, passes_left)
            bits = draw(Purpose.SAMPLED_FILLING, *seed, passes_left, number)
            generator = torch.Generator().manual_seed(int(bits) >> 1)
            fillings = search.sample(paths, len(places), draws, generator)
            longer += _continued(beginning, places, fillings)
            share = min(share, search.share_one_per_mask(reading.graph))
        beginnings = longer
        readings = read(beginnings)
    return InPasses(beginnings, False, share)


def _revealed(beginning: Beginning, reading: Reading, passes_left: int) -> tuple[list[int], Graph]:
    """The places that the next pass reveals, and the graph of their masks alone."""
    paths = search.one_per_mask(reading.graph)
    masked = torch.tensor([place in beginning.masks for place in reading.places])
    # [masks, V] of every mask, over all paths
    marginals = search.visits(paths, paths.masks)[1:-1] @ paths.probs
    revealed = most_certain(marginals.amax(1)[None], masked[None], passes_left)[0]
    places = [place for place, now in zip(reading.places, revealed.tolist(), strict=True) if now]
    return places, search.summed_out(paths, revealed)


def _continued(beginning: Beginning, places: list[int], fillings: Fillings) -> list[Beginning]:
    """The beginning with each of the fillings of these places."""
    masks = [place for place in beginning.masks if place not in places]
    continued = []
    for tokens, log_prob in zip(fillings.tokens.tolist(), fillings.log_prob.tolist(), strict=True):
        ids = list(beginning.ids)
        for place, token in zip(places, tokens, strict=True):
            ids[place] = token
        continued.append(Beginning(ids, masks, beginning.log_prob + log_prob))
    return continued


def _most_unlisted(fillings: Fillings, size: int) -> float:
    """How probable a filling that a search for the `size` best did not list can be at most
    (logarithm)."""
    if not fillings.proven:
        return 0.0
    # fewer than asked for are all that there are
    if len(fillings.tokens) < size:
        return -math.inf
    return float(fillings.log_prob[-1])
