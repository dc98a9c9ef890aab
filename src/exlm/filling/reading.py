"""What a model says about texts with masks: a graph of the states of each text's masks."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from exlm.data.batching import longest_first
from exlm.data.chemistry import are_molecules
from exlm.data.encoding import describe_unknown_words
from exlm.data.tokenization import splits_smiles
from exlm.errors import InputError
from exlm.filling import search
from exlm.filling.search import Graph
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.models import load_model

# spellings that are accepted besides the tokenizer's own mask token
MASKS = re.compile(r"\[MASK\]|<mask>")
# how many logits fit in memory at a time
LOGITS = 2**26


class Example(NamedTuple):
    """A text as tokens, the places of its masks, and why it cannot be filled (None: it can)."""

    ids: list[int]
    masks: list[int]
    problem: str | None = None


def load_for_filling(path: str) -> tuple[ExLMForMaskedLM, PreTrainedTokenizerFast]:
    """A pre-trained model and its tokenizer. Raises InputError if the directory holds no model that
    can fill masks."""
    model, tokenizer = load_model(path, ExLMForMaskedLM)
    names = model.config.architectures or []
    if names and ExLMForMaskedLM.__name__ not in names:
        raise InputError(
            f"{path} holds {', '.join(names)}; "
            "give the directory of a pre-trained ExLM, MLM or CTC model"
        )
    if model.config.repeat > 1:
        raise InputError(
            f"{path} was trained on repeated tokens (Repeated MLM); "
            "give a model trained on ordinary text"
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


def encode(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> list[Example]:
    """The texts as tokens. Masks may be in any spelling of MASKS, or the tokenizer's own."""
    spelled = [MASKS.sub(str(tokenizer.mask_token), text) for text in texts]
    examples = []
    for text, ids in zip(spelled, tokenizer(spelled)["input_ids"], strict=True):
        masks = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        example = Example(ids, masks)
        problem = _problem(network, tokenizer, text, example)
        examples.append(example._replace(problem=problem))
    return examples


def _problem(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, text: str, example: Example
) -> str | None:
    config = network.config
    ends = {config.bos_token_id, config.eos_token_id}
    length = _expanded_length(network, example)
    longest = config.max_position_embeddings
    if not example.masks:
        return "no mask"
    if config.states_per_boundary > 1 and ends.intersection(example.ids[1:-1]):
        return (
            "an end of sequence inside the text, which has states of its own in this model; "
            "give one sequence"
        )
    if length > longest:
        return f"too long: it expands to {length} positions, the model's most is {longest}"
    if tokenizer.unk_token_id in example.ids:
        return describe_unknown_words(text, tokenizer)
    return None


def _expanded_length(network: ExLMForMaskedLM, example: Example) -> int:
    """How many positions an example takes in the encoder."""
    copies_of_masks = len(example.masks) * (network.config.states_per_mask - 1)
    copies_of_ends = 2 * (network.config.states_per_boundary - 1)
    return len(example.ids) + copies_of_masks + copies_of_ends


def all_graphs(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    examples: Sequence[Example],
    tokens_per_batch: int,
) -> Iterator[tuple[int, Graph]]:
    """The number and the graph of every example without a problem, in another order: the longest
    first, because too small a memory then shows at once."""
    network.eval()
    max_tokens = min(tokens_per_batch, LOGITS // network.config.vocab_size)
    usable = [number for number, example in enumerate(examples) if example.problem is None]
    lengths = [_expanded_length(network, examples[number]) for number in usable]
    for rows in longest_first(lengths, max_tokens):
        batch = [usable[row] for row in rows]
        yield from zip(batch, graphs(network, [examples[i] for i in batch], tokenizer), strict=True)


@torch.inference_mode()
def graphs(
    network: ExLMForMaskedLM, examples: list[Example], tokenizer: PreTrainedTokenizerFast
) -> list[Graph]:
    """A graph for each example, from one forward pass: what the model says about its masks. It is
    on the CPU."""
    batch = tokenizer.pad(
        {"input_ids": [example.ids for example in examples]},
        return_tensors="pt",
        return_attention_mask=True,
        padding_side="right",
    )
    masked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for row, example in enumerate(examples):
        masked[row, example.masks] = True
    lattice = network.exlm.expand(batch["input_ids"], batch["attention_mask"], masked)
    output = network.lattice_output(lattice)
    lattice = output.lattice
    if network.config.has_links:
        lengths = lattice.state_lengths
        logits = network.head(output.states).cpu()
        links = output.links.cpu()
        masks = (lattice.ordinal - 1).cpu()
    else:
        # masks are independent of each other, and each has one state
        lengths = lattice.target_lengths
        logits = network.objective.marginals(output).cpu()
        states = logits.shape[1]
        links = logits.new_zeros(len(logits), states, states)
        masks = torch.arange(-1, states - 1).expand(len(logits), -1)
    result = []
    for row, length in enumerate(lengths.tolist()):
        probs = logits[row, :length].double().softmax(-1)
        graph = Graph(probs, links[row, :length, :length].double(), masks[row, :length])
        result.append(graph if network.config.has_links else search.one_per_mask(graph))
    return result
