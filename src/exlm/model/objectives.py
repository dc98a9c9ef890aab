"""Pre-training objectives: from the hidden states of the lattice to a loss, and to marginal predictions.

Losses are (total, count, infeasible): a sum, what it was summed over, and how many sequences had no alignment of finite
probability. Sums, not means, so that a step over several batches or processes is normalised by global counts. Marginals
are log-probabilities [B, T, V] of every target.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops import alignment
from ..ops.emission import cross_entropy, emission
from ..ops.expansion import Lattice
from ..ops.precision import exact_products
from .heads import Prior

if TYPE_CHECKING:
    from .modeling_exlm import ExLMForMaskedLM

Parts = tuple[Tensor, Tensor, Tensor]
LEAST = -87.5  # log-probability of what is impossible, so that a mean over tokens stays a number


def links(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Tensor:
    """The log transition matrix [B, N, N] of an ExLM."""
    assert model.transition is not None
    return model.transition(states, lattice, prior)


def exlm_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Parts:
    """-log f / M per sequence, M targets (paper, section 4.3; the release's normalisation)."""
    value = alignment.log_likelihood(
        emission(*model.head.operands(states), lattice.targets),
        links(model, states, lattice, prior),
        lattice.num_targets,
        lattice.num_states,
    )
    infeasible = value == -torch.inf
    loss = torch.where(infeasible, 0.0, -value / lattice.num_targets)
    return loss.sum(), value.new_full((), len(value)), infeasible.sum()


def visits(matrix: Tensor, lattice: Lattice) -> Tensor:
    """P(path is at state u when it emits target i) [B, T, N], over paths of T states, whatever they emit.

    Args:
        matrix: [B, N, N] log transitions.
        lattice: on the same device.
    """
    free = matrix.new_zeros(*lattice.targets.shape, matrix.shape[1])
    return alignment.posterior(free, matrix, lattice.num_targets, lattice.num_states)[0]


def mixture(weights: Tensor, logits: Tensor) -> Tensor:
    """log of p(y_i) = sum_u P(path is at u when it emits i) p_u(y_i): weights [B, T, N], logits [B, N, V] -> [B, T,
    V]."""
    with torch.autocast(weights.device.type, enabled=False), exact_products(weights.device):
        return (weights @ logits.softmax(-1).to(weights.dtype)).log().clamp(min=LEAST)


def exlm_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Tensor:
    """Exact: a mixture over the states that may emit a target."""
    return mixture(visits(links(model, states, lattice, prior), lattice), model.head(states))


def mlm_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Parts:
    """Cross entropy of the masked tokens; state i is target i since nothing was expanded."""
    inside = slice(1, lattice.targets.shape[1] - 1)
    chosen, answers = lattice.target_is_mask[:, inside], lattice.targets[:, inside]
    losses = cross_entropy(*model.head.operands(states[:, inside].flatten(0, 1)), answers.flatten())
    losses = losses.view_as(answers)
    return torch.where(chosen, losses, 0.0).sum(), chosen.sum(), torch.zeros_like(lattice.num_targets[0])


def mlm_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Tensor:
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


def _blocks(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice) -> tuple[Tensor, slice]:
    """The states by target [B, n, k, ...], and which targets these are: all if BOS and EOS have k states too.

    A sequence with fewer masks than others has its EOS and padding there: to be hidden by the caller.
    """
    k, width = model.config.states_per_mask, lattice.targets.shape[1]
    if model.config.states_per_boundary > 1 or k == 1:
        return states[:, : width * k].unflatten(1, (width, k)), slice(0, width)
    return states[:, 1 : 1 + (width - 2) * k].unflatten(1, (width - 2, k)), slice(1, width - 1)


def ctc_loss(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Parts:
    """ExLM without transitions: the mean over a sequence's blocks of their own CTC loss, `<unk>` as blank.

    Blocks are the masks, and BOS and EOS with `boundary_states: k`, as in the release. A target that is the blank
    itself cannot be aligned and is left out.
    """
    blank_id = model.config.unk_token_id
    by_target, which = _blocks(model, states, lattice)
    answers, chosen = lattice.targets[:, which], lattice.target_is_mask[:, which]
    if model.config.states_per_boundary > 1:
        chosen = torch.arange(answers.shape[1], device=answers.device) < lattice.num_targets[:, None]
    chosen = chosen & (answers != blank_id)
    own = torch.stack([answers, torch.full_like(answers, blank_id)], dim=-1)  # [B, n, 2]
    scores = emission(*model.head.operands(by_target.flatten(0, 1)), own.flatten(0, 1))
    value = single_target_ctc(*scores.view(*own.shape, by_target.shape[2]).permute(2, 3, 0, 1))
    per_sequence = chosen.sum(1, keepdim=True).clamp(min=1)
    total = -torch.where(chosen, value / per_sequence, 0.0).sum()
    return total, chosen.any(1).sum(), torch.zeros_like(lattice.num_targets[0])


def ctc_marginals(model: "ExLMForMaskedLM", states: Tensor, lattice: Lattice, prior: Prior | None = None) -> Tensor:
    by_target, which = _blocks(model, states, lattice)
    log_probs = model.head(by_target).log_softmax(-1).movedim(2, 0)  # [k, B, n, V]
    blank = log_probs[..., model.config.unk_token_id, None]
    score = single_target_ctc(log_probs, blank.expand_as(log_probs))
    score[..., model.config.unk_token_id] = -torch.inf  # the blank is not an answer
    result = score.new_zeros(*lattice.targets.shape, score.shape[-1])
    result[:, which] = score.log_softmax(-1).clamp(min=LEAST)
    return result


LOSSES: dict[str, Callable[..., Parts]] = {"exlm": exlm_loss, "mlm": mlm_loss, "ctc": ctc_loss}
MARGINALS: dict[str, Callable[..., Tensor]] = {"exlm": exlm_marginals, "mlm": mlm_marginals, "ctc": ctc_marginals}


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
