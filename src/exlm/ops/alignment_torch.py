"""The default back end: exact, plain PyTorch, vectorised over the batch and a band of states.

Three ideas make it fast without giving up exactness (scaled probabilities and max-shifted matrix products lose
paths silently once emissions spread over some 80 nats):

* Row-normalised logs. Every row of alpha is shifted to a maximum of 0 and the shifts are summed in float64, so
  float32 rounding does not grow with the value of log f.
* Weights instead of beta. The reverse sweep sends the posterior of row i back along the weights
  exp(alpha[i-1, u] + E[u, v] - logsumexp), which are at most 1: nothing can overflow and NaN cannot arise.
* A feasibility band. Target i can only sit on states i .. i + (N - T): earlier ones cannot be reached by i, from
  later ones the end cannot be reached any more.

"No path" is a large finite negative number, so that there is never an inf - inf.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .fusion import fused

IMPOSSIBLE = -1e30  # any sum of fewer than 1e8 of these is finite in float32
DEAD = -1e29


@dataclass
class _Sweep:
    """What a forward sweep leaves: alpha and row log-sums [B, T, N], clean transitions [B, N, N], value [B]."""

    alpha: Tensor
    total: Tensor
    transition: Tensor
    value: Tensor
    width: int


def _clean(emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor) -> tuple[Tensor, Tensor]:
    """Finite copies, at least float32, of what a path of the right length can use; the rest is removed."""
    dtype = torch.promote_types(emission.dtype, torch.float32)
    target = torch.arange(emission.shape[1], device=emission.device)[:, None]
    state = torch.arange(emission.shape[2], device=emission.device)
    num_targets, num_states = num_targets[:, None, None], num_states[:, None, None]
    slack = num_states - num_targets
    band = (state >= target) & (state - target <= slack)
    band &= ((target > 0) | (state == 0)) & ((target < num_targets - 1) | (state == num_states - 1))
    emission = emission.to(dtype).clamp(min=IMPOSSIBLE).masked_fill(~band, IMPOSSIBLE)
    length = state - state[:, None]
    inner = (state[:, None] > 0).int() + (state < num_states - 1).int()  # a path of T targets has T - 2 inner states
    forward = (length > 0) & (length <= slack + 1) & (inner <= num_targets - 2) & (state < num_states)
    transition = transition.to(dtype).clamp(min=IMPOSSIBLE).masked_fill(~forward, IMPOSSIBLE)
    return emission, transition


def _windows(i: int, width: int, states: int) -> tuple[slice, slice]:
    """Predecessors and successors that row i can use."""
    return slice(i - 1, min(i - 1 + width, states)), slice(i, min(i + width, states))


def _forward(
    emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, best: bool = False
) -> _Sweep:
    emission, transition = _clean(emission, transition, num_targets, num_states)
    batch, targets, states = emission.shape
    # A narrow band saves work, but on a GPU asking for it would wait for all work before.
    narrow = batch and not emission.is_cuda
    width = max(int((num_states - num_targets).max()), 0) + 1 if narrow else states
    alpha = torch.full_like(emission, IMPOSSIBLE)
    total = torch.full_like(emission, IMPOSSIBLE)
    alpha[:, :1, :1] = 0.0
    shift = emission[:, :1, :1].double().sum((1, 2))
    last = (num_states - 1).clamp(min=0, max=max(states - 1, 0))
    value = torch.where((num_targets == 1) & (num_states == 1), shift, torch.full_like(shift, IMPOSSIBLE))
    for i in range(1, min(targets, states)):
        before, here = _windows(i, width, states)
        row = _enter(alpha[:, i - 1, before], transition[:, before, here], best)
        total[:, i, here] = row
        row = row + emission[:, i, here]
        peak = row.amax(1)
        alpha[:, i, here] = row - peak[:, None]
        shift = shift + peak
        arrived = shift + alpha[:, i].gather(1, last[:, None])[:, 0]
        value = torch.where(num_targets == i + 1, arrived, value)
    beyond = (num_targets > num_states) | (num_targets > targets) | (num_states > states)
    value = value.masked_fill((value <= DEAD) | beyond, -torch.inf)
    return _Sweep(alpha, total, transition, value, width)


@fused
def _enter(alpha: Tensor, transition: Tensor, best: bool) -> Tensor:
    """Log-sum, or maximum, over predecessors: alpha [B, V], transition [B, V, U] -> [B, U]."""
    score = alpha[:, :, None] + transition
    return score.amax(1) if best else score.logsumexp(1)


@fused
def _share(alpha: Tensor, transition: Tensor, total: Tensor, posterior: Tensor) -> Tensor:
    """The posterior [B, U] of a row shared out among predecessors: [B, V, U]."""
    score = alpha[:, :, None] + transition
    return (score - total[:, None]).clamp_(max=0.0).exp_().mul_(posterior[:, None])


def _end(sweep: _Sweep, i: int, num_targets: Tensor, num_states: Tensor) -> Tensor:
    """[B, N] one-hot on the last state of the feasible sequences whose last target is i."""
    ending = (num_targets == i + 1) & (sweep.value != -torch.inf)
    state = torch.arange(sweep.alpha.shape[2], device=sweep.alpha.device)
    return (state == (num_states - 1)[:, None]) & ending[:, None]


def forward_backward(
    emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Value [B], at least float32, and, if asked for, the posteriors [B, T, N] and [B, N, N] in the inputs' dtypes."""
    sweep = _forward(emission, transition, num_targets, num_states)
    value = sweep.value.to(sweep.alpha.dtype)
    if not gradients:
        return value, None, None
    at_state = torch.zeros_like(sweep.alpha)
    on_edge = torch.zeros_like(sweep.transition)
    states = emission.shape[2]
    for i in range(min(emission.shape[1], states) - 1, -1, -1):
        at_state[:, i] += _end(sweep, i, num_targets, num_states)
        if i == 0:
            break
        before, here = _windows(i, sweep.width, states)
        rows = sweep.alpha[:, i - 1, before], sweep.transition[:, before, here], sweep.total[:, i, here]
        flow = _share(*rows, at_state[:, i, here])
        on_edge[:, before, here] += flow
        at_state[:, i - 1, before] += flow.sum(2)
    return value, at_state.to(emission.dtype), on_edge.to(transition.dtype)


