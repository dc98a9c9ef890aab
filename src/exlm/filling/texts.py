"""From texts with masks to records of their fillings: tokens, forward passes, search, text again."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.search import Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.randomness import mix

Method = Literal["beam", "viterbi", "sample"]
Record = dict[str, Any]

NO_MASK = "no mask"
LITTLE_KEPT = "these probabilities say little of the model, whose paths seldom have one state in every mask; see --free"
LOGITS = 2**26  # held in memory at a time
TEXTS = 5000  # filled before the first of them is handed on
TOP_WORDS = 5


@dataclass(frozen=True)
class FillOptions:
    """How to fill; see `fill`. `lengths` are the wished numbers of tokens, shortest and longest."""

    n_best: int = 5
    method: Method = "beam"
    lengths: tuple[int, int] | None = None
    free: bool = False
    states: bool = False
    beam: int = 64
    seed: int = 0
    tokens_per_batch: int = 4096

    def __post_init__(self) -> None:
        for name in ("n_best", "beam", "tokens_per_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def one_per_mask(self) -> bool:
        """Whether each mask gets one token."""
        return not self.free and self.lengths is None


class Example(NamedTuple):
    """A text in tokens, its positions in the encoder, and why it cannot be filled, or None."""

    ids: list[int]
    length: int
    problem: str | None


def fill_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    options: FillOptions | None = None,
    progress: bool = False,
) -> Iterator[Record]:
    """One record per text, in order: see `output` of `fill`. Some thousand texts are filled at a time."""
    options = options or FillOptions()
    network.eval()
    max_tokens = min(options.tokens_per_batch, LOGITS // network.config.vocab_size)
    with tqdm(total=len(texts), desc="fill", unit="line", disable=not progress) as bar:
        for start in range(0, len(texts), TEXTS):
            examples = encode(network, tokenizer, texts[start : start + TEXTS])
            records: list[Record] = [
                {"line": line, "text": texts[line - 1], "fillings": []}
                | {"exact": None, "kept": None, "warning": None, "problem": example.problem}
                for line, example in enumerate(examples, start + 1)
            ]
            waiting = [i for i, example in enumerate(examples) if example.problem is None]
            bar.update(len(examples) - len(waiting))
            # The longest first, so that too large a batch fails at once.
            waiting.sort(key=lambda i: -examples[i].length)
            while waiting:
                count = max(1, max_tokens // examples[waiting[0]].length)
                rows, waiting = waiting[:count], waiting[count:]
                for i, graph in zip(rows, graphs(network, [examples[i] for i in rows], tokenizer), strict=True):
                    records[i] |= _filled(graph, examples[i], tokenizer, options, start + i + 1)
                    bar.update()
            yield from records


def with_mask_tokens(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """The text with its masks spelled as the tokenizer spells them."""
    return re.sub(r"\[MASK\]|<mask>", str(tokenizer.mask_token), text)


def encode(network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Example]:
    """The texts in tokens, with their masks in any spelling."""
    config = network.config
    spelled = [with_mask_tokens(text, tokenizer) for text in texts]
    examples = []
    for ids in tokenizer(spelled)["input_ids"] if texts else []:
        more = ids.count(config.mask_token_id) * (config.states_per_mask - 1) + 2 * (config.states_per_boundary - 1)
        length, most, problem = len(ids) + more, config.max_position_embeddings, None
        if tokenizer.mask_token_id not in ids:
            problem = NO_MASK
        elif config.states_per_boundary > 1 and {config.bos_token_id, config.eos_token_id} & set(ids[1:-1]):
            problem = "an end of sequence inside the text, which has states of its own in this model; give one sequence"
        elif length > most:
            problem = f"too long: it expands to {length} positions, the model's most is {most}"
        elif unknown := ids.count(tokenizer.unk_token_id):
            problem = f"{unknown} tokens are not in the model's vocabulary"
        examples.append(Example(ids, length, problem))
    return examples


@torch.inference_mode()
def graphs(network: ExLMForMaskedLM, examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> list[Graph]:
    """What the model says about the masks of each example, on the host, from one forward pass."""
    unpadded = {"input_ids": [example.ids for example in examples]}
    batch = tokenizer.pad(unpadded, return_tensors="pt", return_attention_mask=True)
    lattice = network.exlm.expand(batch["input_ids"], batch["attention_mask"])
    hidden = network.states(lattice)
    lattice = lattice.to(hidden.device)
    if network.transition is None:
        marginals = network.marginals(lattice, hidden).cpu()
        counts = lattice.target_lengths.tolist()
        return [search.independent(rows[1 : n - 1]) for rows, n in zip(marginals, counts, strict=True)]
    logits, links = network.head(hidden).cpu(), network.transition(hidden, lattice).cpu()
    masks = (lattice.ordinal - 1).cpu()
    return [
        Graph(logits[b, :n].double().softmax(-1), links[b, :n, :n].double(), masks[b, :n])
        for b, n in enumerate(lattice.state_lengths.tolist())
    ]


def searched(graph: Graph, options: FillOptions) -> Graph:
    """The graph without the paths that `options` leave out."""
    return search.one_per_mask(graph) if options.one_per_mask else graph


def find_fillings(
    graph: Graph, example: Example, tokenizer: PreTrainedTokenizerFast, options: FillOptions, line: int = 1
) -> tuple[list[Record], bool]:
    """The fillings of one text, as they are written, and whether it is proven that no more probable ones were missed.

    `graph` has the paths to search (`searched`); the samples depend on the number of the `line`.

    Raises:
        InputError: if no path of the graph puts as many tokens into the masks as wished.
    """
    found: list[Record] = []
    proven = True
    for length, probability in _possible_lengths(graph, options).items():
        other = {}
        if options.method == "viterbi":
            result, value = search.viterbi(graph, length)
            other["path_probability"] = float(value.exp())
        elif options.method == "sample":
            seed = int(mix(options.seed, line, length)) >> 1
            result = search.sample(graph, length, options.n_best, torch.Generator().manual_seed(seed))
        else:
            result = search.beam_search(graph, length, options.n_best, options.beam)
        if not options.one_per_mask:
            other["length_probability"] = probability
        proven &= result.proven
        for tokens, path, value in zip(result.tokens.tolist(), result.path, result.log_prob.tolist(), strict=True):
            by_mask: list[list[int]] = [[] for _ in range(graph.masks)]
            # A token on a further state of BOS or EOS goes to the nearest mask.
            for token, mask in zip(tokens, graph.mask[path].clamp(0, graph.masks - 1).tolist(), strict=True):
                by_mask[mask].append(token)
            segments = cut_at_masks(example.ids, by_mask, tokenizer)
            entry = {
                "text": tokenizer.decode([token for segment, _ in segments for token in segment]),
                "tokens": [tokenizer.convert_ids_to_tokens(inside) for inside in by_mask],
                "probability": math.exp(value),
                "log_probability": value,
            }
            found.append(entry | other)
    return found, proven


def cut_at_masks(
    ids: list[int], by_mask: list[list[int]], tokenizer: PreTrainedTokenizerFast
) -> list[tuple[list[int], int | None]]:
    """The ids between BOS and EOS with `by_mask` in place of the masks, in segments: ids, and their mask or None."""
    masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
    segments: list[tuple[list[int], int | None]] = [(ids[1 : masks[0]], None)]
    for number, (start, end) in enumerate(pairwise([*masks, len(ids) - 1])):
        segments += [(by_mask[number], number), (ids[start + 1 : end], None)]
    return segments


def _possible_lengths(graph: Graph, options: FillOptions) -> dict[int, float]:
    """The probability of each wished number of tokens that a path can put in. Raises InputError if there is none."""
    shortest, longest = options.lengths or (graph.masks, graph.masks)
    probability = search.length_distribution(graph.links).exp().tolist()
    possible = {m: p for m, p in enumerate(probability) if shortest <= m <= longest and p > 0}
    if not possible:
        wanted = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        raise InputError(f"no path puts {wanted} tokens into its masks ({len(graph.links) - 2} states)")
    return possible


def describe_states(graph: Graph, options: FillOptions, count: int) -> list[Record]:
    """`mask`, `weight` and the top `words`, as pairs of token id and probability, of every state.

    The weight is the probability that a path of the graph with a wished number of tokens passes through the state.
    """
    lengths = _possible_lengths(graph, options)
    weights = torch.stack([p * search.visits(graph, m) for m, p in lengths.items()]).sum(0) / sum(lengths.values())
    top = graph.probs.topk(min(count, graph.probs.shape[1]), dim=1)
    rows = zip(graph.mask.tolist(), weights.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    return [{"mask": m, "weight": w, "words": list(zip(ids, probs, strict=True))} for m, w, ids, probs in rows]


def _filled(
    graph: Graph, example: Example, tokenizer: PreTrainedTokenizerFast, options: FillOptions, line: int
) -> Record:
    """What is found for one text: fillings, exact, kept, warning and states. Only the problem, if none is possible."""
    paths = searched(graph, options)
    try:
        found, proven = find_fillings(paths, example, tokenizer, options, line)
    except InputError as error:
        return {"problem": str(error)}
    record: Record = {"fillings": found, "exact": proven if options.method == "beam" else None}
    if options.one_per_mask:
        record["kept"] = search.kept(graph)
        record["warning"] = LITTLE_KEPT if record["kept"] < 0.5 else None
    if options.states:
        record["states"] = [[] for _ in range(graph.masks)]
        for state in describe_states(paths, options, TOP_WORDS):
            if 0 <= state["mask"] < graph.masks:
                words = [[tokenizer.convert_ids_to_tokens(token), p] for token, p in state["words"]]
                record["states"][state["mask"]].append({"weight": state["weight"], "words": words})
    return record
