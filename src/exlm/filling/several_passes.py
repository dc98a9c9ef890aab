"""Fillings in several passes of the network, by the policy of `exlm.model.passes`: each pass
reveals the masks that are most certain, and the next one reads their tokens. As in `exlm fill` in
one pass, only paths with one state in each mask count. A filling's probability is the product over
its passes, and exact: every pass sums over all tokens of the masks that it does not reveal."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from exlm.filling import search
from exlm.filling.graphs import MaskedText, all_graphs
from exlm.filling.options import FillOptions
from exlm.filling.search import Fillings, Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import most_certain
from exlm.randomness import Purpose, draw

READ_AT_ONCE = 8  # beginnings, in a beam search


@dataclass(frozen=True)
class Beginning:
    """A text of which some masks are revealed."""

    ids: list[int]
    masks: list[int]  # the places that are still masked
    log_prob: float  # the log-probability of all revealed tokens together


class BeginningGraph(NamedTuple):
    """What the network says about a beginning."""

    graph: Graph
    # the places in the text of everything that has states in the graph, from left to right
    places: list[int]


class PassesResult(NamedTuple):
    """What a search in several passes found."""

    # Filled texts: the best first, but samples in the order in which they were drawn.
    fillings: list[Beginning]
    # whether no missing filling is more probable than the last one; only `beam_in_passes` proves it
    proven: bool
    # the smallest `search.share_one_per_mask` of all graphs that were read
    share_one_per_mask: float


# reads beginnings with the network; see `read_beginnings`
ReadBeginnings = Callable[[list[Beginning]], Iterable[BeginningGraph]]


def read_beginnings(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int,
    restrict: Callable[[Graph], Graph],
    beginnings: Sequence[Beginning],
) -> Iterator[BeginningGraph]:
    """What the network says about beginnings of fillings of one text, in their order, made a graph
    of allowed tokens by `restrict`."""
    masked_texts = [MaskedText(beginning.ids, beginning.masks) for beginning in beginnings]
    # All are equally long, so their order is kept.
    for number, graph in all_graphs(network, tokenizer, masked_texts, tokens_per_batch):
        yield BeginningGraph(restrict(graph), _places(network, masked_texts[number]))


def _places(network: ExLMForMaskedLM, masked_text: MaskedText) -> list[int]:
    """The places in the text that have states: its masks, and with k boundary states also a
    revealed BOS or EOS."""
    config = network.config
    ends = {config.bos_token_id, config.eos_token_id} if config.states_per_boundary > 1 else set()
    inside = range(1, len(masked_text.ids) - 1)
    ids = masked_text.ids
    return [place for place in inside if place in masked_text.masks or ids[place] in ends]


def search_in_passes(
    graph: Graph,
    masked_text: MaskedText,
    read_graphs: ReadBeginnings,
    passes: int,
    options: FillOptions,
    line: int,
) -> PassesResult:
    """Fillings of one text by the method of `options`. `graph` is the first pass, `read_graphs`
    makes the others. The number of the line is part of the seed of samples."""
    start = Beginning(masked_text.ids, masked_text.masks, 0.0)
    first = BeginningGraph(graph, masked_text.masks)
    if options.samples is not None:
        seed = (options.seed, line, len(masked_text.masks))
        return sample_in_passes(start, first, read_graphs, passes, options.samples, seed)
    search_of_width = partial(beam_in_passes, start, first, read_graphs, passes, options.n_best)
    # A narrow search takes less time, and mostly proves that it missed nothing.
    width = min(2 * options.n_best, options.beam)
    result = search_of_width(width)
    if result.proven or width == options.beam:
        return result
    return search_of_width(options.beam)


def beam_in_passes(
    start: Beginning,
    first: BeginningGraph,
    read_graphs: ReadBeginnings,
    passes: int,
    n_best: int,
    width: int,
) -> PassesResult:
    """The `n_best` most probable fillings that a beam search finds; each pass keeps the `width`
    best beginnings.

    A beginning is at least as probable as all fillings that continue it. So the search has proven
    that it found the best if the n-th filling is at least as probable as every beginning that was
    dropped or not listed."""
    beginnings = [start]
    # how probable a filling that is not among the results can be at most (logarithm)
    dropped_bound = -math.inf
    smallest_share = 1.0
    for passes_left in range(passes, 0, -1):
        graphs = iter([first])
        if passes_left < passes:
            # Few at a time: often the later ones need not be read.
            graphs = chain.from_iterable(map(read_graphs, _in_parts(beginnings, READ_AT_ONCE)))
        size = n_best if passes_left == 1 else width
        best = list[Beginning]()
        for beginning in beginnings:
            if len(best) == size and beginning.log_prob <= best[-1].log_prob:
                # neither this nor a later beginning can enter the best
                dropped_bound = max(dropped_bound, beginning.log_prob)
                break
            beginning_graph = next(graphs)
            places, revealed_graph = _revealed(beginning, beginning_graph, passes_left)
            fillings = search.beam_search(revealed_graph, len(places), size, width)
            longer = [*best, *_continued(beginning, places, fillings)]
            longer.sort(key=lambda candidate: -candidate.log_prob)
            best = longer[:size]
            if len(longer) > size:
                dropped_bound = max(dropped_bound, longer[size].log_prob)
            unlisted_bound = beginning.log_prob + _unlisted_bound(fillings, size)
            dropped_bound = max(dropped_bound, unlisted_bound)
            share = search.share_one_per_mask(beginning_graph.graph)
            smallest_share = min(smallest_share, share)
        beginnings = best
    proven = len(beginnings) == n_best and beginnings[-1].log_prob >= dropped_bound
    return PassesResult(beginnings, proven or dropped_bound == -math.inf, smallest_share)


def _in_parts(beginnings: list[Beginning], size: int) -> Iterator[list[Beginning]]:
    for start in range(0, len(beginnings), size):
        yield beginnings[start : start + size]


def sample_in_passes(
    start: Beginning,
    first: BeginningGraph,
    read_graphs: ReadBeginnings,
    passes: int,
    count: int,
    seed: tuple[int, ...],
) -> PassesResult:
    """`count` fillings drawn pass by pass; `seed`, the pass and the number of the beginning decide
    each draw."""
    beginnings = [start]
    smallest_share = 1.0
    for passes_left in range(passes, 0, -1):
        graphs = [first] if passes_left == passes else read_graphs(beginnings)
        longer = list[Beginning]()
        # all from the start, then one from each beginning
        draws = count // len(beginnings)
        for number, (beginning, beginning_graph) in enumerate(zip(beginnings, graphs, strict=True)):
            places, revealed_graph = _revealed(beginning, beginning_graph, passes_left)
            bits = draw(Purpose.SAMPLED_FILLING, *seed, passes_left, number)
            generator = torch.Generator().manual_seed(int(bits) >> 1)
            fillings = search.sample(revealed_graph, len(places), draws, generator)
            longer += _continued(beginning, places, fillings)
            share = search.share_one_per_mask(beginning_graph.graph)
            smallest_share = min(smallest_share, share)
        beginnings = longer
    return PassesResult(beginnings, False, smallest_share)


def _revealed(
    beginning: Beginning, beginning_graph: BeginningGraph, passes_left: int
) -> tuple[list[int], Graph]:
    """The places that the next pass reveals, and the graph of their masks alone."""
    graph = search.one_per_mask(beginning_graph.graph)
    masked = torch.tensor([place in beginning.masks for place in beginning_graph.places])
    # [masks, V] of every mask, over all paths
    marginals = search.visits(graph, graph.num_masks)[1:-1] @ graph.probs
    is_revealed = most_certain(marginals.amax(1)[None], masked[None], passes_left)[0]
    places = list(compress(beginning_graph.places, is_revealed.tolist()))
    return places, search.summed_out(graph, is_revealed)


def _continued(beginning: Beginning, places: list[int], fillings: Fillings) -> list[Beginning]:
    """The beginning with each of the fillings of these places."""
    masks = [place for place in beginning.masks if place not in places]
    continued = []
    for tokens, log_prob in zip(
        fillings.token_ids.tolist(), fillings.log_prob.tolist(), strict=True
    ):
        ids = list(beginning.ids)
        for place, token in zip(places, tokens, strict=True):
            ids[place] = token
        continued.append(Beginning(ids, masks, beginning.log_prob + log_prob))
    return continued


def _unlisted_bound(fillings: Fillings, size: int) -> float:
    """How probable a filling that a search for the `size` best did not list can be at most
    (logarithm)."""
    if not fillings.proven:
        return 0.0
    # If there are fewer than asked for, these are all.
    if len(fillings.token_ids) < size:
        return -math.inf
    return float(fillings.log_prob[-1])
