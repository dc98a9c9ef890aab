"""Turns texts with masks into filled texts: it encodes them, runs the model, searches fillings, and
decodes these."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from exlm.data.batching import longest_first
from exlm.data.chemistry import are_molecules
from exlm.data.encoding import unknown_tokens
from exlm.data.tokenization import splits_smiles
from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.passes import Beginning, Reading, beam_in_passes, sample_in_passes
from exlm.filling.search import Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import Passes, passes_needed
from exlm.randomness import Purpose, draw
from exlm.storage.models import load_model

Record = dict[str, Any]

# spellings that are accepted besides the tokenizer's own mask token
MASKS = re.compile(r"\[MASK\]|<mask>")
LITTLE_KEPT = "these probabilities say little of the model, whose paths seldom have one state in every mask; see --free"
LOGITS = 2**26  # how many fit in memory at a time
TEXTS = 5000  # how many are filled before the first of them is yielded


@dataclass
class FillOptions:
    """How to fill masks.

    Attributes:
        n_best: how many fillings, or samples, to give for each text (for each length, if there are
            several lengths).
        method: `beam` finds the most probable fillings, summed over all paths. `viterbi` finds the
            most probable pair of a path and its tokens. `sample` draws paths and tokens.
        tokens: how many tokens to fill in altogether, such as 3 or 2-4; this sets `free`. By
            default one for each mask.
        free: use all paths of the model, which may put no token or several in the place of a mask.
            By default only paths with one state in every mask are used, and each mask gets one
            token. `kept` is the share that they have of the probability of all paths with as many
            tokens. If it is below a half, `warning` says that these probabilities tell little about
            the model. For models without transitions it is 1, with `free` null.
        beam: how many beginnings of fillings to keep after each token, and after each pass.
        seed: the seed of the samples.
        passes: in how many passes of the network to fill the masks. Each pass reveals the masks
            that the model is most certain of, as even a number as possible, and later ones read
            their tokens. A text with fewer masks takes fewer passes; `all` reveals one mask in
            each. Not with `free`, `tokens` or `viterbi`."""

    n_best: int = 5
    method: Literal["beam", "viterbi", "sample"] = "beam"
    tokens: str | None = None
    free: bool = False
    beam: int = 64
    seed: int = 0
    passes: Passes = 1
    # the numbers of tokens that `tokens` names
    lengths: range | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if min(self.n_best, self.beam) < 1:
            raise InputError(
                f"n_best is {self.n_best} and beam is {self.beam}; both must be at least 1"
            )
        if self.tokens is not None:
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(self.tokens).strip())
            self.lengths = (
                range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            )
            if not self.lengths or 0 in self.lengths:
                raise InputError(
                    f"tokens is {self.tokens}; give a number from 1, or a range as 2-4"
                )
            self.free = True
        self._check_passes()

    def _check_passes(self) -> None:
        if self.passes == 1:
            return
        if self.passes != "all" and not (isinstance(self.passes, int) and self.passes > 1):
            raise InputError(
                f"passes is {self.passes}; give a number from 1, or all to reveal one mask in each pass"
            )
        if self.free:
            raise InputError(
                f"passes is {self.passes}, but with free or tokens a mask may hold no token that a pass could reveal; "
                "leave passes at 1, or leave out free and tokens"
            )
        if self.method == "viterbi":
            raise InputError(
                f"passes is {self.passes}, but viterbi finds a path through the states of one pass; "
                "use the method beam or sample"
            )


class Example(NamedTuple):
    """A text as tokens, the places of its masks, how many positions it takes in the encoder, and
    why it cannot be filled (None: it can)."""

    ids: list[int]
    masks: list[int]
    length: int
    problem: str | None


def load_for_filling(path: str) -> tuple[ExLMForMaskedLM, PreTrainedTokenizerFast]:
    """A pre-trained model and its tokenizer. Raises InputError if the directory holds no model that
    can fill masks."""
    model, tokenizer = load_model(path, ExLMForMaskedLM)
    names = model.config.architectures or []
    if names and ExLMForMaskedLM.__name__ not in names:
        raise InputError(
            f"{path} holds {', '.join(names)}; give the directory of a pre-trained ExLM, MLM or CTC model"
        )
    if model.config.repeat > 1:
        raise InputError(
            f"{path} was trained on repeated tokens (Repeated MLM); give a model trained on ordinary text"
        )
    return model, tokenizer


def fills_molecules(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> bool:
    """Whether texts with masks are SMILES: the model knows; for an older model its tokenizer or the
    texts decide."""
    if network.config.molecules is not None:
        return network.config.molecules
    examples = (MASKS.sub("C", text.replace(str(tokenizer.mask_token), "C")) for text in texts)
    return splits_smiles(tokenizer.backend_tokenizer) or are_molecules(examples)


def fill_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    options: FillOptions | None = None,
    states: bool = False,
    tokens_per_batch: int = 4096,
) -> Iterator[Record]:
    """Yields a record for each text, in order; `output` of `fill` explains it. TEXTS texts are
    filled at a time."""
    options = options or FillOptions()
    for start in range(0, len(texts), TEXTS):
        chunk = texts[start : start + TEXTS]
        examples = encode(network, tokenizer, chunk)
        records: list[Record] = [
            dict(
                line=line,
                text=text,
                fillings=[],
                exact=None,
                kept=None,
                passes=None,
                warning=None,
                problem=example.problem,
            )
            for line, (text, example) in enumerate(zip(chunk, examples, strict=True), start + 1)
        ]
        for i, graph in all_graphs(network, tokenizer, examples, tokens_per_batch):
            line = start + i + 1
            if options.passes == 1:
                records[i] |= fill_graph(graph, examples[i].ids, tokenizer, options, line)
            else:
                read = partial(read_beginnings, network, tokenizer, tokens_per_batch)
                records[i] |= fill_in_passes(graph, examples[i], read, tokenizer, options, line)
            if states and records[i]["fillings"]:
                described = describe_states(graph, options, 5, tokenizer.convert_ids_to_tokens)
                rows = list(zip(graph.mask.tolist(), described, strict=True))
                records[i]["states"] = [
                    [state for own, state in rows if own == m] for m in range(graph.masks)
                ]
        yield from records


def encode(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> list[Example]:
    """The texts as tokens. Masks may be in any spelling of MASKS, or the tokenizer's own."""
    config = network.config
    spelled = [MASKS.sub(str(tokenizer.mask_token), text) for text in texts]
    examples = []
    for text, ids in zip(spelled, tokenizer(spelled)["input_ids"], strict=True):
        more = ids.count(config.mask_token_id) * (config.states_per_mask - 1) + 2 * (
            config.states_per_boundary - 1
        )
        length, most, problem = len(ids) + more, config.max_position_embeddings, None
        if tokenizer.mask_token_id not in ids:
            problem = "no mask"
        elif config.states_per_boundary > 1 and {config.bos_token_id, config.eos_token_id} & set(
            ids[1:-1]
        ):
            problem = "an end of sequence inside the text, which has states of its own in this model; give one sequence"
        elif length > most:
            problem = f"too long: it expands to {length} positions, the model's most is {most}"
        elif tokenizer.unk_token_id in ids:
            problem = unknown_tokens(text, tokenizer)
        masks = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        examples.append(Example(ids, masks, length, problem))
    return examples


