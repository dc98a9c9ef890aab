"""Searches the fillings of one text, in one pass of the network or in several. Several follow the
policy of `exlm.model.passes`: each pass reveals the masks that are most certain, and the next one
reads their tokens. Only paths with one state in each mask count there. A filling's probability is
exact: every pass sums over all tokens of the masks that it does not reveal."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch

from exlm.filling import graph_search
from exlm.filling.graph_search import Graph, TokenFillings
from exlm.filling.graphs import MaskedText
from exlm.filling.options import FillOptions
from exlm.model.passes import most_certain, passes_needed

READ_AT_ONCE = 8  # beginnings, in a beam search


@dataclass(frozen=True)
class Beginning:
    """The tokens of some masks of a text; with the tokens of all masks, a whole filling."""

    ids_of_masks: dict[int, list[int]]  # by the place of the mask
    log_prob: float  # of all these tokens together
    path: list[int] | None = None  # the state of each token, if one pass filled them in


EMPTY = Beginning({}, 0.0)


@dataclass(frozen=True)
class TextSearch:
    """A search of the fillings of one text."""

    text: MaskedText
    allowed_paths: Graph  # the paths of the first pass that the options allow
    first_graph: Graph  # all paths of the first pass
    # yields the number and the graph of each text; in order, if they are equally long
    read: Callable[[list[MaskedText]], Iterable[tuple[int, Graph]]]
    options: FillOptions
    # the `graph_search.kept_share` of every graph of a later pass, which the search adds
    kept_shares: list[float] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How many passes fill all masks."""
        return passes_needed(self.options.most_passes, len(self.text.masks))

    def find_best(self, length: int) -> tuple[list[Beginning], bool]:
        """The `n_best` most probable fillings of `length` tokens that a beam search finds, the best
        first, and whether no missing one is more probable."""
        n_best, beam = self.options.n_best, self.options.beam
        if self.passes == 1:
            fillings = graph_search.beam_search(self.allowed_paths, length, n_best, beam)
            return _continue(EMPTY, self.allowed_paths, fillings), fillings.exact
        # A narrow search takes less time, and is mostly exact.
        narrow = min(2 * n_best, beam)
        beginnings, exact = self._find_best_in_passes(narrow)
        if not exact and narrow < beam:
            beginnings, exact = self._find_best_in_passes(beam)
        return beginnings, exact

    def _find_best_in_passes(self, beam: int) -> tuple[list[Beginning], bool]:
        """As `find_best`, in several passes. Each pass keeps the `beam` best beginnings.

        A beginning is at least as probable as all fillings that continue it. So the search is exact
        if the n-th filling is at least as probable as every beginning that was dropped."""
        beginnings = [EMPTY]
        # the largest log-probability that a dropped beginning can have
        dropped_bound = -math.inf
        for passes_left in range(self.passes, 0, -1):
            size = self.options.n_best if passes_left == 1 else beam
            best = list[Beginning]()
            # Few at a time are read: often the later ones need not be.
            graphs = self._graphs_of_next_masks(beginnings, passes_left, READ_AT_ONCE)
            for beginning in beginnings:
                if len(best) == size and beginning.log_prob <= best[-1].log_prob:
                    # neither this nor a later beginning can enter the best
                    dropped_bound = max(dropped_bound, beginning.log_prob)
                    break
                graph = next(graphs)
                fillings = graph_search.beam_search(graph, graph.num_masks, size, beam)
                best += _continue(beginning, graph, fillings)
                best.sort(key=lambda candidate: -candidate.log_prob)
                dropped = [candidate.log_prob for candidate in best[size:]]
                missing_bound = beginning.log_prob + fillings.missing_bound
                dropped_bound = max(dropped_bound, missing_bound, *dropped)
                best = best[:size]
            beginnings = best
        is_bounded = len(best) == size and best[-1].log_prob >= dropped_bound
        return best, is_bounded or dropped_bound == -math.inf

    def sample(self, length: int, line: int) -> list[Beginning]:
        """Fillings of `length` tokens, sampled pass by pass. The seed, the line of the text, the
        length and in several passes the pass and the number of the beginning decide each."""
        count = self.options.samples or 0
        seed = (self.options.seed, line, length)
        # Not `passes`: if several are asked for, the seeds name the pass, also of a single mask.
        if self.options.most_passes == 1:
            generator = graph_search.make_generator(*seed)
            fillings = graph_search.sample(self.allowed_paths, length, count, generator)
            return _continue(EMPTY, self.allowed_paths, fillings)
        beginnings = [EMPTY]
        for passes_left in range(self.passes, 0, -1):
            longer = list[Beginning]()
            # all from the start, then one from each beginning
            samples_of_each = count // len(beginnings)
            graphs = self._graphs_of_next_masks(beginnings, passes_left, at_once=count)
            for number, (beginning, graph) in enumerate(zip(beginnings, graphs, strict=True)):
                generator = graph_search.make_generator(*seed, passes_left, number)
                fillings = graph_search.sample(graph, graph.num_masks, samples_of_each, generator)
                longer += _continue(beginning, graph, fillings)
            beginnings = longer
        return beginnings

    def _graphs_of_next_masks(
        self, beginnings: list[Beginning], passes_left: int, at_once: int
    ) -> Iterator[Graph]:
        """For each beginning the graph of the masks that the next pass reveals. The network reads
        `at_once` beginnings together."""
        if passes_left == self.passes:
            yield _most_certain_masks(self.first_graph, self.text.masks, passes_left)
            return
        for start in range(0, len(beginnings), at_once):
            texts = [self.text.fill_in(b.ids_of_masks) for b in beginnings[start : start + at_once]]
            for number, graph in self.read(texts):
                self.kept_shares.append(graph_search.kept_share(graph))
                yield _most_certain_masks(graph, texts[number].masks, passes_left)


def _most_certain_masks(graph: Graph, masks: list[int], passes_left: int) -> Graph:
    """The graph of only the masks that the next pass reveals, with one state in each path."""
    one_per_mask = graph_search.with_one_per_mask(graph)
    # In a model whose BOS and EOS have several states, a BOS or EOS that was filled in has states,
    # too: not all places of the graph are masks.
    is_mask = torch.isin(graph.places, torch.tensor(masks))
    certainty = graph_search.marginals(one_per_mask).amax(1)
    is_revealed = most_certain(certainty[None], is_mask[None], passes_left)[0]
    return graph_search.sum_out(one_per_mask, is_revealed)


def _continue(beginning: Beginning, graph: Graph, fillings: TokenFillings) -> list[Beginning]:
    """The beginning with each of the fillings of the masks in the graph."""
    beginnings = []
    log_probs = (beginning.log_prob + fillings.log_prob).tolist()
    for tokens, log_prob, path in zip(fillings.token_ids, log_probs, fillings.path, strict=True):
        # A token of a state of BOS or EOS, which may have several, goes to the nearest mask.
        mask_of_token = graph.target_of_state[path].clamp(1, graph.num_masks)
        ids_of_masks = dict(beginning.ids_of_masks)
        for mask, place in enumerate(graph.places.tolist(), 1):
            ids_of_masks[place] = tokens[mask_of_token == mask].tolist()
        is_first = not beginning.ids_of_masks
        beginnings.append(Beginning(ids_of_masks, log_prob, path.tolist() if is_first else None))
    return beginnings