def best_path(emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor) -> tuple[Tensor, Tensor]:
    """Viterbi: the same sweep with max for sum, then the arg max back from the last state."""
    sweep = _forward(emission, transition, num_targets, num_states, best=True)
    path = _trace(sweep, num_targets, num_states, lambda score: score.argmax(1))
    return path, sweep.value.to(sweep.alpha.dtype)


def sample(
    emission: Tensor,
    transition: Tensor,
    num_targets: Tensor,
    num_states: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Forward filtering, backward sampling."""
    sweep = _forward(emission, transition, num_targets, num_states)

    def draw(score: Tensor) -> Tensor:
        return torch.multinomial(score.softmax(1), 1, generator=generator)[:, 0]

    return _trace(sweep, num_targets, num_states, draw)


def _trace(sweep: _Sweep, num_targets: Tensor, num_states: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """[B, T] states from the last target back to the first; `choose` picks predecessors from scores [B, N]."""
    path = torch.full(sweep.alpha.shape[:2], -1, dtype=torch.long, device=sweep.alpha.device)
    batch = torch.arange(len(path), device=path.device)
    for i in range(min(sweep.alpha.shape[1:]) - 1, -1, -1):
        if i + 1 < path.shape[1]:
            successor = path[:, i + 1]
            chosen = choose(sweep.alpha[:, i] + sweep.transition[batch, :, successor.clamp(min=0)])
            path[:, i] = torch.where(successor >= 0, chosen, -1)
        ending = _end(sweep, i, num_targets, num_states)
        path[:, i] = torch.where(ending.any(1), num_states - 1, path[:, i])
    return path
