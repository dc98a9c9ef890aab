"""Fills texts with masks: the network says what it knows of them, a search finds their fillings,
and the tokens of these become texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from exlm.data.drawing import Segment
from exlm.filling import search
from exlm.filling.graphs import TokenizedText, graphs_of_texts, tokenize
from exlm.filling.options import TOKENS_PER_BATCH, FillOptions, allowed_tokens
from exlm.filling.results import FilledText, Filling, InputText, most_probable_first
from exlm.filling.search import Graph
from exlm.filling.several_passes import SeveralPasses
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import passes_needed

TEXTS = 5000  # how many texts are filled before the first of them is yielded
TOP_TOKENS = 5  # how many tokens of each state to tell
RARE_PATHS = (
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
    filler = Filler(network, tokenizer, options or FillOptions(), tokens_per_batch)
    return filler.fill([InputText(line, text) for line, text in enumerate(texts, 1)], states)


@dataclass(frozen=True)
class Filler:
    """Fills texts with a model by the same options."""

    network: ExLMForMaskedLM
    tokenizer: PreTrainedTokenizerFast
    options: FillOptions
    tokens_per_batch: int = TOKENS_PER_BATCH

    @cached_property
    def allowed(self) -> Tensor | None:
        """[V] which tokens may be filled in; None: all."""
        return allowed_tokens(self.tokenizer, self.options, self.network.config.vocab_size)

    def fill(self, texts: Sequence[InputText], states: bool = False) -> Iterator[FilledText]:
        """Yields each text with its fillings, or with the problem that it has, in order. TEXTS
        texts are filled at a time."""
        for start in range(0, len(texts), TEXTS):
            chunk = texts[start : start + TEXTS]
            # A text that has a problem already is not filled.
            usable = ["" if text.problem else text.text for text in chunk]
            tokenized_texts = tokenize(self.network, self.tokenizer, usable)
            filled_texts = [
                text.filled(problem=text.problem or tokenized.problem)
                for text, tokenized in zip(chunk, tokenized_texts, strict=True)
            ]
            for number, graph in self.graphs(tokenized_texts):
                filled = self._fill_graph(chunk[number], tokenized_texts[number], graph)
                if states and filled.fillings:
                    filled = replace(filled, states=self.states_of_masks(graph))
                filled_texts[number] = filled
            yield from filled_texts

    def graphs(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[int, Graph]]:
        """The numbers and the graphs of `graphs_of_texts`, with the tokens that the options allow,
        at their temperature."""
        graphs = graphs_of_texts(self.network, self.tokenizer, texts, self.tokens_per_batch)
        for number, graph in graphs:
            yield number, search.restricted(graph, self.allowed, self.options.temperature)

    def _fill_graph(self, text: InputText, tokenized: TokenizedText, graph: Graph) -> FilledText:
        """The text with its fillings; `graph` is what the first pass says of it. Its line is part
        of the seed of samples."""
        if self.options.most_passes == 1:
            filled = self._fill_in_one_pass(text, tokenized, graph)
        else:
            filled = self._fill_in_several_passes(text, tokenized, graph)
        is_rare = filled.kept is not None and filled.kept < 0.5
        return replace(
            filled,
            fillings=most_probable_first(filled.fillings),
            warning=RARE_PATHS if is_rare else None,
        )

    def _fill_in_one_pass(
        self, text: InputText, tokenized: TokenizedText, graph: Graph
    ) -> FilledText:
        options = self.options
        paths, lengths = self._allowed_paths(graph)
        if not lengths:
            token_count = options.tokens or graph.num_masks
            state_count = len(graph.links) - 2
            problem = f"no path puts {token_count} tokens into its masks ({state_count} states)"
            return text.filled(problem=problem)
        fillings: list[Filling] = []
        exact = None if options.samples else True
        for length, probability in lengths.items():
            if options.samples is not None:
                generator = search.generator(options.seed, text.line, length)
                of_length = search.sample(paths, length, options.samples, generator)
            else:
                of_length = search.beam_search(paths, length, options.n_best, options.beam)
                exact = exact and of_length.exact
            for ids_of_masks, log_prob, path in of_length.by_mask(graph):
                filling = self._filling(tokenized, ids_of_masks, log_prob)
                # With one token for each mask there is no other length.
                length_probability = probability if options.all_paths else None
                fillings.append(replace(filling, path=path, length_probability=length_probability))
        kept = None if options.all_paths else search.kept_share(graph)
        return text.filled(fillings=fillings, exact=exact, kept=kept, passes=1)

    def _fill_in_several_passes(
        self, text: InputText, tokenized: TokenizedText, graph: Graph
    ) -> FilledText:
        options = self.options
        passes = passes_needed(options.most_passes, len(tokenized.masks))
        several = SeveralPasses(tokenized, graph, self.graphs, passes)
        exact = None
        if options.samples is not None:
            seed = (options.seed, text.line, len(tokenized.masks))
            whole_texts = several.samples(options.samples, seed)
        else:
            # A narrow search takes less time, and is mostly exact.
            narrow = min(2 * options.n_best, options.beam)
            whole_texts, exact = several.best(options.n_best, narrow)
            if not exact and narrow < options.beam:
                whole_texts, exact = several.best(options.n_best, options.beam)
        fillings = []
        for whole in whole_texts:
            ids_of_masks = [[whole.token_ids[place]] for place in tokenized.masks]
            fillings.append(self._filling(tokenized, ids_of_masks, whole.log_prob))
        kept = min(several.kept_shares)
        return text.filled(fillings=fillings, exact=exact, kept=kept, passes=passes)

    def _allowed_paths(self, graph: Graph) -> tuple[Graph, dict[int, float]]:
        """The graph with only the paths that the options allow, and the probability of each number
        of tokens they ask for."""
        paths = graph if self.options.all_paths else search.with_one_per_mask(graph)
        allowed_lengths = self.options.lengths or [graph.num_masks]
        distribution = search.length_distribution(paths.links).exp().tolist()
        probabilities = {}
        for length, probability in enumerate(distribution):
            if length in allowed_lengths and probability > 0:
                probabilities[length] = probability
        return paths, probabilities

    def _filling(
        self, tokenized: TokenizedText, ids_of_masks: list[list[int]], log_prob: float
    ) -> Filling:
        segments = self.segments(tokenized, ids_of_masks)
        return Filling(
            text="".join(text for text, _ in segments),
            tokens=[self._names(token_ids) for token_ids in ids_of_masks],
            log_probability=log_prob,
            segments=segments,
        )

    def segments(self, tokenized: TokenizedText, ids_of_masks: list[list[int]]) -> list[Segment]:
        """The filled text in segments: what stands between the masks, and what fills each mask."""
        pieces: list[tuple[list[int], int | None]] = []  # tokens, and the mask that they fill
        start = 1
        for mask, place in enumerate(tokenized.masks):
            pieces += [(tokenized.token_ids[start:place], None), (ids_of_masks[mask], mask)]
            start = place + 1
        pieces.append((tokenized.token_ids[start:-1], None))
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

    def describe_states(self, graph: Graph, token_count: int = TOP_TOKENS) -> list[dict[str, Any]]:
        """For every state, its `weight`, the probability that a path allowed by the options visits
        it, and in `words` its most probable tokens, each with its probability."""
        paths, lengths = self._allowed_paths(graph)
        visits = [p * search.visits(paths, length).sum(0) for length, p in lengths.items()]
        weights = torch.stack(visits).sum(0) / sum(lengths.values())
        top = graph.probs.topk(min(token_count, graph.probs.shape[1]), dim=1)
        states = []
        for state, weight in enumerate(weights.tolist()):
            spelled = map(self._spelled, top.indices[state].tolist())
            top_tokens = zip(spelled, top.values[state].tolist(), strict=True)
            states.append({"weight": weight, "words": [list(pair) for pair in top_tokens]})
        return states

    def states_of_masks(self, graph: Graph) -> list[list[dict[str, Any]]]:
        """The states of each mask, without those of BOS and EOS."""
        states = self.describe_states(graph)
        targets = graph.target_of_state
        masks = range(1, graph.num_masks + 1)
        return [[states[state] for state in (targets == mask).nonzero()[:, 0]] for mask in masks]

    def _spelled(self, token_id: int) -> str:
        """A token as text, or by its name in the vocabulary if nothing of it can be seen."""
        text = str(self.tokenizer.decode([token_id])).strip()
        is_visible = bool(text) and text.isprintable()
        return text if is_visible else self._names([token_id])[0]

    def _names(self, token_ids: list[int]) -> list[str]:
        return list(self.tokenizer.convert_ids_to_tokens(token_ids))
