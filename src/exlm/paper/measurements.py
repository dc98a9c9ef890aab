"""Measures every finished pre-training on its held-out data, with its own mask ratio and repetition: how uncertain
predictions are (entropy; paper, section 3.3), the share of tokens whose copies are all masked (corrupted semantics,
section 3.1), and how probable it is that a masked token is emitted by a state of its own mask (alignment)."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from exlm.data.batching import IGNORED
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import visits
from exlm.pretrain import evaluate, held_out_batches
from exlm.pretrained import load_model
from exlm.recipe import DataConfig
from exlm.storage import write_json
from exlm.train import distributed
from exlm.train.precision import in_precision


def measure_run(run_dir: Path, data: DataConfig, seed: int) -> None:
    """Writes `measurements.json` beside a model pre-trained with `data` and `seed`. In `alignment`, `own` is the share
    of masked tokens that a state of their own mask emits, `by_state` that of each state; null without transitions."""
    model, tokenizer = load_model(str(run_dir), ExLMForMaskedLM)
    distributed.to_device(model)
    batches = list(held_out_batches(data, tokenizer, seed, 0, 1))
    settings, alignment = {"mask_ratio": data.mask_ratio, "repeat": data.repeat}, None
    if model.transition is not None:
        found = evaluate(model, batches)
        alignment = {"own": found["own_states"], "by_state": found["by_state"]}
    entropies, corruption = measure_entropy(model, batches), measure_corruption(batches, data.mask_ratio, data.repeat)
    result = {"entropy": settings | entropies, "corruption": settings | corruption, "alignment": alignment}
    write_json(run_dir / "measurements.json", result)


def measure_entropy(model: ExLMForMaskedLM, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
    """Mean, standard deviation and standard error of the entropy, in bits. `tokens` counts the tokens measured: those
    without a visible copy. `states` has the same three numbers for the entropy of ExLM's states."""
    model.eval()
    with in_precision(model.device, "fp32"):
        found = [batch_entropies(model, batch) for batch in tqdm(batches, desc="entropy", unit="batch")]

    def summary(name: str) -> dict[str, float]:
        values = torch.cat([entropies[name] for entropies in found])
        std = values.std(correction=0)  # without any token, all three numbers are NaN
        return {"mean": float(values.mean()), "std": float(std), "stderr": float(std / math.sqrt(len(values)))}

    tokens = sum(len(entropies["mixture"]) for entropies in found)
    states = summary("states") if model.transition is not None else None
    return {**summary("mixture"), "tokens": tokens, "states": states}


@torch.no_grad()
def batch_entropies(model: ExLMForMaskedLM, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entropies, in bits, of the tokens without a visible copy, as means over their r copies: of the `mixture` of a
    token's states and, for ExLM, the mean of its `states`, each [tokens]. The batch has input_ids, attention_mask and
    labels, each [B, S r], with the copies of a token side by side."""
    lattice = model.exlm.expand(**batch)
    states = model.states(lattice)
    lattice = lattice.to(states.device)
    of_targets = {"mixture": entropy(model.marginals(lattice, states))}  # [B, T]
    if model.transition is not None:
        own = entropy(model.head(states).log_softmax(-1))  # [B, N]
        weights = visits(model.links(states, lattice), lattice).double()  # [B, T, N]
        of_targets["states"] = (weights @ own[..., None])[..., 0]
    labels, result = batch["labels"], {}
    copies = (labels != IGNORED).unflatten(1, (-1, model.config.repeat))  # [B, S, r], which ones are masked
    for name, values in of_targets.items():
        of_inputs = torch.zeros(labels.shape, dtype=values.dtype)
        of_inputs[labels != IGNORED] = values[lattice.target_is_mask].cpu()  # targets stand in the order of the input
        result[name] = of_inputs.view(copies.shape).mean(2)[copies.all(2)]
    return result


def entropy(log_probabilities: Tensor) -> Tensor:
    """The entropies [...], in bits, of distributions [..., V]. A token with probability 0 adds nothing."""
    log_probabilities = log_probabilities.double()
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1) / math.log(2)


def measure_corruption(batches: Iterable[dict[str, Tensor]], p: float, repeat: int) -> dict[str, float]:
    """Corrupted share: mean and standard deviation over sequences, as measured and by the formula of the appendix. The
    formula assumes that copies are masked independently. A sequence of N tokens then has expectation p^r and variance
    p^r (1 - p^r) / N, averaged here over all sequences. Training masks a fixed count: its shares vary less."""
    lengths, corrupted = [], []
    for batch in batches:
        lengths.append(batch["attention_mask"].sum(1) // repeat - 2)  # BOS and EOS are never masked
        corrupted.append((batch["labels"] != IGNORED).unflatten(1, (-1, repeat)).all(2).sum(1))
    share, expected = (torch.cat(corrupted) / torch.cat(lengths)).double().numpy(), p**repeat
    return {
        "mean": float(share.mean()),
        "std": float(share.std()),
        "sequences": len(share),
        "tokens": int(torch.cat(lengths).sum()),
        "predicted": expected,
        "predicted_std": math.sqrt(expected * (1 - expected) * float((1 / torch.cat(lengths).double()).mean())),
    }