def all_graphs(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    tokens_per_batch: int,
) -> Iterator[tuple[int, Graph]]:
    """The number and the graph of every example without a problem, in another order."""
    network.eval()
    max_tokens = min(tokens_per_batch, LOGITS // network.config.vocab_size)
    usable = [i for i, example in enumerate(examples) if example.problem is None]
    for numbers in longest_first([examples[i].length for i in usable], max_tokens):
        batch = [usable[number] for number in numbers]
        yield from zip(batch, graphs(network, [examples[i] for i in batch], tokenizer), strict=True)


@torch.inference_mode()
def graphs(
    network: ExLMForMaskedLM, examples: list[Example], tokenizer: PreTrainedTokenizerFast
) -> list[Graph]:
    """A graph for each example, from one forward pass: what the model says about its masks. It is
    on the CPU."""
    unpadded = {"input_ids": [example.ids for example in examples]}
    batch = tokenizer.pad(
        unpadded, return_tensors="pt", return_attention_mask=True, padding_side="right"
    )
    masked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for row, example in enumerate(examples):
        masked[row, example.masks] = True
    lattice = network.exlm.expand(batch["input_ids"], batch["attention_mask"], masked)
    hidden = network.states(lattice)
    lattice = lattice.to(hidden.device)
    if not network.config.has_links:  # masks are independent of each other, and each has one state
        logits, lengths = network.marginals(lattice, hidden).cpu(), lattice.target_lengths
        links = logits.new_zeros(len(logits), logits.shape[1], logits.shape[1])
        masks = torch.arange(-1, logits.shape[1] - 1).expand(len(logits), -1)
    else:
        logits, lengths = network.head(hidden).cpu(), lattice.state_lengths
        links, masks = network.links(hidden, lattice).cpu(), (lattice.ordinal - 1).cpu()
    result = [
        Graph(logits[b, :n].double().softmax(-1), links[b, :n, :n].double(), masks[b, :n])
        for b, n in enumerate(lengths.tolist())
    ]
    return result if network.config.has_links else [search.one_per_mask(graph) for graph in result]


def read_beginnings(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    tokens_per_batch: int,
    beginnings: Sequence[Beginning],
) -> Iterator[Reading]:
    """What the network says about beginnings of fillings of one text, in their order."""
    config = network.config
    examples = []
    for beginning in beginnings:
        length = len(beginning.ids) + len(beginning.masks) * (config.states_per_mask - 1)
        length += 2 * (config.states_per_boundary - 1)
        examples.append(Example(beginning.ids, beginning.masks, length, None))
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


def searched(graph: Graph, options: FillOptions) -> tuple[Graph, dict[int, float]]:
    """The graph with only the paths that `options` allow, and the probability of each number of
    tokens they ask for."""
    graph = graph if options.free else search.one_per_mask(graph)
    probability = search.length_distribution(graph.links).exp().tolist()
    return graph, {
        m: p for m, p in enumerate(probability) if m in (options.lengths or [graph.masks]) and p > 0
    }


def fill_graph(
    graph: Graph,
    ids: list[int],
    tokenizer: PreTrainedTokenizerFast,
    options: FillOptions,
    line: int = 1,
) -> Record:
    """What `fill` writes about the text with these token ids: fillings, exact, kept and warning, or
    the problem. The number of the line is part of the seed of samples."""
    paths, lengths = searched(graph, options)
    if not lengths:
        wished = options.tokens or graph.masks
        return {
            "problem": f"no path puts {wished} tokens into its masks ({len(graph.links) - 2} states)"
        }
    record: Record = {
        "fillings": [],
        "exact": True if options.method == "beam" else None,
        "passes": 1,
    }
    for length, chance in lengths.items():
        if options.method == "viterbi":
            result = search.viterbi(paths, length)
        elif options.method == "sample":
            generator = torch.Generator().manual_seed(
                int(draw(Purpose.SAMPLED_FILLING, options.seed, line, length)) >> 1
            )
            result = search.sample(paths, length, options.n_best, generator)
        else:
            result = search.beam_search(paths, length, options.n_best, options.beam)
            record["exact"] &= result.proven
        # If BOS or EOS has several states, a token emitted by one of them goes to the nearest mask.
        mask_of = graph.mask[result.path].clamp(0, graph.masks - 1)
        for tokens, own, value in zip(
            result.tokens, mask_of, result.log_prob.tolist(), strict=True
        ):
            by_mask = [tokens[own == mask].tolist() for mask in range(graph.masks)]
            entry: Record = {
                "text": tokenizer.decode(list(chain(*filled_in(ids, by_mask, tokenizer)))),
                "tokens": [tokenizer.convert_ids_to_tokens(tokens) for tokens in by_mask],
                "probability": math.exp(value),
                "log_probability": value,
            }
            if result.path_log_prob is not None:
                entry["path_probability"] = float(result.path_log_prob.exp())
            if options.free:
                entry["length_probability"] = chance
            record["fillings"].append(entry)
    if not options.free:
        record["kept"] = search.kept(graph)
        record["warning"] = LITTLE_KEPT if record["kept"] < 0.5 else None
    return record


def fill_in_passes(
    graph: Graph,
    example: Example,
    read: Callable[[list[Beginning]], Iterator[Reading]],
    tokenizer: PreTrainedTokenizerFast,
    options: FillOptions,
    line: int = 1,
) -> Record:
    """The same in several passes, of which `graph` is the first; `read` makes the others
    (`exlm.filling.passes`)."""
    passes = passes_needed(options.passes, len(example.masks))
    start, first = Beginning(example.ids, example.masks, 0.0), Reading(graph, example.masks)
    if options.method == "sample":
        seed = options.seed, line, len(example.masks)
        result = sample_in_passes(start, first, read, passes, options.n_best, seed)
    else:
        result = beam_in_passes(start, first, read, passes, options.n_best, options.beam)
    fillings = [
        {
            "text": tokenizer.decode(filled.ids[1:-1]),
            "tokens": [
                [tokenizer.convert_ids_to_tokens(filled.ids[place])] for place in example.masks
            ],
            "probability": math.exp(filled.log_prob),
            "log_probability": filled.log_prob,
        }
        for filled in result.filled
    ]
    return {
        "fillings": fillings,
        "exact": result.proven if options.method == "beam" else None,
        "kept": result.kept,
        "passes": passes,
        "warning": LITTLE_KEPT if result.kept < 0.5 else None,
    }


def filled_in(
    ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast
) -> list[list[int]]:
    """The filled text as 2 M + 1 lists of tokens: in turn the tokens outside the masks and those
    that fill a mask."""
    at = [0, *(i for i, token in enumerate(ids) if token == tokenizer.mask_token_id), len(ids) - 1]
    first, *others = [ids[a + 1 : b] for a, b in pairwise(at)]
    return [first, *chain.from_iterable(zip(by_mask, others, strict=True))]


def describe_states(
    graph: Graph, options: FillOptions, count: int, spell: Callable[[int], Any]
) -> list[Record]:
    """For every state, its `weight`, the probability that a path allowed by `options` visits it,
    and the `count` most probable `words`, each spelled and with its probability."""
    paths, lengths = searched(graph, options)
    every = [p * search.visits(paths, m).sum(0) for m, p in lengths.items()]
    weights = torch.stack(every).sum(0) / sum(lengths.values())
    top = graph.probs.topk(min(count, graph.probs.shape[1]), dim=1)
    rows = zip(weights.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        {
            "weight": weight,
            "words": [[spell(token), p] for token, p in zip(tokens, probs, strict=True)],
        }
        for weight, tokens, probs in rows
    ]
