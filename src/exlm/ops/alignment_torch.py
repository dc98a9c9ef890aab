"""The back end in plain PyTorch: the reference, and the fallback of the other two. It is exact, and
vectorised over the batch and a band of states.

The forward sweep computes alpha[i, v] = log sum_{u < v} exp(alpha[i-1, u] + E[u, v]) + P[i, v],
the logarithm of the paper's f_{i,u} (section 4.3) and alpha (appendix): the sum over all beginnings
of paths that emit target i at state v. Three ideas make it fast and keep it exact. (Scaled
probabilities and max-shifted matrix products silently lose paths once emissions spread over some
80 nats.)

* Row-normalised logs. Every row of alpha is shifted to a maximum of 0. The shifts are summed in
  float64, so float32 rounding does not grow with the value of log f.
* Weights instead of the paper's beta. The reverse sweep sends the posterior of row i back along the
  weights exp(alpha[i-1, u] + E[u, v] - logsumexp): which share of the paths to v comes from u. They
  are at most 1, so nothing can overflow or become NaN.
* A feasibility band. Target i can only be at states i .. i + (N - T): it cannot reach earlier
  states, and from later ones no path reaches the end.

log 0 is a large finite negative number, so that inf - inf never occurs."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from exlm.ops.precision import at_least_float32

# Stands for log 0. Any sum of fewer than 1e8 of these is finite in float32.
LOG_ZERO = -1e30
# A log-probability at or below this has a LOG_ZERO in its sum: there is no path.
NO_PATH_BELOW = -1e29


class Inputs(NamedTuple):
    """What every back end takes (`exlm.ops.alignment`)."""

    emission: Tensor  # [B, T, N]
    links: Tensor  # [B, N, N]
    target_lengths: Tensor  # [B] int64
    state_lengths: Tensor  # [B] int64


# log f [B], at least float32; the posterior of the states [B, T, N] and the expected use of the
# links [B, N, N], each in the dtype of its input, or None if they are not wanted.
Result = tuple[Tensor, Tensor | None, Tensor | None]


class Sweep(NamedTuple):
    """What a forward sweep computes, and what a reverse sweep needs besides."""

    alpha: Tensor  # [B, T, N] row-normalised
    total: Tensor  # [B, T, N] log-sum over the predecessors, or their maximum
    links: Tensor  # [B, N, N] as it was used
    value: Tensor  # [B] log f, or the best path's log-probability
    # [B, T, N] bool, true at the last target and state of every sequence that has a path
    end: Tensor
    bands: list[tuple[slice, slice]]  # for i = 1, 2, ...: the predecessors and the states of row i


def feasible(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Which emissions [B, T, N] and which links [B, N, N] a path of the right length can use, both
    bool. Of 3 targets and 4 states, target 0 has state 0, target 1 state 1 or 2, target 2 state
    3."""
    _, row_count, column_count = inputs.emission.shape
    i = torch.arange(row_count, device=inputs.emission.device)[:, None]
    u = torch.arange(column_count, device=inputs.emission.device)
    targets = inputs.target_lengths[:, None, None]
    states = inputs.state_lengths[:, None, None]
    slack = states - targets
    starts_right = (i > 0) | (u == 0)
    ends_right = (i < targets - 1) | (u == states - 1)
    band = (i < targets) & (u >= i) & (u - i <= slack) & starts_right & ends_right
    distance = u - u[:, None]
    # How many of a link's two states lie between the first and the last; a path has T - 2 there.
    inner = (u[:, None] > 0).int() + (u < states - 1).int()
    edges = (distance > 0) & (distance <= slack + 1) & (inner <= targets - 2) & (u < states)
    return band, edges


