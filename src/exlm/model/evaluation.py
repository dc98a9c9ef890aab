"""Numbers that an evaluation sums over batches of held-out sequences, in float32.

Marginal numbers judge every masked token alone. Joint numbers judge all masked tokens of a sequence
together, which is the purpose of transitions. Let f be the sum over all paths that emit the tokens
(without the emissions of BOS and EOS), and Z_m the same sum with all emissions 1. Then f / Z_m is
the tokens' probability among all fillings with as many tokens, m. Both sums can also be restricted
to paths that give each mask one token. In one pass, an MLM's tokens are independent: its joint
probability is a product. `exlm.model.passes` judges all masked tokens in several passes."""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.objectives import exlm_marginals, visits
from exlm.ops import alignment
from exlm.ops.emission import emission
from exlm.ops.expansion import Lattice
from exlm.ops.transition import Prior


def no_sums(config: PreTrainedConfig) -> dict[str, float]:
    """The sums of `evaluate_batch` over zero batches: a process may have none."""
    names = ["joint_nll", "total", "count", "infeasible", "masked", "correct", "nll"]
    if config.has_links:
        names += ["joint_nll_one_per_mask", "one_per_mask", "sequences"]
        names += [f"by_state_{c}" for c in range(1, config.num_states + 1)]
    return dict.fromkeys(names, 0.0)


@torch.no_grad()
def evaluate_batch(
    model: ExLMForMaskedLM, batch: dict[str, Tensor], prior: Prior | None = None
) -> dict[str, float]:
    """Sums over a batch of input_ids, attention_mask and labels, each [B, S]; `prior` replaces the
    configuration's.

    The result: `total`, `count` and `infeasible` of the objective; `masked` tokens, of which
    `correct`; their `nll` and `joint_nll`. With transitions also `joint_nll_one_per_mask`,
    `one_per_mask` (the share of paths that give each mask one token, over `sequences` with masks)
    and `by_state_c` (how probably state c of its own mask emits a token)."""
    lattice = model.exlm.expand(**batch)
    states = model.states(lattice)
    lattice = lattice.to(states.device)
    loss = model.loss(states, lattice, prior)
    sums = {"total": loss.total, "count": loss.counted, "infeasible": loss.infeasible}
    chosen = lattice.target_is_mask
    if not model.config.has_links:
        marginals = model.marginals(lattice, states)
    else:
        links = model.links(states, lattice, prior)
        weights = visits(links, lattice)
        marginals = exlm_marginals(weights, model.head(states))
        sums |= _joint_sums(emission(*model.head.operands(states), lattice.targets), links, lattice)
        rows, targets = chosen.nonzero(as_tuple=True)
        own, copy = lattice.ordinal[rows] == targets[:, None], lattice.state_copy[rows]
        each = [
            (weights[chosen] * (own & (copy == c))).sum(1)
            for c in range(1, model.config.num_states + 1)
        ]
        sums |= {
            f"by_state_{c}": share for c, share in enumerate(torch.stack(each, dim=1).sum(0), 1)
        }
    found, answers = marginals[chosen], lattice.targets[chosen]
    nll = -found.gather(1, answers[:, None]).double().sum()
    sums |= {"masked": chosen.sum(), "correct": (found.argmax(-1) == answers).sum(), "nll": nll}
    return {name: float(value) for name, value in ({"joint_nll": nll} | sums).items()}


def _joint_sums(scores: Tensor, links: Tensor, lattice: Lattice) -> dict[str, Tensor]:
    """Joint numbers of `evaluate_batch` from the emissions [B, T, N] of the targets and the links
    [B, N, N]."""
    free = torch.zeros_like(scores)
    scores = torch.where(lattice.target_is_mask[:, :, None], scores, free)
    next_mask = lattice.ordinal[:, :, None] + 1 == lattice.ordinal[:, None, :]
    one_each = links.masked_fill(~next_mask, -torch.inf)
    value, every, value_one, every_one = (
        alignment.log_likelihood(x, edges, lattice.target_lengths, lattice.state_lengths).double()
        for edges in (links, one_each)
        for x in (scores, free)
    )
    masked = lattice.target_is_mask.any(1)
    nll, nll_one = (every - value)[masked].sum(), (every_one - value_one)[masked].sum()
    share = (every_one - every)[masked].exp().sum()
    return {
        "joint_nll": nll,
        "joint_nll_one_per_mask": nll_one,
        "one_per_mask": share,
        "sequences": masked.sum(),
    }


def summary(sums: dict[str, float]) -> dict[str, Any]:
    """Means of sums over all batches and processes, by the names of `result.json`."""
    masked = max(sums["masked"], 1.0)
    # nats; perplexities stay finite, at most e^700
    nll, joint = sums["nll"] / masked, sums["joint_nll"] / masked
    result: dict[str, Any] = {
        "loss": sums["total"] / max(sums["count"], 1.0),
        "accuracy": sums["correct"] / masked,
        "nll": nll,
        "perplexity": math.exp(min(nll, 700.0)),
        "joint_nll": joint,
        "joint_perplexity": math.exp(min(joint, 700.0)),
        "infeasible": sums["infeasible"],
    }
    if "sequences" in sums:
        by_state = [value / masked for name, value in sums.items() if name.startswith("by_state_")]
        result["joint_nll_one_per_mask"] = sums["joint_nll_one_per_mask"] / masked
        result["one_per_mask"] = sums["one_per_mask"] / max(sums["sequences"], 1.0)
        result |= {"own_states": sum(by_state), "by_state": by_state}
    return result
