"""Objectives: losses and marginal predictions from log-probabilities; and the losses of fine-tuning
tasks.

Losses are sums, not means, so that an update over several batches or processes is normalised by
global counts. Marginals are log-probabilities [B, T, V] of every target given the input, summed
over all values of the other targets. Lattices are on the device of the other tensors."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from exlm.ops import alignment
from exlm.ops.expansion import IGNORED as IGNORED
from exlm.ops.expansion import Lattice
from exlm.ops.precision import exact_products

LEAST = -87.5  # stands for log 0, so that a mean over tokens stays finite


class Loss(NamedTuple):
    """The loss of a batch."""

    total: Tensor  # sum of the losses
    counted: Tensor  # what was summed over: sequences (`exlm`, `ctc`) or masked tokens (`mlm`)
    # sequences without any alignment of finite probability; they add 0 to `total`
    infeasible: Tensor


def exlm_loss(emission: Tensor, transition: Tensor, lattice: Lattice) -> Loss:
    """-log f / T of emission [B, T, N] and transition [B, N, N] (paper, section 4.3; normalised as
    in the release)."""
    value = alignment.log_likelihood(
        emission, transition, lattice.target_lengths, lattice.state_lengths
    )
    infeasible = value == -torch.inf
    loss = torch.where(infeasible, 0.0, -value / lattice.target_lengths)
    return Loss(loss.sum(), value.new_full((), len(value)), infeasible.sum())


def visits(transition: Tensor, lattice: Lattice) -> Tensor:
    """P(path is at state u when it emits target i) [B, T, N], over all paths of T states, by
    transitions alone."""
    free = transition.new_zeros(*lattice.targets.shape, transition.shape[1])
    return alignment.posterior(free, transition, lattice.target_lengths, lattice.state_lengths)[0]


def exlm_marginals(weights: Tensor, logits: Tensor) -> Tensor:
    """Exact: a mixture over the states, p(y_i) = sum_u P(path is at u when it emits i) p_u(y_i).
    `weights` [B, T, N] are those of `visits`, `logits` [B, N, V] those of the prediction head."""
    with torch.autocast(weights.device.type, enabled=False), exact_products(weights.device):
        return (weights @ logits.softmax(-1).to(weights.dtype)).log().clamp(min=LEAST)


def mlm_loss(losses: Tensor, masked: Tensor) -> Loss:
    """The cross entropies `losses` [B, n] of all tokens, summed over those that are `masked` [B,
    n]."""
    return Loss(
        torch.where(masked, losses, 0.0).sum(),
        masked.sum(),
        masked.new_zeros((), dtype=torch.int64),
    )


def ctc_blocks(states: Tensor, lattice: Lattice, config: PreTrainedConfig) -> tuple[Tensor, slice]:
    """The k states of each target [B, n, k, ...], and a slice of these targets: all if BOS and EOS
    have k states too. The caller must ignore blocks that hold EOS or padding, of sequences with
    fewer masks than others."""
    k, width = config.states_per_mask, lattice.targets.shape[1]
    if config.states_per_boundary > 1 or k == 1:
        return states[:, : width * k].unflatten(1, (width, k)), slice(0, width)
    return states[:, 1 : 1 + (width - 2) * k].unflatten(1, (width - 2, k)), slice(1, width - 1)


def single_target_ctc(target: Tensor, blank: Tensor) -> Tensor:
    """Log-probability [...] that k states emit blanks, then one target at least once, then blanks
    (CTC, Graves et al. 2006); `target` and `blank` [k, ...] are their log-probabilities at each
    state."""
    before, inside, after = blank[0], target[0], None
    for here, skip in zip(target[1:], blank[1:], strict=True):
        ended = inside + skip
        after = ended if after is None else torch.logaddexp(after + skip, ended)
        inside = torch.logaddexp(before, inside) + here
        before = before + skip
    return inside if after is None else torch.logaddexp(inside, after)


def ctc_loss(target: Tensor, blank: Tensor, counted: Tensor) -> Loss:
    """ExLM without transitions: a sequence's loss is the mean of the CTC losses of its blocks.
    `counted` [B, n] are the blocks that count; `target` and `blank` [k, B, n] are as in
    `single_target_ctc`."""
    value = single_target_ctc(target, blank)
    per_sequence = counted.sum(1, keepdim=True).clamp(min=1)
    total = -torch.where(counted, value / per_sequence, 0.0).sum()
    return Loss(total, counted.any(1).sum(), counted.new_zeros((), dtype=torch.int64))


def ctc_marginals(logits: Tensor, blank_id: int) -> Tensor:
    """Log-probabilities [B, n, V] of each block's target from logits [B, n, k, V]; the target
    cannot be the blank."""
    log_probs = logits.log_softmax(-1).movedim(2, 0)
    score = single_target_ctc(log_probs, log_probs[..., blank_id, None].expand_as(log_probs))
    score[..., blank_id] = -torch.inf
    return score.log_softmax(-1).clamp(min=LEAST)


def classification_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of labelled entries, and their number, from logits [B, tasks or
    classes], or of tokens [B, S, classes]. Labels are [B] or [B, S] class indices
    (single_label_classification), -100 where missing, else [B, tasks] with NaN where missing.
    `problem_type` is as in transformers; if None, it is inferred as there."""
    if logits.dim() == 3:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    if problem_type is None and logits.shape[1] > 1:
        problem_type = (
            "multi_label_classification"
            if labels.is_floating_point()
            else "single_label_classification"
        )
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.long(), reduction="sum"), (labels != IGNORED).sum()
    labels = labels.to(logits.dtype).reshape(logits.shape)
    known, filled = ~labels.isnan(), labels.nan_to_num(0.0)
    if problem_type in ("regression", None):
        each = (logits - filled) ** 2
    else:
        each = F.binary_cross_entropy_with_logits(logits, filled, reduction="none")
    return torch.where(known, each, 0.0).sum(), known.sum()


def span_loss(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Sum over a batch of the mean of the cross entropies of start and end; logits [B, S],
    positions [B]."""
    device = start_logits.device
    first = F.cross_entropy(start_logits, starts.to(device), reduction="sum")
    return (first + F.cross_entropy(end_logits, ends.to(device), reduction="sum")) / 2
