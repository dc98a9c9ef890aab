"""What the experiments measure of every pre-trained model: the entropy of its predictions (paper,
section 3.3), and the share of tokens whose copies are all masked (corrupted semantics, section
3.1)."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from exlm.data.corpus import SPECIALS
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.expansion import IGNORED
from exlm.ops.precision import in_precision
from exlm.pretrain.batches import Batch
from exlm.pretrain.held_out import HeldOutData
from exlm.pretrain.settings import DataConfig
from exlm.storage.files import MEASUREMENTS, write_json
from exlm.storage.manifest import record_file
from exlm.storage.models import load_model
from exlm.train import devices

# Of so many logits at a time, the entropy takes four times as many numbers in float64: 1 GB.
MOST_LOGITS = 2**25


def measure_run(run_dir: Path, data: DataConfig, seed: int) -> None:
    """Writes `measurements.json` beside a model pre-trained with `data` and `seed`."""
    network, tokenizer = load_model(str(run_dir), ExLMForMaskedLM)
    devices.place_model(network)
    batches = list(HeldOutData(data, tokenizer, seed).batches())
    settings = {"mask_ratio": data.one_mask_ratio, "repeat": data.repeat}
    result = {
        "entropy": settings | measure_entropy(network, batches),
        "corruption": settings | measure_corruption(batches, data.one_mask_ratio, data.repeat),
    }
    write_json(run_dir / MEASUREMENTS, result)
    record_file(run_dir / MEASUREMENTS)


def measure_entropy(network: ExLMForMaskedLM, batches: Iterable[Batch]) -> dict[str, Any]:
    """Mean, standard deviation and standard error of the entropy, in bits. `tokens` counts the
    tokens measured: the tokens without a visible copy. `states` has the same three numbers for the
    entropy of ExLM's states."""
    network.eval()
    entropies = []
    with in_precision(network.device, "fp32"):
        for batch in tqdm(batches, desc="entropy", unit="batch"):
            small_batches = _divide_batch(network, batch)
            entropies += [batch_entropies(network, small_batch) for small_batch in small_batches]
    mixture = torch.cat([entry["mixture"] for entry in entropies])
    states = None
    if network.transition is not None:
        states = _summarize(torch.cat([entry["states"] for entry in entropies]))
    return {**_summarize(mixture), "tokens": len(mixture), "states": states}


def _summarize(values: Tensor) -> dict[str, float]:
    """Mean, standard deviation and standard error of numbers [n]; NaN if there are none."""
    std = values.std(correction=0)
    error = std / math.sqrt(len(values))
    return {"mean": float(values.mean()), "std": float(std), "stderr": float(error)}


def _divide_batch(network: ExLMForMaskedLM, batch: Batch) -> Iterator[Batch]:
    """Small batches with at most `MOST_LOGITS` logits; a batch of one sequence may have more."""
    most_masks = int((batch["labels"] != IGNORED).sum(1).max())
    states = most_masks * network.config.states_per_mask + 2 * network.config.states_per_boundary
    sequences = max(1, MOST_LOGITS // (states * network.config.vocab_size))
    for start in range(0, len(batch["labels"]), sequences):
        yield {name: values[start : start + sequences] for name, values in batch.items()}


@torch.no_grad()
def batch_entropies(network: ExLMForMaskedLM, batch: Batch) -> dict[str, Tensor]:
    """The entropies, in bits, of the tokens without a visible copy, as means over their r copies.
    `mixture` [tokens] has the entropies of the mixture of a token's states, and for ExLM `states`
    [tokens] the mean entropies of the states themselves. Copies of a token stand side by side."""
    output = network.lattice_output(network.exlm.expand(**batch))
    lattice = output.lattice
    target_entropies = {"mixture": entropy(output.log_marginals)}  # [B, T]
    if network.transition is not None:
        state_entropies = entropy(network.head(output.states).log_softmax(-1))  # [B, N]
        visits = output.visits.double()  # [B, T, N]
        target_entropies["states"] = (visits @ state_entropies[..., None])[..., 0]
    is_masked = batch["labels"] != IGNORED
    copies_masked = is_masked.unflatten(1, (-1, network.config.repeat))  # [B, S, r]
    token_entropies = {}
    for name, values in target_entropies.items():
        input_entropies = torch.zeros(is_masked.shape, dtype=values.dtype)
        # Targets stand in the order of the input.
        input_entropies[is_masked] = values[lattice.target_is_mask].cpu()
        means = input_entropies.view(copies_masked.shape).mean(2)
        token_entropies[name] = means[copies_masked.all(2)]
    return token_entropies


def entropy(log_probabilities: Tensor) -> Tensor:
    """The entropies [...], in bits, of distributions [..., V]; a probability of 0 adds nothing."""
    log_probabilities = log_probabilities.double()
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1) / math.log(2)


def measure_corruption(batches: Iterable[Batch], p: float, repeat: int) -> dict[str, float]:
    """The share of corrupted tokens in a sequence: mean and standard deviation over sequences, as
    measured and by the formula of the appendix. The formula assumes that copies are masked
    independently: the share of N tokens then has mean p^r and variance p^r (1 - p^r) / N, which is
    averaged over sequences. Measured shares vary less, as a fixed number of copies is masked."""
    lengths = []
    corrupted = []
    for batch in batches:
        # BOS and EOS are never masked.
        lengths.append(batch["attention_mask"].sum(1) // repeat - SPECIALS)
        copies_masked = (batch["labels"] != IGNORED).unflatten(1, (-1, repeat))
        corrupted.append(copies_masked.all(2).sum(1))
    tokens = torch.cat(lengths)
    shares = (torch.cat(corrupted) / tokens).double().numpy()
    expected = p**repeat
    variance = expected * (1 - expected) * float((1 / tokens.double()).mean())
    return {
        "mean": float(shares.mean()),
        "std": float(shares.std()),
        "sequences": len(shares),
        "tokens": int(tokens.sum()),
        "predicted": expected,
        "predicted_std": math.sqrt(variance),
    }