def forward(inputs: Inputs, best: bool = False) -> Sweep:
    """Alpha of all targets; `best` takes the maximum over predecessors (Viterbi) instead of the
    log-sum."""
    emission, links, target_lengths, state_lengths = inputs
    batch, targets, states = emission.shape
    dtype = at_least_float32(emission.dtype)
    band, edges = feasible(inputs)
    emission = emission.to(dtype).clamp(min=LOG_ZERO).masked_fill(~band, LOG_ZERO)
    links = links.to(dtype).clamp(min=LOG_ZERO).masked_fill(~edges, LOG_ZERO)
    # A narrow band saves work, but to read its width from a GPU would wait for all earlier work.
    band_width = states
    if batch and not emission.is_cuda:
        band_width = max(int((state_lengths - target_lengths).max()), 0) + 1
    rows = range(1, min(targets, states))
    bands = [(slice(i - 1, i - 1 + band_width), slice(i, i + band_width)) for i in rows]
    alpha = torch.full_like(emission, LOG_ZERO)
    total = torch.full_like(emission, LOG_ZERO)
    alpha[:, :1, :1] = 0.0
    # the emission of target 0 at state 0; the sum is of one number, or of none in an empty tensor
    shift = emission[:, :1, :1].double().sum((1, 2))
    last = (state_lengths - 1).clamp(min=0, max=max(states - 1, 0))
    only_state = (target_lengths == 1) & (state_lengths == 1)
    value = shift.masked_fill(~only_state, LOG_ZERO)
    for i, (before, here) in enumerate(bands, 1):
        score = alpha[:, i - 1, before, None] + links[:, before, here]
        row = score.amax(1) if best else score.logsumexp(1)
        total[:, i, here] = row
        row = row + emission[:, i, here]
        peak = row.amax(1)
        alpha[:, i, here] = row - peak[:, None]
        shift = shift + peak
        # Paths of i + 1 targets end here, in the last state.
        arrived = shift + alpha[:, i].gather(1, last[:, None])[:, 0]
        value = torch.where(target_lengths == i + 1, arrived, value)
    beyond_tensors = (target_lengths > targets) | (state_lengths > states)
    too_few_states = target_lengths > state_lengths
    no_path = (value <= NO_PATH_BELOW) | beyond_tensors | too_few_states
    value = value.masked_fill(no_path, -torch.inf)
    end = _ends(emission, target_lengths, state_lengths) & (value != -torch.inf)[:, None, None]
    return Sweep(alpha, total, links, value, end, bands)


def _ends(emission: Tensor, target_lengths: Tensor, state_lengths: Tensor) -> Tensor:
    """[B, T, N] bool, true at the last target and state of every sequence."""
    target = torch.arange(emission.shape[1], device=emission.device)
    state = torch.arange(emission.shape[2], device=emission.device)
    is_last_target = target == target_lengths[:, None] - 1
    is_last_state = state == state_lengths[:, None] - 1
    return is_last_target[:, :, None] & is_last_state[:, None]


def forward_backward(inputs: Inputs, gradients: bool = True) -> Result:
    """The back end; without `gradients` the value alone."""
    sweep = forward(inputs)
    value = sweep.value.to(sweep.alpha.dtype)
    if not gradients:
        return value, None, None
    state_posterior = sweep.end.to(value.dtype)
    link_use = torch.zeros_like(sweep.links)
    for i, (before, here) in reversed(list(enumerate(sweep.bands, 1))):
        score = sweep.alpha[:, i - 1, before, None] + sweep.links[:, before, here]
        weight = (score - sweep.total[:, i, None, here]).clamp_(max=0.0).exp_()
        flow = weight.mul_(state_posterior[:, i, None, here])
        link_use[:, before, here] += flow
        state_posterior[:, i - 1, before] += flow.sum(2)
    return value, state_posterior.to(inputs.emission.dtype), link_use.to(inputs.links.dtype)


def backtrack(sweep: Sweep, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """[B, T] states of a path, found from the last target back to the first; -1 for padding or
    without a path. `choose` picks the state before from scores [B, N]."""
    end_state = (sweep.end * torch.arange(sweep.end.shape[2], device=sweep.end.device)).sum(2)
    path = torch.where(sweep.end.any(2), end_state, -1)
    batch = torch.arange(len(path), device=path.device)
    for i in range(len(sweep.bands) - 1, -1, -1):
        successor = path[:, i + 1]
        score = sweep.alpha[:, i] + sweep.links[batch, :, successor.clamp(min=0)]
        path[:, i] = torch.where(successor >= 0, choose(score), path[:, i])
    return path
