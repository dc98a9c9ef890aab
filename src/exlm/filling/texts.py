"""Fills texts: reads them with the model, searches their fillings, and decodes these."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from exlm.filling import search
from exlm.filling.graphs import MaskedText, all_graphs, encode
from exlm.filling.options import FillOptions
from exlm.filling.records import FilledText, Filling
from exlm.filling.search import Fillings, Graph
from exlm.filling.several_passes import ReadBeginnings, read_beginnings, search_in_passes
from exlm.filling.tokens import allowed_tokens
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import passes_needed
from exlm.randomness import Purpose, draw

TEXTS = 5000  # how many texts are filled before the first of them is yielded


def fill_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    options: FillOptions | None = None,
    states: bool = False,
    tokens_per_batch: int = 4096,
    first_line: int = 1,
) -> Iterator[FilledText]:
    """Yields each text with its fillings, in order. TEXTS texts are filled at a time. The number of
    the first line is part of the seed of samples."""
    options = options or FillOptions()
    restrict = restriction(network, tokenizer, options)
    read_graphs = partial(read_beginnings, network, tokenizer, tokens_per_batch, restrict)
    for start in range(0, len(texts), TEXTS):
        chunk = texts[start : start + TEXTS]
        masked_texts = encode(network, tokenizer, chunk)
        lines = range(first_line + start, first_line + start + len(chunk))
        filled_texts = [
            FilledText(line, text, problem=masked_text.problem)
            for line, text, masked_text in zip(lines, chunk, masked_texts, strict=True)
        ]
        for number, graph in all_graphs(network, tokenizer, masked_texts, tokens_per_batch):
            graph = restrict(graph)
            masked_text = masked_texts[number]
            empty = filled_texts[number]
            if options.most_passes == 1:
                filled = fill_graph(empty, masked_text, graph, tokenizer, options)
            else:
                filled = fill_in_passes(empty, masked_text, graph, read_graphs, tokenizer, options)
            if states and filled.fillings:
                filled = replace(filled, states=_states_of_masks(graph, options, tokenizer))
            filled_texts[number] = filled
        yield from filled_texts


def restriction(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, options: FillOptions
) -> Callable[[Graph], Graph]:
    """What makes a graph one of the tokens that the options allow, at their temperature."""
    allowed = allowed_tokens(tokenizer, options, network.config.vocab_size)
    return partial(search.restricted, allowed=allowed, temperature=options.temperature)


def fill_graph(
    empty: FilledText,
    masked_text: MaskedText,
    graph: Graph,
    tokenizer: PreTrainedTokenizerFast,
    options: FillOptions,
) -> FilledText:
    """The text `empty` with its fillings in one pass. Its line is part of the seed of samples."""
    counted, lengths = counted_paths(graph, options)
    if not lengths:
        tokens = options.tokens or graph.num_masks
        states = len(graph.links) - 2
        problem = f"no path puts {tokens} tokens into its masks ({states} states)"
        return replace(empty, problem=problem)
    fillings = []
    proven = True
    for length, probability in lengths.items():
        of_length = _search(counted, length, options, empty.line)
        proven = proven and of_length.proven
        length_probability = probability if options.all_paths else None
        fillings += _decoded(of_length, graph, masked_text, tokenizer, length_probability)
    share = None if options.all_paths else search.share_one_per_mask(graph)
    return replace(
        empty,
        fillings=fillings,
        exact=proven if options.finds_best else None,
        kept=share,
        passes=1,
        warning=_warning(share),
    )


def fill_in_passes(
    empty: FilledText,
    masked_text: MaskedText,
    graph: Graph,
    read_graphs: ReadBeginnings,
    tokenizer: PreTrainedTokenizerFast,
    options: FillOptions,
) -> FilledText:
    """The text `empty` with its fillings in several passes. `graph` is the first pass;
    `read_graphs` makes the others (`exlm.filling.several_passes`). Its line is part of the seed of
    samples."""
    passes = passes_needed(options.most_passes, len(masked_text.masks))
    result = search_in_passes(graph, masked_text, read_graphs, passes, options, empty.line)
    fillings = []
    for beginning in result.fillings:
        tokens = [[_token(tokenizer, beginning.ids[place])] for place in masked_text.masks]
        text = str(tokenizer.decode(beginning.ids[1:-1]))
        fillings.append(Filling(text, tokens, beginning.log_prob))
    return replace(
        empty,
        fillings=fillings,
        exact=result.proven if options.finds_best else None,
        kept=result.share_one_per_mask,
        passes=passes,
        warning=_warning(result.share_one_per_mask),
    )


def _warning(share_one_per_mask: float | None) -> str | None:
    if share_one_per_mask is None or share_one_per_mask >= 0.5:
        return None
    return (
        "these probabilities say little of the model, whose paths seldom have one state in "
        "every mask; see --free"
    )


def counted_paths(graph: Graph, options: FillOptions) -> tuple[Graph, dict[int, float]]:
    """The graph with only the paths that `options` allow, and the probability of each number of
    tokens they ask for."""
    counted = graph if options.all_paths else search.one_per_mask(graph)
    allowed_lengths = options.lengths or [graph.num_masks]
    probabilities = {}
    distribution = search.length_distribution(counted.links).exp().tolist()
    for length, probability in enumerate(distribution):
        if length in allowed_lengths and probability > 0:
            probabilities[length] = probability
    return counted, probabilities


def _search(counted: Graph, length: int, options: FillOptions, line: int) -> Fillings:
    if options.method == "viterbi":
        return search.viterbi(counted, length)
    if options.samples is not None:
        seed = draw(Purpose.SAMPLED_FILLING, options.seed, line, length)
        generator = torch.Generator().manual_seed(int(seed) >> 1)
        return search.sample(counted, length, options.samples, generator)
    return search.beam_search(counted, length, options.n_best, options.beam)


def _decoded(
    fillings: Fillings,
    graph: Graph,
    masked_text: MaskedText,
    tokenizer: PreTrainedTokenizerFast,
    length_probability: float | None,
) -> list[Filling]:
    """Fillings of equal length as texts."""
    # If BOS or EOS has several states, a token emitted by one of them goes to the nearest mask.
    mask_of_token = graph.mask_of_state[fillings.path].clamp(0, graph.num_masks - 1)
    decoded = []
    for row, log_prob in enumerate(fillings.log_prob.tolist()):
        token_ids = fillings.token_ids[row]
        by_mask = [
            token_ids[mask_of_token[row] == mask].tolist() for mask in range(graph.num_masks)
        ]
        path_probability = None
        if fillings.path_log_prob is not None:
            path_probability = float(fillings.path_log_prob.exp())
        filling = Filling(
            text=str(tokenizer.decode(list(chain(*filled_in(masked_text, by_mask))))),
            tokens=[[_token(tokenizer, token) for token in tokens] for tokens in by_mask],
            log_probability=log_prob,
            path_probability=path_probability,
            length_probability=length_probability,
        )
        decoded.append(filling)
    return decoded


def filled_in(masked_text: MaskedText, by_mask: list[list[int]]) -> list[list[int]]:
    """The filled text, without BOS and EOS, as 2 M + 1 lists of tokens: in turn the tokens outside
    the masks and those that fill a mask."""
    limits = [0, *masked_text.masks, len(masked_text.ids) - 1]
    first, *others = [masked_text.ids[start + 1 : end] for start, end in pairwise(limits)]
    return [first, *chain.from_iterable(zip(by_mask, others, strict=True))]


def describe_states(
    graph: Graph, options: FillOptions, count: int, spell: Callable[[int], Any]
) -> list[dict[str, Any]]:
    """For every state, its `weight`, the probability that a path allowed by `options` visits it,
    and the `count` most probable `words`, each spelled and with its probability."""
    counted, lengths = counted_paths(graph, options)
    visits = [p * search.visits(counted, length).sum(0) for length, p in lengths.items()]
    weights = torch.stack(visits).sum(0) / sum(lengths.values())
    top = graph.probs.topk(min(count, graph.probs.shape[1]), dim=1)
    states = []
    for weight, tokens, probs in zip(
        weights.tolist(), top.indices.tolist(), top.values.tolist(), strict=True
    ):
        words = [[spell(token), prob] for token, prob in zip(tokens, probs, strict=True)]
        states.append({"weight": weight, "words": words})
    return states


def spell(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    """A token as a word, or by its name in the vocabulary if nothing of it can be seen."""
    text = str(tokenizer.decode([token])).strip()
    return text if text and text.isprintable() else _token(tokenizer, token)


def _token(tokenizer: PreTrainedTokenizerFast, token: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(token))


def _states_of_masks(
    graph: Graph, options: FillOptions, tokenizer: PreTrainedTokenizerFast
) -> list[list[dict[str, Any]]]:
    """The states of each mask, without those of BOS and EOS."""
    states = describe_states(graph, options, 5, partial(spell, tokenizer))
    states_of_masks: list[list[dict[str, Any]]] = [[] for _ in range(graph.num_masks)]
    for mask, state in zip(graph.mask_of_state.tolist(), states, strict=True):
        if 0 <= mask < graph.num_masks:
            states_of_masks[mask].append(state)
    return states_of_masks
