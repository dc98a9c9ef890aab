"""Pre-training objectives: from the hidden states of the lattice to a loss, and to marginal predictions.

`loss` returns (total, count, infeasible): a sum, what it was summed over, and how many sequences had no alignment
of finite probability. Sums, not means, so that a step over several batches or processes is normalised by global
counts. `marginals` returns log-probabilities [B, T, V] of every target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops import alignment
from ..ops.emission import cross_entropy, emission
from ..ops.expansion import Lattice

if TYPE_CHECKING:
    from .modeling_exlm import ExLMForMaskedLM

Parts = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Objective:
    loss: Callable[["ExLMForMaskedLM", Tensor, Lattice], Parts]
    marginals: Callable[["ExLMForMaskedLM", Tensor, Lattice], Tensor]


def _emission(model: "ExLMForMaskedLM", states: Tensor, targets: Tensor) -> Tensor:
    return emission(*model.head.operands(states), targets)


def _of_masks(model: "ExLMForMaskedLM", states: Tensor) -> Tensor:
    """[B, N, ...] -> [B, T - 2, k, ...]: states between those of BOS and of EOS, by mask.

    A sequence with fewer masks than others has its EOS and padding there: to be hidden by `target_is_mask`.
    """
    k, boundary = model.config.states_per_mask, model.config.states_per_boundary
    masks = max((states.shape[1] - 2 * boundary) // k, 0)
    return states[:, boundary : boundary + masks * k].unflatten(1, (masks, k))


def exlm_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Parts:
    """-log f / M per sequence, M targets (paper, section 4.3; the release's normalisation)."""
    assert model.transition is not None
    value = alignment.log_likelihood(
        _emission(model, states, lattice.targets),
        model.transition(states, lattice),
        lattice.num_targets,
        lattice.num_states,
    )
    infeasible = value == -torch.inf
    loss = torch.where(infeasible, 0.0, -value / lattice.num_targets)
    return loss.sum(), value.new_full((), len(value)), infeasible.sum()


def visits(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Tensor:
    """P(path is at state u when it emits target i) [B, T, N], over paths of T states, whatever they emit."""
    assert model.transition is not None
    matrix = model.transition(states, lattice)
    free = matrix.new_zeros(*lattice.targets.shape, states.shape[1])
    return alignment.posterior(free, matrix, lattice.num_targets, lattice.num_states)[0]


def exlm_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Tensor:
    """Exact: p(y_i) = sum_u P(path is at u when it emits i) p_u(y_i)."""
    weights = visits(model, states, lattice)
    with torch.autocast(states.device.type, enabled=False):
        return (weights @ model.head(states).softmax(-1).to(weights.dtype)).clamp(min=1e-38).log()


def mlm_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Parts:
    """Cross entropy of the masked tokens; state i is target i since nothing was expanded."""
    inside = slice(1, lattice.targets.shape[1] - 1)
    chosen, answers = lattice.target_is_mask[:, inside], lattice.targets[:, inside]
    losses = cross_entropy(*model.head.operands(_of_masks(model, states).flatten(0, 2)), answers.flatten())
    losses = losses.view_as(answers)
    return torch.where(chosen, losses, 0.0).sum(), chosen.sum(), torch.zeros_like(lattice.num_targets[0])


def mlm_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Tensor:
    return model.head(states).log_softmax(-1)


def single_target_ctc(target: Tensor, blank: Tensor) -> Tensor:
    """log-probability that k states emit one target: blanks, a run of it, blanks (CTC, Graves et al. 2006).

    Args:
        target, blank: [k, ...] log-probabilities of the target and of the blank at each state.

    Returns:
        [...].
    """
    before, inside, after = blank[0], target[0], None
    for here, skip in zip(target[1:], blank[1:], strict=True):
        ended = inside + skip
        after = ended if after is None else torch.logaddexp(after + skip, ended)
        inside = torch.logaddexp(before, inside) + here
        before = before + skip
    return inside if after is None else torch.logaddexp(inside, after)


def ctc_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Parts:
    """ExLM without transitions: the mean over a sequence's masks of their own CTC loss, `<unk>` as blank."""
    inside = slice(1, lattice.targets.shape[1] - 1)
    chosen, answers = lattice.target_is_mask[:, inside], lattice.targets[:, inside]
    blank = torch.full_like(answers, model.config.unk_token_id)
    own = torch.stack([answers, blank], dim=-1)  # [B, T - 2, 2]
    by_mask = _of_masks(model, states)
    scores = _emission(model, by_mask.flatten(0, 1), own.flatten(0, 1)).view(*own.shape, by_mask.shape[2])
    value = single_target_ctc(*scores.permute(2, 3, 0, 1))
    per_sequence = chosen.sum(1, keepdim=True).clamp(min=1)
    total = -torch.where(chosen, value / per_sequence, 0.0).sum()
    return total, chosen.any(1).sum(), torch.zeros_like(lattice.num_targets[0])


def ctc_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> Tensor:
    log_probs = model.head(_of_masks(model, states)).log_softmax(-1).movedim(2, 0)  # [k, B, T - 2, V]
    blank = log_probs[..., model.config.unk_token_id, None]
    score = single_target_ctc(log_probs, blank.expand_as(log_probs))
    score[..., model.config.unk_token_id] = -torch.inf  # the blank is not an answer
    result = score.new_zeros(*lattice.targets.shape, score.shape[-1])
    result[:, 1 : lattice.targets.shape[1] - 1] = score.log_softmax(-1)
    return result


OBJECTIVES: dict[str, Objective] = {
    "exlm": Objective(exlm_loss, exlm_marginals),
    "mlm": Objective(mlm_loss, mlm_marginals),
    "ctc": Objective(ctc_loss, ctc_marginals),
}


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> tuple[Tensor, Tensor]:
    """Sum over labelled entries, and their number.

    Args:
        logits: [B, tasks or classes].
        labels: [B] class indices (single_label_classification), else [B, tasks] with NaN where missing.
        problem_type: as in transformers; inferred from the labels where it is None, as there.
    """
    if problem_type is None and logits.shape[1] > 1:
        problem_type = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.long(), reduction="sum"), logits.new_full((), len(logits))
    labels = labels.to(logits.dtype).reshape(logits.shape)
    known = ~labels.isnan()
    filled = labels.nan_to_num(0.0)
    if problem_type in ("regression", None):
        each = (logits - filled) ** 2
    else:
        each = F.binary_cross_entropy_with_logits(logits, filled, reduction="none")
    return torch.where(known, each, 0.0).sum(), known.sum()


def span_loss(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Sum over a batch of the mean of both cross entropies.

    Args:
        start_logits: [B, S], and `end_logits` alike.
        starts: [B] positions, and `ends` alike.
    """
    device = start_logits.device
    first = F.cross_entropy(start_logits, starts.to(device), reduction="sum")
    return (first + F.cross_entropy(end_logits, ends.to(device), reduction="sum")) / 2
