"""Numbers that an evaluation sums over batches of held-out sequences, in float32 (docs/method.md).

Marginal numbers score every masked token alone. Joint numbers score all masked tokens of a sequence
together, in one pass; `exlm.model.passes` does it in several."""

import math
from typing import Any

import torch
from torch import Tensor

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import LatticeOutput
from exlm.ops.transition import PriorStrength


def sum_names(config: ExLMConfig) -> list[str]:
    """The names of the sums of `evaluate_batch`."""
    states = range(1, config.num_states + 1) if config.has_links else ()
    return [
        "sequences",
        "masked",
        "correct",
        "nll",
        "joint_nll",
        *(f"by_state_{c}" for c in states),
    ]


@torch.no_grad()
def evaluate_batch(
    network: ExLMForMaskedLM, batch: dict[str, Tensor], prior: PriorStrength | None = None
) -> dict[str, float]:
    """Sums over a batch of input_ids, attention_mask and labels, each [B, S]; `prior` replaces the
    configuration's.

    The result: `sequences`, also those without a masked token, which depend on seed and share;
    `masked` tokens, of which `correct`; their `nll` and `joint_nll`. With links also `by_state_c`:
    how probably state c of its own mask emits a token."""
    output = network.lattice_output(network.exlm.expand(**batch), prior=prior)
    masked = output.lattice.target_is_mask
    joint = network.objective.joint(output, scored=masked)
    predictions = output.log_marginals[masked]
    answers = output.lattice.targets[masked]
    sums = [
        torch.tensor(len(masked)),
        masked.sum(),
        (predictions.argmax(-1) == answers).sum(),
        -predictions.gather(1, answers[:, None]).double().sum(),
        -joint[masked.any(1)].sum(),
    ]
    if network.config.has_links:
        sums += _by_state(output, network.config.num_states)
    return dict(zip(sum_names(network.config), map(float, sums), strict=True))


def _by_state(output: LatticeOutput, num_states: int) -> list[Tensor]:
    """How probably state 1, 2, ... of a token's own mask emits it, summed over all tokens."""
    lattice = output.lattice
    visits = output.visits[lattice.target_is_mask]  # [masked tokens, N]
    rows, targets = lattice.target_is_mask.nonzero(as_tuple=True)
    is_own_mask = lattice.target_of_state[rows] == targets[:, None]
    copy = lattice.state_copy[rows]
    return [(visits * (is_own_mask & (copy == c))).sum() for c in range(1, num_states + 1)]


def summary(sums: dict[str, float]) -> dict[str, Any]:
    """Means of sums over all batches and processes, and how many sequences and masked tokens they
    are of, by the names of `result.json`."""
    masked = max(sums["masked"], 1.0)
    nll = sums["nll"] / masked  # nats
    joint_nll = sums["joint_nll"] / masked
    result: dict[str, Any] = {
        "accuracy": sums["correct"] / masked,
        "nll": nll,
        "perplexity": _perplexity(nll),
        "joint_nll": joint_nll,
        "joint_perplexity": _perplexity(joint_nll),
        "sequences": int(sums["sequences"]),
        "masked_tokens": int(sums["masked"]),
    }
    by_state = [value / masked for name, value in sums.items() if name.startswith("by_state_")]
    if by_state:
        result |= {"own_states": sum(by_state), "by_state": by_state}
    return result


def _perplexity(nll: float) -> float:
    """The perplexity of a mean nll, at most e^700, so that it stays finite."""
    return math.exp(min(nll, 700.0))
