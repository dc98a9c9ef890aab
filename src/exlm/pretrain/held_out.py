"""What is measured on held-out sequences: in every evaluation of a pre-training, and once more at
its end."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from exlm.data.batching import longest_first, mask_tokens
from exlm.data.corpus import Corpus, corpus_name
from exlm.errors import InputError
from exlm.model.evaluation import evaluate_batch, no_sums, summary
from exlm.model.heads import Prior
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.passes import Passes, nll_in_passes
from exlm.ops.expansion import IGNORED
from exlm.ops.precision import in_precision
from exlm.pretrain.settings import DataConfig, EvaluateConfig
from exlm.randomness import Purpose, draw
from exlm.train import distributed

HELD_OUT_EPOCH = -1  # held-out data are always masked in the same way


def held_out_batches(
    data: DataConfig, tokenizer: PreTrainedTokenizerBase, seed: int, rank: int, world: int
) -> Iterator[dict[str, Tensor]]:
    """This process's share of the held-out sequences, masked the same way in every run with this
    seed."""
    corpus, order = _held_out(data, seed)
    for rows in _rows_of_batches(corpus, order[: data.eval_sequences or len(corpus)], data)[
        rank::world
    ]:
        yield mask_tokens(
            *corpus.gather(rows),
            rows,
            tokenizer,
            seed,
            HELD_OUT_EPOCH,
            data.mask_ratio,
            data.repeat,
        )


def _held_out(data: DataConfig, seed: int) -> tuple[Corpus, np.ndarray]:
    """The held-out sequences of a corpus, and their numbers in the order in which evaluations take
    them."""
    corpus = Corpus(data.corpus, "valid")
    if not len(corpus):
        raise InputError(
            f"{corpus_name(data.corpus)} has no held-out sequences; prepare it with --held_out 0.1"
        )
    return corpus, np.argsort(draw(Purpose.HELD_OUT, seed, np.arange(len(corpus))), kind="stable")


def _rows_of_batches(corpus: Corpus, rows: np.ndarray, data: DataConfig) -> list[np.ndarray]:
    """The numbers of the sequences of each batch, the longest first. An evaluation holds the
    predictions of every token, so a batch has no more tokens than a micro-batch."""
    lengths = (corpus.lengths[rows].astype(np.int64) + 2) * data.repeat
    return [rows[batch] for batch in longest_first(lengths, data.tokens_per_micro_batch)]


def evaluate_by_masks(
    model: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    config: EvaluateConfig,
    seed: int,
    prior: Prior | None = None,
    rank: int = 0,
    world: int = 1,
) -> dict[str, Any]:
    """`nll_by_masks` and `joint_nll_by_masks`: nats per masked token of held-out sequences with
    exactly m masked tokens, by m; and `by_masks_sequences`, how many sequences were judged. All are
    judged at every m. So that a third of its tokens stays visible, a sequence needs 1.5 m tokens;
    an m for which none is long enough is left out."""
    corpus, order = _held_out(data, seed)
    tokens = corpus.lengths[order].astype(np.int64) * data.repeat
    numbers = [masks for masks in config.by_masks if 1.5 * masks <= tokens.max()]
    left_out = sorted(set(config.by_masks) - set(numbers))
    if left_out and distributed.is_main():
        tqdm.write(
            f"no held-out sequence is long enough to be judged with {', '.join(map(str, left_out))} masks"
        )
    if not numbers:
        return {}
    judged = order[tokens >= 1.5 * max(numbers)][: config.sequences]
    rows_of_batches = _rows_of_batches(corpus, judged, data)[rank::world]
    masked = partial(
        mask_tokens, tokenizer=tokenizer, seed=seed, epoch=HELD_OUT_EPOCH, ratio=data.mask_ratio
    )
    scores = {}
    for masks in numbers:
        batches = [
            masked(*corpus.gather(rows), rows, repeat=data.repeat, masks=masks)
            for rows in rows_of_batches
        ]
        scores[str(masks)] = score_held_out(model, batches, prior)
    by_masks = {
        f"{name}_by_masks": {m: score[name] for m, score in scores.items()}
        for name in ("nll", "joint_nll")
    }
    return {**by_masks, "by_masks_sequences": len(judged)}


def evaluate_in_passes(
    model: ExLMForMaskedLM,
    batches: list[dict[str, Tensor]],
    passes: list[Passes],
    prior: Prior | None = None,
) -> dict[str, Any]:
    """`joint_nll_in_passes`: nats per masked token of all masked tokens of a sequence together, by
    the number of passes (`exlm.model.passes`). `batches` are those of `joint_nll`, which is that of
    one pass. Empty without `passes`."""
    if not passes:
        return {}
    model.eval()
    nats = dict.fromkeys(map(str, passes), 0.0)
    masked = 0.0
    with in_precision(next(model.parameters()).device, "fp32"):
        for batch in batches:
            masked += float((batch["labels"] != IGNORED).sum())
            for number in passes:
                nats[str(number)] += float(nll_in_passes(model, batch, number, prior).sum())
    masked, *totals = distributed.sum_over_processes([masked, *nats.values()])
    per_token = [total / max(masked, 1.0) for total in totals]
    return {"joint_nll_in_passes": dict(zip(nats, per_token, strict=True))}


def score_held_out(
    model: ExLMForMaskedLM, batches: list[dict[str, Tensor]], prior: Prior | None = None
) -> dict[str, Any]:
    """Accuracy, marginal and joint probability of masked tokens (`exlm.model.evaluation`), and the
    mean objective. The objective has its own name (`exlm_loss`), because only that of an MLM is the
    logarithm of the perplexity. `batches` are this process's share; `prior` replaces the
    configuration's. The model is put in evaluation mode."""
    model.eval()
    sums = no_sums(model.config)
    with in_precision(next(model.parameters()).device, "fp32"):
        for batch in batches:
            part = evaluate_batch(model, batch, prior)
            sums = {name: sums[name] + part[name] for name in sums}
    totals = distributed.sum_over_processes(list(sums.values()))
    found = summary(dict(zip(sums, totals, strict=True)))
    return {f"{model.config.objective}_loss": found.pop("loss"), **found}
