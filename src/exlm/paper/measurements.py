"""What is measured of every finished pre-training, on its held-out data with its own mask ratio and repetition.

*Entropy*: how uncertain predictions are, in bits (paper, section 3.3, and the appendix on its calculation). Of ExLM two
are given: that of a token's distribution, a mixture over states, and the mean of the states' own.
*Corruption*: the share of tokens all of whose copies are masked (corrupted semantics; paper, section 3.1).
*Alignment*: how probable it is that a masked token is emitted by a state of its own mask, and by which. A path of the
full DAG may go through any states in order; where this is low, states have learned the words of other masks.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from exlm.data.batching import IGNORED, SpecialTokens
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import visits
from exlm.pretrain import evaluate, held_out_batches
from exlm.pretrained import load_model
from exlm.recipe import DataConfig
from exlm.storage import write_json
from exlm.train import distributed
from exlm.train.precision import in_precision

MEASUREMENTS = "measurements.json"
VERSION = 3  # of what is measured: another one makes finished measurements be done again


def measure_run(run_dir: Path, data: DataConfig, seed: int) -> dict[str, Any]:
    """Writes `measurements.json` beside a pre-trained model.

    Args:
        run_dir: the model's directory.
        data: what it was trained on.
        seed: of its pre-training, so that held-out data are masked as in its evaluations.

    Returns:
        `entropy`, `corruption`, and `alignment`, which is None without transitions.
    """
    model, tokenizer = load_model(str(run_dir), ExLMForMaskedLM)
    distributed.to_device(model)
    batches = list(held_out_batches(data, SpecialTokens.of(tokenizer), seed, 0, 1))
    settings = {"mask_ratio": data.mask_ratio, "repeat": data.repeat}
    result = {
        "entropy": settings | measure_entropy(model, batches),
        "corruption": settings | measure_corruption(batches, data.mask_ratio, data.repeat),
        "alignment": measure_alignment(model, batches),
    }
    write_json(run_dir / MEASUREMENTS, result)
    return result


def measure_entropy(model: ExLMForMaskedLM, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
    """Mean, standard deviation and standard error over tokens, in bits; `states` has those of ExLM's states.

    `tokens` counted; `left_out` have a masked copy but also a visible one.
    """
    model.eval()
    device = next(model.parameters()).device
    found: dict[str, list[Tensor]] = {"mixture": [], "states": []}
    left_out = 0
    for batch in tqdm(batches, desc="entropy", unit="batch"):
        with in_precision(device, "fp32"):
            entropies = batch_entropies(model, batch)
        for name, values in entropies.items():
            found[name].append(values)
        masked = (batch["labels"] != IGNORED).unflatten(1, (-1, model.config.repeat)).any(2)
        left_out += int(masked.sum()) - len(entropies["mixture"])
    mixture = torch.cat(found["mixture"])
    states = _summary(torch.cat(found["states"])) if found["states"] else None
    return {**_summary(mixture), "tokens": len(mixture), "left_out": left_out, "states": states}


@torch.no_grad()
def batch_entropies(model: ExLMForMaskedLM, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Entropies in bits of the tokens without a visible copy, means over their copies.

    Args:
        model: in evaluation mode.
        batch: input_ids, attention_mask and labels, each [B, S r] with the r copies of a token side by side.

    Returns:
        `mixture`, and for ExLM `states`: each [tokens].
    """
    lattice = model.exlm.expand(**batch)
    states = model.states(lattice)
    lattice = lattice.to(states.device)
    of_targets = {"mixture": entropy(model.marginals(lattice, states))}  # [B, T]
    if model.transition is not None:
        own = entropy(model.head(states).log_softmax(-1))  # [B, N]
        weights = visits(model.links(states, lattice), lattice).double()  # [B, T, N]
        of_targets["states"] = (weights @ own[..., None])[..., 0]
    labels, repeat = batch["labels"], model.config.repeat
    rows, targets = lattice.target_is_mask.nonzero(as_tuple=True)
    result = {}
    for name, values in of_targets.items():
        of_inputs = values.new_full(labels.shape, torch.nan)
        of_inputs[rows, lattice.target_index[rows, targets]] = values[rows, targets]
        result[name] = of_inputs.cpu().unflatten(1, (-1, repeat)).mean(2)[corrupted(labels, repeat)]
    return result


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropies [...] in bits of distributions [..., V]; an impossible token adds nothing."""
    log_probabilities = log_probabilities.double()
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1) / math.log(2)


def _summary(values: Tensor) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("mean", "std", "stderr"), math.nan)
    std = float(values.std(correction=0))
    return {"mean": float(values.mean()), "std": std, "stderr": std / math.sqrt(len(values))}


def corrupted(labels: Tensor, repeat: int) -> Tensor:
    """Which tokens have all their r copies masked, [B, S] bool, from labels [B, S r] that are -100 where visible."""
    return (labels != IGNORED).unflatten(1, (-1, repeat)).all(2)


def measure_corruption(batches: Iterable[dict[str, Tensor]], p: float, repeat: int) -> dict[str, float]:
    """Measured mean and standard deviation over sequences, beside what either way of masking predicts.

    A predicted deviation is that of a sequence drawn at random: sequences differ in length, too.
    """
    shares, counts = [], []
    for batch in batches:
        tokens_of_batch = batch["attention_mask"].sum(1) // repeat - 2  # BOS and EOS are never masked
        shares.append((corrupted(batch["labels"], repeat).sum(1) / tokens_of_batch).double().numpy())
        counts.append(tokens_of_batch.numpy())
    share, tokens = np.concatenate(shares), np.concatenate(counts)
    result = {"mean": share.mean(), "std": share.std(), "sequences": len(share), "tokens": int(tokens.sum())}
    ways = {"predicted": independent_masks(p, repeat, tokens), "fixed_count": fixed_count_of_masks(p, repeat, tokens)}
    for name, (mean, variance) in ways.items():
        result |= {name: mean.mean(), f"{name}_std": np.sqrt(variance.mean() + mean.var())}
    return {name: float(value) for name, value in result.items()}


def independent_masks(p: float, repeat: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corruption of sequences of N = `tokens` [n] if every copy is masked by itself (the appendix's formula).

    Returns:
        Expectation p^r and variance p^r (1 - p^r) / N of a sequence's share, both [n].
    """
    share = np.full(len(tokens), p**repeat)
    return share, share * (1 - share) / tokens


