"""From texts with masks to their fillings: tokens, forward passes, search, and text again."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.search import Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrained import load_model
from exlm.randomness import mix

Method = Literal["beam", "viterbi", "sample"]
Record = dict[str, Any]

MASKS = re.compile(r"\[MASK\]|<mask>")  # beside the tokenizer's own mask token
NO_MASK = "no mask"
LITTLE_KEPT = "these probabilities say little of the model, whose paths seldom have one state in every mask; see --free"
LOGITS = 2**26  # held in memory at a time
TEXTS = 5000  # filled before the first of them is handed on
TOP_WORDS = 5


@dataclass
class FillOptions:
    """How to fill; see `fill`, which has the same options. `lengths` are the numbers of tokens that `tokens` names."""

    n_best: int = 5
    method: Method = "beam"
    tokens: str | None = None
    free: bool = False
    states: bool = False
    beam: int = 64
    seed: int = 0
    tokens_per_batch: int = 4096
    lengths: range | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        for name in ("n_best", "beam", "tokens_per_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.tokens is not None:
            match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(self.tokens).strip())
            self.lengths = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
            if not self.lengths or 0 in self.lengths:
                raise InputError(f"tokens is {self.tokens}; give a number from 1, or a range as 2-4")
            self.free = True


class Example(NamedTuple):
    """A text in tokens, its positions in the encoder, and why it cannot be filled, or None."""

    ids: list[int]
    length: int
    problem: str | None


def load_for_filling(path: str) -> tuple[ExLMForMaskedLM, PreTrainedTokenizerFast]:
    """A pre-trained model and its tokenizer. Raises InputError for a directory without a prediction head of ours."""
    try:
        names = json.loads((Path(path) / "config.json").read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError):
        names = None  # said better by `load_model`
    if names and ExLMForMaskedLM.__name__ not in names:
        raise InputError(f"{path} holds {', '.join(names)}; give the directory of a pre-trained ExLM, MLM or CTC model")
    model, tokenizer = load_model(path, ExLMForMaskedLM)
    if model.config.repeat > 1:
        raise InputError(f"{path} was trained on repeated tokens (Repeated MLM); give a model trained on ordinary text")
    return model, tokenizer


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
            waiting.sort(key=lambda i: -examples[i].length)  # so that too large a batch fails at once
            bar.update(len(examples) - len(waiting))
            while waiting:
                count = max(1, max_tokens // examples[waiting[0]].length)
                rows, waiting = waiting[:count], waiting[count:]
                for i, graph in zip(rows, graphs(network, [examples[i] for i in rows], tokenizer), strict=True):
                    records[i] |= fill_graph(graph, examples[i].ids, tokenizer, options, start + i + 1)
                    bar.update()
            yield from records


def encode(network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Example]:
    """The texts in tokens, with their masks in any spelling."""
    config = network.config
    spelled = [MASKS.sub(str(tokenizer.mask_token), text) for text in texts]
    examples = []
    for ids in tokenizer(spelled)["input_ids"]:
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


def searched(graph: Graph, options: FillOptions) -> tuple[Graph, dict[int, float]]:
    """The graph without the paths that `options` leave out, and the probabilities of the wished numbers of tokens."""
    graph = graph if options.free else search.one_per_mask(graph)
    probability = search.length_distribution(graph.links).exp().tolist()
    wished = options.lengths or [graph.masks]
    return graph, {m: p for m, p in enumerate(probability) if m in wished and p > 0}


def fill_graph(
    graph: Graph, ids: list[int], tokenizer: PreTrainedTokenizerFast, options: FillOptions, line: int = 1
) -> Record:
    """What `fill` writes of the text with these ids: fillings, exact, kept, warning and states, or the problem.

    Samples depend on the number of the line.
    """
    paths, lengths = searched(graph, options)
    if not lengths:
        wished = options.lengths or [graph.masks]
        wanted = " to ".join(map(str, sorted({wished[0], wished[-1]})))
        return {"problem": f"no path puts {wanted} tokens into its masks ({len(graph.links) - 2} states)"}
    record: Record = {"fillings": [], "exact": True if options.method == "beam" else None}
    for length, chance in lengths.items():
        if options.method == "viterbi":
            result = search.viterbi(paths, length)
        elif options.method == "sample":
            generator = torch.Generator().manual_seed(int(mix(options.seed, line, length)) >> 1)
            result = search.sample(paths, length, options.n_best, generator)
        else:
            result = search.beam_search(paths, length, options.n_best, options.beam)
            record["exact"] &= result.proven
        # A token on a further state of BOS or EOS goes to the nearest mask.
        mask_of = graph.mask[result.path].clamp(0, graph.masks - 1)
        for tokens, own, value in zip(result.tokens, mask_of, result.log_prob.tolist(), strict=True):
            by_mask = [tokens[own == mask].tolist() for mask in range(graph.masks)]
            inside = iter(by_mask)
            filled = [next(inside) if token == tokenizer.mask_token_id else [token] for token in ids[1:-1]]
            entry: Record = {"text": tokenizer.decode(list(chain.from_iterable(filled)))}
            entry["tokens"] = [tokenizer.convert_ids_to_tokens(tokens) for tokens in by_mask]
            entry |= {"probability": math.exp(value), "log_probability": value}
            if result.path_log_prob is not None:
                entry["path_probability"] = float(result.path_log_prob.exp())
            if options.free:
                entry["length_probability"] = chance
            record["fillings"].append(entry)
    if not options.free:
        record["kept"] = search.kept(graph)
        record["warning"] = LITTLE_KEPT if record["kept"] < 0.5 else None
    if options.states:
        states = describe_states(paths, lengths, TOP_WORDS, tokenizer.convert_ids_to_tokens)
        masks = [state.pop("mask") for state in states]
        record["states"] = [[s for s, own in zip(states, masks, strict=True) if own == m] for m in range(graph.masks)]
    return record


def describe_states(graph: Graph, lengths: dict[int, float], count: int, spell: Callable[[int], Any]) -> list[Record]:
    """`mask`, `weight` and the top `words`, each spelled and with its probability, of every state.

    The weight is the probability that a path of the graph with one of these lengths passes through the state.
    """
    weights = torch.stack([p * search.visits(graph, m) for m, p in lengths.items()]).sum(0) / sum(lengths.values())
    top = graph.probs.topk(min(count, graph.probs.shape[1]), dim=1)
    rows = zip(graph.mask.tolist(), weights.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        {"mask": mask, "weight": weight, "words": [[spell(token), p] for token, p in zip(tokens, probs, strict=True)]}
        for mask, weight, tokens, probs in rows
    ]
