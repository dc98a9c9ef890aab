"""Numbers that an evaluation sums over batches of held-out sequences, in float32.

Marginal numbers score every masked token alone. Joint numbers score all masked tokens of a sequence
together, which is the purpose of links. Let f be the sum over all paths that emit the tokens
(without the emissions of BOS and EOS), and Z_m the same sum with all emissions 1. Then f / Z_m is
the tokens' probability among all fillings with as many tokens, m. Both sums can also be restricted
to paths that give each mask one token. In one pass, an MLM's tokens are independent: its joint
probability is a product. `exlm.model.passes` scores all masked tokens in several passes."""

import math
from typing import Any

import torch
from torch import Tensor

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import LatticeOutput, sum_over_paths
from exlm.ops.transition import PriorStrength


def zero_sums(config: ExLMConfig) -> dict[str, float]:
    """The sums of `evaluate_batch` over zero batches: a process may have none."""
    names = ["joint_nll", "total", "count", "infeasible", "masked", "correct", "nll"]
    if config.has_links:
        names += ["joint_nll_one_per_mask", "one_per_mask", "sequences"]
        names += [f"by_state_{c}" for c in range(1, config.num_states + 1)]
    return dict.fromkeys(names, 0.0)


@torch.no_grad()
def evaluate_batch(
    model: ExLMForMaskedLM, batch: dict[str, Tensor], prior: PriorStrength | None = None
) -> dict[str, float]:
    """Sums over a batch of input_ids, attention_mask and labels, each [B, S]; `prior` replaces the
    configuration's.

    The result: `total`, `count` and `infeasible` of the objective; `masked` tokens, of which
    `correct`; their `nll` and `joint_nll`. With links also `joint_nll_one_per_mask`,
    `one_per_mask` (the share of paths that give each mask one token, over `sequences` with masks)
    and `by_state_c` (how probably state c of its own mask emits a token)."""
    output = model.lattice_output(model.exlm.expand(**batch), prior=prior)
    masked = output.lattice.target_is_mask
    loss = model.objective.loss(output)
    joint = model.objective.joint(output, scored=masked)
    predictions = output.marginals[masked]
    answers = output.lattice.targets[masked]
    sums = {
        "joint_nll": -joint[masked.any(1)].sum(),
        "total": loss.total,
        "count": loss.count,
        "infeasible": loss.infeasible,
        "masked": masked.sum(),
        "correct": (predictions.argmax(-1) == answers).sum(),
        "nll": -predictions.gather(1, answers[:, None]).double().sum(),
    }
    if model.config.has_links:
        sums |= _sums_over_links(output, model.config.num_states)
    return {name: float(value) for name, value in sums.items()}


def _sums_over_links(output: LatticeOutput, num_states: int) -> dict[str, Tensor]:
    """The sums of `evaluate_batch` that come with links."""
    lattice = output.lattice
    masked = lattice.target_is_mask
    with_masks = masked.any(1)
    emission_of_masks = torch.where(masked[:, :, None], output.emission, 0.0)
    next_mask = lattice.target_of_state[:, :, None] + 1 == lattice.target_of_state[:, None, :]
    one_each = output.links.masked_fill(~next_mask, -torch.inf)
    all_one_each = sum_over_paths(output.no_emission, one_each, lattice)[with_masks]
    scored_one_each = sum_over_paths(emission_of_masks, one_each, lattice)[with_masks]

    visits = output.visits[masked]  # [masked tokens, N]
    rows, targets = masked.nonzero(as_tuple=True)
    of_own_mask = lattice.target_of_state[rows] == targets[:, None]
    copies = [of_own_mask & (lattice.state_copy[rows] == c) for c in range(1, num_states + 1)]
    by_state = torch.stack([(visits * copy).sum(1) for copy in copies], dim=1).sum(0)
    return {
        "joint_nll_one_per_mask": (all_one_each - scored_one_each).sum(),
        "one_per_mask": (all_one_each - output.log_weight_of_all_paths[with_masks]).exp().sum(),
        "sequences": with_masks.sum(),
        **{f"by_state_{c}": share for c, share in enumerate(by_state, start=1)},
    }


def summary(sums: dict[str, float]) -> dict[str, Any]:
    """Means of sums over all batches and processes, by the names of `result.json`."""
    masked = max(sums["masked"], 1.0)
    nll = sums["nll"] / masked  # nats
    joint_nll = sums["joint_nll"] / masked
    result: dict[str, Any] = {
        "loss": sums["total"] / max(sums["count"], 1.0),
        "accuracy": sums["correct"] / masked,
        "nll": nll,
        "perplexity": _perplexity(nll),
        "joint_nll": joint_nll,
        "joint_perplexity": _perplexity(joint_nll),
        "infeasible": sums["infeasible"],
    }
    if "sequences" in sums:
        by_state = [value / masked for name, value in sums.items() if name.startswith("by_state_")]
        result["joint_nll_one_per_mask"] = sums["joint_nll_one_per_mask"] / masked
        result["one_per_mask"] = sums["one_per_mask"] / max(sums["sequences"], 1.0)
        result["own_states"] = sum(by_state)
        result["by_state"] = by_state
    return result


def _perplexity(nll: float) -> float:
    """The perplexity of a mean nll, at most e^700, so that it stays finite."""
    return math.exp(min(nll, 700.0))
