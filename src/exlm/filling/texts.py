"""From texts with masks to records of their fillings: tokens, forward passes, search, text again."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from exlm.errors import InputError
from exlm.filling import search as filling
from exlm.filling.search import Fillings, Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.randomness import mix
from exlm.tasks import inference
from exlm.tasks.inference import Example

Method = Literal["beam", "viterbi", "sample"]
Record = dict[str, Any]

NO_MASK = "no mask"
LITTLE_KEPT = "these probabilities say little of the model, whose paths seldom have one state in every mask; see --free"
ALIASES = ("[MASK]", "<mask>")
LOGITS = 2**26  # held at a time
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


def fill_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    options: FillOptions | None = None,
    first: int = 1,
    bar: tqdm | None = None,
) -> list[Record]:
    """One record per text, in order: see `output` of `fill`. `first` is the number of the first line."""
    options = options or FillOptions()
    network.eval()
    examples, problems = encode(network, tokenizer, texts)
    records: list[Record] = [
        {"line": first + i, "text": text, "fillings": []}
        | {"exact": None, "kept": None, "warning": None, "problem": problem}
        for i, (text, problem) in enumerate(zip(texts, problems, strict=True))
    ]
    usable = [i for i, problem in enumerate(problems) if problem is None]
    for rows in _batches(usable, [_expanded(example, network.config) for example in examples], network.config, options):
        for i, graph in zip(rows, graphs(network, [examples[i] for i in rows], tokenizer), strict=True):
            records[i].update(filled(graph, examples[i]["input_ids"].tolist(), tokenizer, options, first + i))
            if bar is not None:
                bar.update()
    if bar is not None:
        bar.update(len(texts) - len(usable))
    return records


def encode(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> tuple[list[Example], list[str | None]]:
    """The tokens of every text, its masks in any spelling, and why it cannot be filled, or None."""
    pattern = "|".join(re.escape(alias) for alias in ALIASES)
    examples = inference.tokenize([re.sub(pattern, str(tokenizer.mask_token), text) for text in texts], tokenizer)
    return examples, [_problem(example, tokenizer, network.config) for example in examples]


@torch.inference_mode()
def graphs(network: ExLMForMaskedLM, examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> list[Graph]:
    """What the model says about the masks of each example, on the host, from one forward pass."""
    batch = inference.pad(examples, tokenizer)
    lattice = network.exlm.expand(batch["input_ids"], batch["attention_mask"])
    hidden = network.states(lattice)
    lattice = lattice.to(hidden.device)
    if network.transition is None:
        marginals = network.marginals(lattice, hidden).cpu()
        counts = lattice.num_targets.tolist()
        return [filling.independent(rows[1 : n - 1]) for rows, n in zip(marginals, counts, strict=True)]
    logits, links = network.head(hidden).cpu(), network.transition(hidden, lattice).cpu()
    result = []
    for b, n in enumerate(lattice.num_states.tolist()):
        mask = (lattice.ordinal[b, :n] - 1).cpu()
        result.append(Graph(logits[b, :n].double().softmax(-1), links[b, :n, :n].double(), mask))
    return result


def _expanded(example: Example, config: PreTrainedConfig) -> int:
    """Positions of an example in the encoder."""
    masks = int((example["input_ids"] == config.mask_token_id).sum())
    return inference.length(example) + masks * (config.states_per_mask - 1) + 2 * (config.states_per_boundary - 1)


def _problem(example: Example, tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig) -> str | None:
    if tokenizer.mask_token_id not in example["input_ids"]:
        return NO_MASK
    inside = set(example["input_ids"][1:-1].tolist())
    if config.states_per_boundary > 1 and inside & {config.bos_token_id, config.eos_token_id}:
        return "an end of sequence inside the text, which has states of its own in this model; give one sequence"
    if (length := _expanded(example, config)) > config.max_position_embeddings:
        return f"too long: it expands to {length} positions, the model's most is {config.max_position_embeddings}"
    return inference.unknown(example, tokenizer)


def _batches(rows: list[int], sizes: list[int], config: PreTrainedConfig, options: FillOptions) -> Iterator[list[int]]:
    """Rows for one forward pass each, of like sizes, the longest first."""
    room = max(1, min(options.tokens_per_batch, LOGITS // config.vocab_size))
    rows = sorted(rows, key=lambda i: -sizes[i])
    while rows:
        count = max(1, room // sizes[rows[0]])
        yield rows[:count]
        rows = rows[count:]


def searched(graph: Graph, options: FillOptions) -> Graph:
    """The graph without the paths that `options` leave out."""
    return filling.one_per_mask(graph) if options.one_per_mask else graph


def possible_lengths(graph: Graph, options: FillOptions) -> dict[int, float]:
    """The probability of each wished number of tokens that a path of the searched graph can put in."""
    shortest, longest = _wished(graph, options)
    length = filling.length_distribution(graph.links).exp().tolist()
    return {m: length[m] for m in range(shortest, min(longest + 1, len(length))) if length[m] > 0}


def _wished(graph: Graph, options: FillOptions) -> tuple[int, int]:
    return options.lengths or (graph.masks, graph.masks)


def weights(graph: Graph, lengths: dict[int, float]) -> Tensor:
    """Probability [N] that a path with one of these numbers of tokens passes through each state."""
    rows = torch.stack([p * filling.visits(graph, m) for m, p in lengths.items()])
    return rows.sum(0) / sum(lengths.values())


def filled(graph: Graph, ids: list[int], tokenizer: PreTrainedTokenizerFast, options: FillOptions, line: int) -> Record:
    """What is found for one text: fillings, exact, kept and warning or, if none is possible, the problem."""
    everything, graph = graph, searched(graph, options)
    lengths = possible_lengths(graph, options)
    if not lengths:
        shortest, longest = _wished(graph, options)
        wanted = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        return {"problem": f"no path puts {wanted} tokens into its masks ({len(graph.links) - 2} states)"}
    found, exact = [], True
    for m, probability in lengths.items():
        result, extra = _search(graph, m, options, line)
        exact &= result.proven
        if not options.one_per_mask:
            extra["length_probability"] = probability
        found += [entry | extra for entry in _entries(result, graph, ids, tokenizer)]
    record: Record = {"fillings": found, "exact": exact if options.method == "beam" else None}
    if options.one_per_mask:
        record["kept"] = filling.kept(everything)
        record["warning"] = LITTLE_KEPT if record["kept"] < 0.5 else None
    if options.states:
        record["states"] = _states(graph, weights(graph, lengths), tokenizer)
    return record


def _search(graph: Graph, tokens: int, options: FillOptions, line: int) -> tuple[Fillings, Record]:
    if options.method == "viterbi":
        best, value = filling.viterbi(graph, tokens)
        return best, {"path_probability": float(value.exp())}
    if options.method == "sample":
        seed = int(mix(options.seed, line, tokens)) >> 1
        return filling.sample(graph, tokens, options.n_best, torch.Generator().manual_seed(seed)), {}
    return filling.beam_search(graph, tokens, options.n_best, options.beam), {}


def _entries(fillings: Fillings, graph: Graph, ids: list[int], tokenizer: PreTrainedTokenizerFast) -> list[Record]:
    """Each filling as it is written. A token on a further state of BOS or EOS goes to the nearest mask."""
    owners = graph.mask[fillings.path].clamp(0, graph.masks - 1).tolist()
    entries = []
    for tokens, owner, value in zip(fillings.tokens.tolist(), owners, fillings.log_prob.tolist(), strict=True):
        by_mask: list[list[int]] = [[] for _ in range(graph.masks)]
        for token, mask in zip(tokens, owner, strict=True):
            by_mask[mask].append(token)
        whole = [token for part, _ in inserted(ids[1:-1], by_mask, tokenizer.mask_token_id) for token in part]
        entries.append(
            {
                "text": tokenizer.decode(whole),
                "tokens": [tokenizer.convert_ids_to_tokens(part) for part in by_mask],
                "probability": math.exp(value),
                "log_probability": value,
            }
        )
    return entries


def inserted(ids: list[int], by_mask: list[list[int]], mask_token_id: int) -> list[tuple[list[int], int | None]]:
    """The ids in parts, each with the number of the mask that it fills, or None for what stands between the masks."""
    parts: list[tuple[list[int], int | None]] = [([], None)]
    masks = iter(enumerate(by_mask))
    for token in ids:
        if token == mask_token_id:
            number, tokens = next(masks)
            parts += [(tokens, number), ([], None)]
        else:
            parts[-1][0].append(token)
    return parts


def _states(graph: Graph, weights: Tensor, tokenizer: PreTrainedTokenizerFast) -> list[list[Record]]:
    """By mask, its states: weight and most probable words."""
    result: list[list[Record]] = [[] for _ in range(graph.masks)]
    for mask, weight, top in zip(graph.mask.tolist(), weights.tolist(), top_words(graph, TOP_WORDS), strict=True):
        if 0 <= mask < graph.masks:
            words = [[tokenizer.convert_ids_to_tokens(token), p] for token, p in top]
            result[mask].append({"weight": weight, "words": words})
    return result


def top_words(graph: Graph, count: int) -> list[list[tuple[int, float]]]:
    """The most probable tokens of every state and their probabilities."""
    top = graph.probs.topk(min(count, graph.probs.shape[1]), dim=1)
    rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [list(zip(tokens, values, strict=True)) for tokens, values in rows]
