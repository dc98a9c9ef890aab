"""Fillings in several passes of the network, by the policy of `exlm.model.passes`: each pass
reveals the masks that are most certain, and the next one reads their tokens. As in `exlm fill` in
one pass, only paths with one state in each mask count. A filling's probability is exact: every pass
sums over all tokens of the masks that it does not reveal.

The text with some of its masks filled in is a *beginning* of its fillings."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from exlm.filling import search
from exlm.filling.graphs import TokenizedText
from exlm.filling.search import Graph, TokenFillings
from exlm.model.passes import most_certain

READ_AT_ONCE = 8  # beginnings, in a beam search


@dataclass(frozen=True)
class SeveralPasses:
    """How to fill one text in several passes."""

    start: TokenizedText
    first: Graph  # what the first pass, which reads the start, says
    # yields the numbers and graphs of beginnings, in order, since these are equally long
    read: Callable[[list[TokenizedText]], Iterable[tuple[int, Graph]]]
    passes: int
    # the `search.kept_share` of every graph that was read
    kept_shares: list[float] = field(default_factory=list)

    def best(self, n_best: int, beam: int) -> tuple[list[TokenizedText], bool]:
        """The `n_best` most probable fillings that a beam search finds, each as the text with all
        masks filled in, the best first; and whether no missing one is more probable. Each pass
        keeps the `beam` best beginnings.

        A beginning is at least as probable as all fillings that continue it. So the search is exact
        if the n-th filling is at least as probable as every beginning that was dropped."""
        beginnings = [self.start]
        # the largest log-probability that a dropped beginning can have
        dropped_bound = -math.inf
        for passes_left in range(self.passes, 0, -1):
            size = n_best if passes_left == 1 else beam
            best = list[TokenizedText]()
            # Few at a time are read: often the later ones need not be.
            graphs = self._graphs_of_next_masks(beginnings, passes_left, READ_AT_ONCE)
            for beginning in beginnings:
                if len(best) == size and beginning.log_prob <= best[-1].log_prob:
                    # neither this nor a later beginning can enter the best
                    dropped_bound = max(dropped_bound, beginning.log_prob)
                    break
                graph = next(graphs)
                fillings = search.beam_search(graph, graph.num_masks, size, beam)
                best += _continued(beginning, graph, fillings)
                best.sort(key=lambda candidate: -candidate.log_prob)
                dropped = [candidate.log_prob for candidate in best[size:]]
                missing_bound = beginning.log_prob + fillings.missing_bound
                dropped_bound = max(dropped_bound, missing_bound, *dropped)
                best = best[:size]
            beginnings = best
        is_bounded = len(beginnings) == n_best and beginnings[-1].log_prob >= dropped_bound
        exact = is_bounded or dropped_bound == -math.inf
        return beginnings, exact

    def samples(self, count: int, seed: tuple[int, ...]) -> list[TokenizedText]:
        """`count` fillings sampled pass by pass; `seed`, the pass and the number of the beginning
        decide each."""
        beginnings = [self.start]
        for passes_left in range(self.passes, 0, -1):
            longer = list[TokenizedText]()
            # all from the start, then one from each beginning
            samples_of_each = count // len(beginnings)
            graphs = self._graphs_of_next_masks(beginnings, passes_left, at_once=count)
            for number, (beginning, graph) in enumerate(zip(beginnings, graphs, strict=True)):
                generator = search.generator(*seed, passes_left, number)
                fillings = search.sample(graph, graph.num_masks, samples_of_each, generator)
                longer += _continued(beginning, graph, fillings)
            beginnings = longer
        return beginnings

    def _graphs_of_next_masks(
        self, beginnings: list[TokenizedText], passes_left: int, at_once: int
    ) -> Iterator[Graph]:
        """For each beginning the graph of those masks alone that the next pass reveals; so many
        beginnings are read at once."""
        for start in range(0, len(beginnings), at_once):
            read_together = beginnings[start : start + at_once]
            is_first = passes_left == self.passes
            for number, graph in [(0, self.first)] if is_first else self.read(read_together):
                self.kept_shares.append(search.kept_share(graph))
                one_per_mask = search.with_one_per_mask(graph)
                masks = read_together[number].masks
                # In a model whose BOS and EOS have several states, a BOS or EOS that was filled in
                # has states, too: not all places of the graph are masks.
                is_mask = torch.isin(graph.places, torch.tensor(masks))
                # [masks, V] of every mask, over all paths
                marginals = search.visits(one_per_mask, graph.num_masks)[1:-1] @ graph.probs
                certainty = marginals.amax(1)
                is_revealed = most_certain(certainty[None], is_mask[None], passes_left)[0]
                yield search.summed_out(one_per_mask, is_revealed)


def _continued(
    beginning: TokenizedText, graph: Graph, fillings: TokenFillings
) -> list[TokenizedText]:
    """The beginning with each of the fillings of the masks in the graph."""
    places = graph.places.tolist()
    masks = [place for place in beginning.masks if place not in places]
    continued = []
    for row, log_prob in enumerate(fillings.log_prob.tolist()):
        filled_in = dict(zip(places, fillings.token_ids[row].tolist(), strict=True))
        token_ids = [filled_in.get(place, token) for place, token in enumerate(beginning.token_ids)]
        continued.append(TokenizedText(token_ids, masks, log_prob=beginning.log_prob + log_prob))
    return continued
