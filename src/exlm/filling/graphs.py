"""What a model says about texts with masks: a graph of the states of each text's masks."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from exlm.data.batching import longest_first
from exlm.data.chemistry import are_molecules
from exlm.data.problems import describe_special_tokens, describe_unknown_words
from exlm.data.tokenization import ALPHABETS, alphabet_name, splits_smiles
from exlm.errors import InputError
from exlm.filling import graph_search
from exlm.filling.graph_search import Graph
from exlm.filling.options import TOKENS_PER_BATCH
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.storage.models import load_model

# spellings that are accepted besides the tokenizer's own mask token
MASKS = re.compile(r"\[MASK\]|<mask>")
MOST_LOGITS = 2**26  # how many logits fit in memory at a time


class MaskedText(NamedTuple):
    """A text as tokens, and which of them are masks."""

    token_ids: list[int]
    masks: list[int]  # their places among the tokens
    problem: str | None = None  # why the text cannot be filled; None if it can
    warning: str = ""  # what is odd about a text that can be filled

    def fill_in(self, ids_of_masks: dict[int, list[int]]) -> "MaskedText":
        """The text in which the masks at these places are filled, each with one token."""
        token_ids = list(self.token_ids)
        for place, [token] in ids_of_masks.items():
            token_ids[place] = token
        return MaskedText(token_ids, [mask for mask in self.masks if mask not in ids_of_masks])


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
            f"{path} was trained on repeated tokens (Repeated MLM); give another model"
        )
    return model, tokenizer


def fills_molecules(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> bool:
    """Whether texts with masks are SMILES. The configuration of the model says so; if it does not,
    the tokenizer or the texts decide."""
    if network.config.molecules is not None:
        return network.config.molecules
    with_atoms = (MASKS.sub("C", text.replace(str(tokenizer.mask_token), "C")) for text in texts)
    return splits_smiles(tokenizer.backend_tokenizer) or are_molecules(with_atoms)


def tokenize(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> list[MaskedText]:
    """The texts as tokens. Masks may be in any spelling of MASKS, or the tokenizer's own."""
    spelled = [MASKS.sub(str(tokenizer.mask_token), text.strip()) for text in texts]
    masked_texts = []
    for text, token_ids in zip(spelled, tokenizer(spelled)["input_ids"], strict=True):
        masks = [place for place, token in enumerate(token_ids) if token == tokenizer.mask_token_id]
        problem = _problem(network.config, tokenizer, text, token_ids)
        without_masks = text.replace(str(tokenizer.mask_token), " ")
        warning = describe_special_tokens(without_masks, tokenizer)
        masked_texts.append(MaskedText(token_ids, masks, problem, warning))
    return masked_texts


def _problem(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, text: str, token_ids: list[int]
) -> str | None:
    """Why a text cannot be filled; None if it can."""
    ends = {config.bos_token_id, config.eos_token_id}
    masks = token_ids.count(tokenizer.mask_token_id)
    length = config.expanded_length(len(token_ids), masks)
    longest = config.max_position_embeddings
    if not text:
        return "empty text"
    if not masks:
        return (
            "no mask: write [MASK] where something is missing, or, in a molecule or protein, name "
            "a site with exlm fill --site"
        )
    if config.states_per_boundary > 1 and ends.intersection(token_ids[1:-1]):
        return (
            "an end of sequence inside the text, which has states of its own in this model; "
            "give one sequence"
        )
    if config.limits_positions and length > longest:
        return f"too long: it expands to {length} positions, the model's most is {longest}"
    if tokenizer.unk_token_id in token_ids:
        return describe_unknown_words(text, tokenizer)
    if lost := _lost_before_masks(text, tokenizer):
        return f"not in the vocabulary: {lost}"
    return None


def graphs_of_texts(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[MaskedText],
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> Iterator[tuple[int, Graph]]:
    """Yields the number of every text without a problem and, on the CPU, the graph of what the
    model says about its masks. The longest come first: too small a memory then shows at once."""
    network.eval()
    max_tokens = min(tokens_per_batch, MOST_LOGITS // network.config.vocab_size)
    usable = [number for number, text in enumerate(texts) if text.problem is None]
    lengths = [
        network.config.expanded_length(len(texts[number].token_ids), len(texts[number].masks))
        for number in usable
    ]
    for rows in longest_first(lengths, max_tokens):
        numbers = [usable[row] for row in rows]
        batch = [texts[number] for number in numbers]
        yield from zip(numbers, _graphs_of_batch(network, tokenizer, batch), strict=True)


@torch.inference_mode()
def _graphs_of_batch(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, texts: list[MaskedText]
) -> list[Graph]:
    """The graphs of texts that the network reads together."""
    batch = tokenizer.pad(
        {"input_ids": [text.token_ids for text in texts]},
        return_tensors="pt",
        return_attention_mask=True,
        padding_side="right",
    )
    masked = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    for row, text in enumerate(texts):
        masked[row, text.masks] = True
    lattice = network.exlm.expand(batch["input_ids"], batch["attention_mask"], masked)
    output = network.lattice_output(lattice)
    if network.config.has_links:
        lengths = lattice.state_lengths
        places = lattice.target_index.gather(1, lattice.target_of_state)
        logits = network.head(output.states).cpu()
        links = output.links.cpu()
    else:
        # masks are independent of each other, and each has one state
        lengths = lattice.target_lengths
        places = lattice.target_index
        logits = output.log_marginals.cpu()
        # Log-probabilities of 0: each state will keep one link, to the next mask, which is certain.
        links = logits.new_zeros(*places.shape, places.shape[1])
    graphs = []
    for row, length in enumerate(lengths.tolist()):
        graph = Graph(
            probs=logits[row, :length].double().softmax(-1),
            links=links[row, :length, :length].double(),
            place_of_state=places[row, :length],
        )
        graphs.append(graph if network.config.has_links else graph_search.with_one_per_mask(graph))
    return graphs


def _lost_before_masks(text: str, tokenizer: PreTrainedTokenizerFast) -> str:
    """What an alphabet's tokenizer would cut off in front of a mask, "" if nothing: it takes the
    text before a mask for a whole one, and a `*` at its end for a stop codon."""
    name = alphabet_name(tokenizer.backend_tokenizer)
    cut = name and ALPHABETS[name].cut
    if not cut:
        return ""
    *texts_before_masks, _ = text.split(str(tokenizer.mask_token))
    matches = (re.search(cut, before.rstrip()) for before in texts_before_masks)
    return next((match[0] for match in matches if match), "")
