"""Fills texts: the network says what it knows of their masks, a search finds the fillings, and the
tokens of these become texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.drawing import Segment
from exlm.filling import graph_search
from exlm.filling.filled_text import FilledText, Filling, MaskState, most_probable_first
from exlm.filling.graph_search import Graph
from exlm.filling.graphs import MaskedText, graphs_of_texts, tokenize
from exlm.filling.options import TOKENS_PER_BATCH, FillOptions, allowed_tokens
from exlm.filling.templates import Template
from exlm.filling.text_search import Beginning, TextSearch
from exlm.model.masked_lm import ExLMForMaskedLM

TEXTS_AT_ONCE = 5000  # how many texts are filled before the first of them is yielded
TOP_TOKENS = 5  # how many tokens of each state to tell
RARE_PATHS_WARNING = (
    "these probabilities say little of the model, whose paths seldom have one state in every mask; "
    "see --free"
)


def fill_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    options: FillOptions | None = None,
    states: bool = False,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> Iterator[FilledText]:
    """Yields each text with its fillings, in order. The number of a text is part of the seed of its
    samples. A batch has at most `tokens_per_batch` positions after expansion."""
    filler = Filler(network, tokenizer, options or FillOptions(), tokens_per_batch, states)
    return filler.fill([FilledText(line, text) for line, text in enumerate(texts, 1)])


@dataclass(frozen=True)
class Filler:
    """Fills texts with a model by the same options."""

    network: ExLMForMaskedLM
    tokenizer: PreTrainedTokenizerFast
    options: FillOptions
    tokens_per_batch: int = TOKENS_PER_BATCH
    states: bool = False  # whether to tell the states of each mask, too

    @cached_property
    def allowed(self) -> Tensor | None:
        """[V] which tokens may be filled in; None: all."""
        return allowed_tokens(self.tokenizer, self.options, self.network.config.vocab_size)

    def fill(self, texts: Sequence[FilledText]) -> Iterator[FilledText]:
        """Yields each text with its fillings, or with the problem that it has, in order."""
        # A text with sites is filled once for each choice of their lengths.
        choices_of_texts = [text.choices for text in texts]
        filled_choices = self._fill_masks(list(chain.from_iterable(choices_of_texts)))
        for text, choices in zip(texts, choices_of_texts, strict=True):
            filled = list(islice(filled_choices, len(choices)))
            yield filled[0] if text.template is None else _merge(text, text.template, filled)

    def _fill_masks(self, texts: Sequence[FilledText]) -> Iterator[FilledText]:
        """As `fill`, for texts with masks, of which TEXTS_AT_ONCE are filled together."""
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            chunk = texts[start : start + TEXTS_AT_ONCE]
            # An empty text, which is not filled, takes the place of a text that has a problem.
            usable = ["" if text.problem else text.text for text in chunk]
            masked_texts = tokenize(self.network, self.tokenizer, usable)
            filled_texts = [
                replace(text, problem=text.problem or masked_text.problem)
                for text, masked_text in zip(chunk, masked_texts, strict=True)
            ]
            for number, graph in self.graphs(masked_texts):
                filled_texts[number] = self.fill_graph(chunk[number], masked_texts[number], graph)
            yield from filled_texts

    def graphs(self, texts: Sequence[MaskedText]) -> Iterator[tuple[int, Graph]]:
        """The numbers and the graphs of `graphs_of_texts`, restricted as the options say."""
        graphs = graphs_of_texts(self.network, self.tokenizer, texts, self.tokens_per_batch)
        for number, graph in graphs:
            yield number, self.restrict(graph)

    def restrict(self, graph: Graph) -> Graph:
        """The graph with the tokens that the options allow, at their temperature."""
        return graph_search.restrict(graph, self.allowed, self.options.temperature)

    def fill_graph(self, text: FilledText, masked_text: MaskedText, graph: Graph) -> FilledText:
        """The text with its fillings; `graph` is what the first pass says of it. Its line is part
        of the seed of samples."""
        options = self.options
        paths, probability_of_length = self._allowed_paths(graph)
        if not probability_of_length:
            token_count = options.tokens or graph.num_masks
            state_count = len(graph.links) - 2
            problem = f"no path puts {token_count} tokens into its masks ({state_count} states)"
            return replace(text, problem=problem)
        text_search = TextSearch(masked_text, paths, graph, self.graphs, options)
        fillings: list[Filling] = []
        exact = None if options.samples else True
        for length, probability in probability_of_length.items():
            if options.samples is not None:
                results = text_search.sample(length, text.line)
            else:
                results, is_exact = text_search.find_best(length)
                exact = exact and is_exact
            # With one token for each mask there is no other length.
            length_probability = probability if options.all_paths else None
            for result in results:
                fillings.append(self._make_filling(masked_text, result, length_probability))
        kept = None
        if not options.all_paths:
            kept = min([graph_search.kept_share(graph), *text_search.kept_shares])
        path_warning = RARE_PATHS_WARNING if kept is not None and kept < 0.5 else ""
        return replace(
            text,
            fillings=most_probable_first(fillings),
            exact=exact,
            kept=kept,
            passes=text_search.passes,
            states=self.states_of_masks(graph) if self.states and fillings else None,
            warning="; ".join(filter(None, [masked_text.warning, path_warning])) or None,
        )

    def _allowed_paths(self, graph: Graph) -> tuple[Graph, dict[int, float]]:
        """The graph with only the paths that the options allow, and the probability of each number
        of tokens that they ask for and that a path has."""
        masks = graph.num_masks
        if not self.options.all_paths:
            paths = graph_search.with_one_per_mask(graph)
            has_path = graph_search.log_weight_of_all_paths(paths.links, masks) > -torch.inf
            return paths, {masks: 1.0} if has_path else {}
        distribution = graph_search.length_distribution(graph.links).exp().tolist()
        allowed_lengths = self.options.lengths or [masks]
        return graph, {n: p for n, p in enumerate(distribution) if p > 0 and n in allowed_lengths}

    def _make_filling(
        self, masked_text: MaskedText, result: Beginning, length_probability: float | None
    ) -> Filling:
        """The filling of a result of a search, which has the tokens of all masks."""
        segments = self.segments(masked_text, result.ids_of_masks)
        ids_of_masks = [result.ids_of_masks[place] for place in masked_text.masks]
        return Filling(
            text="".join(text for text, _ in segments),
            tokens=[list(self.tokenizer.convert_ids_to_tokens(ids)) for ids in ids_of_masks],
            log_probability=result.log_prob,
            path=result.path,
            length_probability=length_probability,
            segments=segments,
        )

    def segments(
        self, masked_text: MaskedText, ids_of_masks: dict[int, list[int]]
    ) -> list[Segment]:
        """The filled text in segments: what stands between the masks, and what fills each mask."""
        pieces: list[tuple[list[int], int | None]] = []  # tokens, and the mask that they fill
        start = 1  # the first token and the last one are BOS and EOS
        for mask, place in enumerate(masked_text.masks):
            pieces += [(masked_text.token_ids[start:place], None), (ids_of_masks[place], mask)]
            start = place + 1
        pieces.append((masked_text.token_ids[start:-1], None))
        token_ids: list[int] = []
        texts = [""]
        for piece, _ in pieces:
            token_ids += piece
            texts.append(str(self.tokenizer.decode(token_ids)))
        # A character may be spread over tokens of two segments. Then only one of them gets it.
        limits = pairwise(accumulate(map(len, texts), max))
        return [
            (texts[-1][start:end], mask)
            for (start, end), (_, mask) in zip(limits, pieces, strict=True)
        ]

    def describe_states(self, graph: Graph, token_count: int = TOP_TOKENS) -> list[MaskState]:
        """Every state of the graph, BOS and EOS included, with its `token_count` most probable
        tokens; the weights are probabilities among the paths that the options allow."""
        paths, probability_of_length = self._allowed_paths(graph)
        visits = [
            p * graph_search.visits(paths, n).sum(0) for n, p in probability_of_length.items()
        ]
        weights = torch.stack(visits).sum(0) / sum(probability_of_length.values())
        top = graph.probs.topk(min(token_count, graph.probs.shape[1]), dim=1)
        states = []
        for state, weight in enumerate(weights.tolist()):
            spellings = map(self._spelling, top.indices[state].tolist())
            top_tokens = zip(spellings, top.values[state].tolist(), strict=True)
            states.append(MaskState(weight, list(top_tokens)))
        return states

    def states_of_masks(self, graph: Graph) -> list[list[MaskState]]:
        """The states of each mask; the states of BOS and EOS are left out."""
        states = self.describe_states(graph)
        targets = graph.target_of_state
        masks = range(1, graph.num_masks + 1)
        return [[states[state] for state in (targets == mask).nonzero()[:, 0]] for mask in masks]

    def _spelling(self, token_id: int) -> str:
        """A token as text, or by its name in the vocabulary if nothing of it can be seen."""
        text = str(self.tokenizer.decode([token_id])).strip()
        is_visible = bool(text) and text.isprintable()
        return text if is_visible else str(self.tokenizer.convert_ids_to_tokens(token_id))


def _merge(text: FilledText, template: Template, choices: list[FilledText]) -> FilledText:
    """The text with the fillings of all choices of the lengths of its sites."""
    usable = [choice for choice in choices if choice.problem is None]
    problems = [choice.problem for choice in choices if choice.problem is not None]
    if not usable:
        return replace(text, problem=problems[0])
    fillings: list[Filling] = []
    # All choices are taken to be equally probable.
    probability = 1 / len(usable)
    for choice, sites in zip(choices, template.sites_of_masks, strict=True):
        for filling in choice.fillings:
            filling_of_sites = replace(
                filling, masked=choice.text, site_of_mask=sites, length_probability=probability
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
