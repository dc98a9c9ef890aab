"""The scores of held-out sequences: in every evaluation of a pre-training, and more at its end."""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from exlm.data.batching import longest_first
from exlm.data.corpus import SPECIALS, Corpus, corpus_name
from exlm.data.masking import mask_tokens
from exlm.errors import InputError
from exlm.model.evaluation import evaluate_batch, sum_names, summary
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import Passes, nll_in_passes
from exlm.ops.expansion import IGNORED
from exlm.ops.precision import in_precision
from exlm.ops.transition import PriorStrength
from exlm.pretrain.batches import Batch, least_tokens
from exlm.pretrain.settings import DataConfig, EvaluateConfig, Recipe
from exlm.randomness import Purpose, random_bits
from exlm.train import distributed

# Held-out data are always masked in the same way.
HELD_OUT_EPOCH = -1


class HeldOutData:
    """The held-out sequences of a corpus, masked the same way in every run with this seed.
    InputError if it has none.

    Attributes:
        order: the numbers of all sequences, in the order in which evaluations take them.
        repeated_token_counts: the number of tokens of each sequence, [sequences] int64, with
            repeats and without the BOS and the EOS around them."""

    def __init__(self, data: DataConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self.data = data
        self.tokenizer = tokenizer
        self.seed = seed
        self.corpus = Corpus(data.corpus, "valid")
        if not len(self.corpus):
            raise InputError(
                f"{corpus_name(data.corpus)} has no held-out sequences; "
                "prepare it with --held_out 0.1"
            )
        self.repeated_token_counts = self.corpus.token_counts.astype(np.int64) * data.repeat
        key = random_bits(Purpose.HELD_OUT, seed, np.arange(len(self.corpus)))
        self.order = np.argsort(key, kind="stable")

    def maskable_counts(self) -> np.ndarray:
        """How many tokens of each sequence can be masked, [sequences] int64: all of its
        `repeated_token_counts` but the BOS and EOS between packed documents."""
        never_masked = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        sequences = (self.corpus[number] for number in range(len(self.corpus)))
        boundaries = [np.isin(tokens, never_masked).sum() for tokens in sequences]
        return self.repeated_token_counts - np.array(boundaries) * self.data.repeat

    def batches(
        self, numbers: np.ndarray | None = None, mask_count: int | None = None
    ) -> Iterator[Batch]:
        """This process's batches of the sequences with these `numbers`, the longest first; without
        `numbers`, of as many sequences as the settings say. Each sequence has `mask_count` masks,
        or else the share in the settings. A batch has no more tokens than a micro-batch, since an
        evaluation holds the predictions of every token."""
        if numbers is None:
            numbers = self.order[: self.data.eval_sequences or len(self.order)]
        lengths = self.repeated_token_counts[numbers] + SPECIALS * self.data.repeat
        rank, world = distributed.rank_and_world()
        all_batches = longest_first(lengths, self.data.tokens_per_micro_batch)
        for batch in islice(all_batches, rank, None, world):
            tokens, token_counts = self.corpus.gather(numbers[batch])
            yield mask_tokens(
                token_ids=tokens,
                token_counts=token_counts,
                example_numbers=numbers[batch],
                tokenizer=self.tokenizer,
                seed=self.seed,
                epoch=HELD_OUT_EPOCH,
                ratio=self.data.mask_ratio,
                repeat=self.data.repeat,
                masks=mask_count,
            )


def evaluate_held_out(
    held_out: HeldOutData, recipe: Recipe, network: ExLMForMaskedLM, step: int
) -> dict[str, Any]:
    """The scores of a network after `step` updates of `recipe`, with the prior at this step. After
    the last update they include what the recipe asks for at the end alone; the network's
    configuration then has the same prior. The main process prints the most important scores."""
    prior = recipe.prior.at(step, recipe.train.steps)
    scores = score_held_out(network, held_out.batches(), prior)
    if step == recipe.train.steps:
        scores |= evaluate_by_masks(network, held_out, recipe.evaluate)
        scores |= evaluate_in_passes(network, held_out.batches(), recipe.evaluate.passes)
    if distributed.is_main():
        tqdm.write(f"step {step}: {describe_scores(scores)}")
        sys.stdout.flush()
    return scores


def describe_scores(scores: dict[str, Any]) -> str:
    """The most important scores in words."""
    names = ("accuracy", "perplexity", "joint_perplexity")
    phrases = [f"{name.replace('_', ' ')} {scores[name]:.4f}" for name in names if name in scores]
    return f"held-out {', '.join(phrases)}"


def evaluate_by_masks(
    network: ExLMForMaskedLM, held_out: HeldOutData, config: EvaluateConfig
) -> dict[str, Any]:
    """`nll_by_masks` and `joint_nll_by_masks`: nats per masked token of held-out sequences with
    exactly m masked tokens, by m; and `by_masks_sequences`, the number of these sequences, which
    are the same for every m. An m is left out if no sequence is long enough (`least_tokens`)."""
    token_counts = held_out.maskable_counts()
    longest = token_counts.max()
    mask_counts = [count for count in config.by_masks if least_tokens(count) <= longest]
    impossible_counts = sorted(set(config.by_masks) - set(mask_counts))
    if impossible_counts and distributed.is_main():
        numbers = ", ".join(map(str, impossible_counts))
        tqdm.write(f"no held-out sequence is long enough to be scored with {numbers} masks")
    if not mask_counts:
        return {}
    order = held_out.order
    long_enough = order[token_counts[order] >= least_tokens(max(mask_counts))][: config.sequences]
    scores_by_masks = {
        str(count): score_held_out(network, held_out.batches(long_enough, count))
        for count in mask_counts
    }
    return {
        "nll_by_masks": {m: scores["nll"] for m, scores in scores_by_masks.items()},
        "joint_nll_by_masks": {m: scores["joint_nll"] for m, scores in scores_by_masks.items()},
        "by_masks_sequences": len(long_enough),
    }


def evaluate_in_passes(
    network: ExLMForMaskedLM, batches: Iterable[Batch], passes: list[Passes]
) -> dict[str, Any]:
    """`joint_nll_in_passes`: nats per masked token, where all masked tokens of a sequence are
    predicted together in several passes (`exlm.model.passes`), by their number. In one pass it is
    `joint_nll`. Empty without `passes`."""
    if not passes:
        return {}
    network.eval()
    sums = np.zeros(1 + len(passes))
    with in_precision(network.device, "fp32"):
        for batch in batches:
            nats_of_batch = [float(nll_in_passes(network, batch, count).sum()) for count in passes]
            sums += [float((batch["labels"] != IGNORED).sum()), *nats_of_batch]
    masked_tokens, *nats = distributed.sum_over_processes(sums.tolist())
    per_token = {
        str(count): total / max(masked_tokens, 1.0)
        for count, total in zip(passes, nats, strict=True)
    }
    return {"joint_nll_in_passes": per_token}


def score_held_out(
    network: ExLMForMaskedLM, batches: Iterable[Batch], prior: PriorStrength | None = None
) -> dict[str, Any]:
    """Accuracy, marginal and joint probability of masked tokens, and how many there are
    (`exlm.model.evaluation`).
    `batches` are this process's share; `prior` replaces the configuration's. The network is put in
    evaluation mode."""
    network.eval()
    names = sum_names(network.config)
    sums = np.zeros(len(names))  # a process may have no batch
    with in_precision(network.device, "fp32"):
        for batch in batches:
            sums += list(evaluate_batch(network, batch, prior).values())
    totals = distributed.sum_over_processes(sums.tolist())
    return summary(dict(zip(names, totals, strict=True)))
