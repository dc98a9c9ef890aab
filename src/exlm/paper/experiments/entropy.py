"""How uncertain predictions are: the entropy, in bits, of the distribution of a masked token (paper, section 3.3).

With repeated tokens only those count all of whose copies are masked, each with the mean over its copies (paper,
appendix on the calculation of entropy). ExLM's distribution of a token is a mixture over the states that may emit it.
Two entropies are given: that of the mixture, which is comparable with an MLM's, and the mean of the states' own, which
is smaller for every mixture of different distributions.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import visits
from exlm.ops.expansion import Lattice
from exlm.paper.experiments import corruption
from exlm.train.precision import in_precision


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropies [...] in bits of distributions [..., V]; an impossible token adds nothing."""
    log_probabilities = log_probabilities.double()
    return -(log_probabilities.exp() * log_probabilities.clamp(min=-1e4)).sum(-1) / math.log(2)


def by_position(values: Tensor, lattice: Lattice, length: int) -> Tensor:
    """Values of targets [B, T] at the input tokens they belong to [B, S], NaN at all others."""
    result = values.new_full((len(values), length), torch.nan)
    rows, targets = lattice.target_is_mask.nonzero(as_tuple=True)
    result[rows, lattice.target_index[rows, targets]] = values[rows, targets]
    return result


def of_tokens(values: Tensor, labels: Tensor, repeat: int) -> Tensor:
    """Means over the copies of every token that has no visible copy.

    Args:
        values: [B, S r], numbers where a copy is masked.
        labels: [B, S r], -100 where it is visible.
        repeat: r.

    Returns:
        [tokens without a visible copy].
    """
    return values.unflatten(1, (-1, repeat)).mean(2)[corruption.corrupted(labels, repeat)]


@torch.no_grad()
def batch_entropies(model: ExLMForMaskedLM, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Entropies [tokens] in bits: `mixture`, and for ExLM `states`."""
    lattice = model.exlm.expand(**batch)
    states = model.states(lattice)
    lattice = lattice.to(states.device)
    found = {"mixture": entropy(model.marginals(lattice, states))}
    if model.transition is not None:
        own = entropy(model.head(states).log_softmax(-1))
        found["states"] = (visits(model.links(states, lattice), lattice).double() @ own[..., None])[..., 0]
    labels = batch["labels"]
    return {
        name: of_tokens(by_position(values, lattice, labels.shape[1]).cpu(), labels, model.config.repeat)
        for name, values in found.items()
    }


def measure(model: ExLMForMaskedLM, batches: Iterable[dict[str, Tensor]]) -> dict[str, Any]:
    """Mean, standard deviation and standard error over tokens, and how many tokens counted or had a visible copy."""
    model.eval()
    device = next(model.parameters()).device
    parts: dict[str, list[Tensor]] = {}
    left_out = 0
    for batch in tqdm(batches, desc="entropy", unit="batch"):
        with in_precision(device, "fp32"):
            found = batch_entropies(model, batch)
        for name, values in found.items():
            parts.setdefault(name, []).append(values)
        masked = (batch["labels"] != corruption.IGNORED).unflatten(1, (-1, model.config.repeat)).any(2)
        left_out += int(masked.sum()) - len(found["mixture"])
    summaries = {name: _summary(torch.cat(values)) for name, values in parts.items()}
    count = sum(map(len, parts["mixture"]))
    return {**summaries["mixture"], "tokens": count, "left_out": left_out, "states": summaries.get("states")}


def _summary(values: Tensor) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("mean", "std", "stderr"), math.nan)
    std = float(values.std(correction=0))
    return {"mean": float(values.mean()), "std": std, "stderr": std / math.sqrt(len(values))}