def fixed_count_of_masks(p: float, repeat: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same if p N r copies, rounded up or down at random, are masked: all choices of so many are equally likely."""
    copies, masked = tokens * repeat, p * tokens * repeat
    low = np.floor(masked)
    chance = masked - low  # of rounding up
    mean, square = np.zeros(len(tokens)), np.zeros(len(tokens))
    for count, weight in ((low, 1 - chance), (low + 1, chance)):
        one, two = _all_masked(count, copies, repeat), _all_masked(count, copies, 2 * repeat)
        mean += weight * one
        square += weight * (one + (tokens - 1) * two) / tokens
    return mean, np.maximum(square - mean**2, 0)


def _all_masked(count: np.ndarray, copies: np.ndarray, chosen: int) -> np.ndarray:
    """P(`chosen` given copies are all among the `count` masked of `copies`)."""
    result = np.ones(len(copies))
    for i in range(chosen):
        result = result * np.maximum(count - i, 0) / np.maximum(copies - i, 1)
    return result


def measure_alignment(model: ExLMForMaskedLM, batches: list[dict[str, Tensor]]) -> dict[str, object] | None:
    """Means over held-out tokens: `own`, of all states of the mask, and `by_state`; None without transitions."""
    if model.transition is None:
        return None
    found = evaluate(model, batches)
    return {"own": found["own_states"], "by_state": found["by_state"]}
