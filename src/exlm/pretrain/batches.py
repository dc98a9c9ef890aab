"""The batches of a pre-training: masked, expanded, with their prior; and how long they can be."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from exlm.data.batching import MaskedBatches
from exlm.data.corpus import CORPUS_PARTS, SPECIALS, Corpus, corpus_name
from exlm.data.masking import share_bounds
from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.expander import expand_batch
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.precision import used_precision
from exlm.ops.transition import PriorStrength
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, Recipe
from exlm.train import distributed

Batch = dict[str, Tensor]  # input_ids, attention_mask and labels, each [B, S r]


def make_masked_batches(
    recipe: Recipe, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, network: ExLMForMaskedLM
) -> MaskedBatches:
    """The masked batches of a pre-training, of which this process takes its share."""
    rank, world = distributed.rank_and_world()
    precision = used_precision(network.device, recipe.train.precision)
    return MaskedBatches(
        corpus=corpus,
        tokenizer=tokenizer,
        tokens_per_batch=recipe.data.tokens_per_batch,
        tokens_per_micro_batch=recipe.data.tokens_per_micro_batch,
        mask_ratio=recipe.data.mask_ratio,
        seed=recipe.seed,
        rank=rank,
        world=world,
        repeat=recipe.data.repeat,
        without_padding=network.exlm.removes_padding(autocast=precision == "bf16"),
    )


def complete_batches(
    masked_batches: MaskedBatches, config: ExLMConfig, recipe: Recipe, step: int
) -> list[tuple[int, dict[str, Any]]]:
    """The micro-batches of update `step`, with their numbers and all that a model needs. The
    training loop calls this in a thread of its own."""
    prior = recipe.prior.at(step, recipe.train.steps)
    return [
        (number, complete_batch(config, batch, prior)) for number, batch in masked_batches(step)
    ]


def complete_batch(config: ExLMConfig, batch: Batch, prior: PriorStrength) -> dict[str, Any]:
    """A masked batch with what `pretraining_loss` and the training loop read of it."""
    return {
        "attention_mask": batch["attention_mask"],
        "lattice": expand_batch(config, **batch),
        "prior": prior,
    }


def most_positions(
    tokens: int, data: DataConfig, architecture: ArchitectureConfig, by_masks: Sequence[int] = ()
) -> int:
    """The largest number of positions that a sequence of `tokens` tokens (without BOS and EOS) can
    expand to, masked by the share of the settings or with one of the numbers `by_masks`."""
    length = (tokens + SPECIALS) * data.repeat
    # A packed sequence can consist of BOS and EOS tokens, which then all have k states.
    if architecture.states_per_boundary > 1:
        return length * architecture.states_per_boundary
    repeated_tokens = tokens * data.repeat
    largest_share = share_bounds(data.mask_ratio)[1]
    possible = [count for count in by_masks if least_tokens(count) <= repeated_tokens]
    most_masks = max(math.ceil(largest_share * repeated_tokens), *possible, 0)
    return architecture.expanded_length(length, most_masks)


def least_tokens(mask_count: int) -> float:
    """How many tokens that can be masked a held-out sequence must have to be scored with exactly
    `mask_count` masks. A third of them stays visible."""
    return 1.5 * mask_count


def check_positions(
    data: DataConfig, architecture: ArchitectureConfig, by_masks: Sequence[int] = ()
) -> None:
    """Raises InputError if a training or held-out sequence can expand to more positions than the
    model has. `by_masks` are the numbers of masks with which held-out sequences are scored."""
    if not architecture.limits_positions:
        return
    longest_train, longest_valid = (
        int(Corpus(data.corpus, part).token_counts.max(initial=0)) for part in CORPUS_PARTS
    )
    needed = max(
        most_positions(longest_train, data, architecture),
        most_positions(longest_valid, data, architecture, by_masks),
    )
    if needed > architecture.max_position_embeddings:
        length = max(longest_train, longest_valid) + SPECIALS
        raise InputError(
            f"a sequence of {corpus_name(data.corpus)} has {length} tokens "
            f"and can expand to {needed} positions, but model.max_position_embeddings is "
            f"{architecture.max_position_embeddings}; set it to {needed}, or prepare with a "
            "smaller --max_length"
        )
