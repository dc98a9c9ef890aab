"""The alignment as the paper writes it: sums over predecessors, one sequence at a time, in float64.

Slow and obvious; every other back end is tested against it.
"""

import torch
from torch import Tensor


def forward_backward(
    emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Value [B], at least float32, and, if asked for, the posteriors [B, T, N] and [B, N, N]."""
    value = emission.new_full((len(emission),), -torch.inf, dtype=torch.float64)
    at_state = torch.zeros_like(emission, dtype=torch.float64)
    on_edge = torch.zeros_like(transition, dtype=torch.float64)
    for b, (t, n) in enumerate(zip(num_targets.tolist(), num_states.tolist(), strict=True)):
        if 1 <= t <= emission.shape[1] and t <= n <= emission.shape[2]:
            value[b], at_state[b, :t, :n], on_edge[b, :n, :n] = _one_sequence(
                *_usable(emission[b, :t, :n].double(), transition[b, :n, :n].double())
            )
    value = value.to(torch.promote_types(emission.dtype, torch.float32))
    if not gradients:
        return value, None, None
    return value, at_state.to(emission.dtype), on_edge.to(transition.dtype)


def _usable(emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor]:
    """Both inputs with -inf wherever no path of T targets through N states can go, whatever stood there (NaN, too)."""
    targets, states = emission.shape
    i = torch.arange(targets, device=emission.device)[:, None]
    v = torch.arange(states, device=emission.device)
    u, slack = v[:, None], states - targets
    band = (i <= v) & (v <= i + slack)
    ends = ((i > 0) | (v == 0)) & ((i < targets - 1) | (v == states - 1))
    inner = (u > 0).int() + (v < states - 1).int()  # a path of T targets has T - 2 inner states
    edges = (u < v) & (v <= u + slack + 1) & (inner <= targets - 2)
    return emission.where(band & ends, -torch.inf), transition.where(edges, -torch.inf)


def _one_sequence(emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """alpha[i, u]: all partial paths that end by emitting target i at u; beta[i, u]: all their continuations."""
    targets, states = emission.shape
    alpha = torch.full_like(emission, -torch.inf)
    beta = torch.full_like(emission, -torch.inf)
    alpha[0, 0] = emission[0, 0]
    beta[-1, -1] = 0.0
    for i in range(1, targets):
        for u in range(1, states):
            alpha[i, u] = torch.logsumexp(alpha[i - 1, :u] + transition[:u, u], 0) + emission[i, u]
    for i in range(targets - 2, -1, -1):
        for u in range(states - 1):
            onward = transition[u, u + 1 :] + emission[i + 1, u + 1 :] + beta[i + 1, u + 1 :]
            beta[i, u] = torch.logsumexp(onward, 0)
    value, on_edge = alpha[-1, -1], torch.zeros_like(transition)
    if value == -torch.inf:
        return value, torch.zeros_like(emission), on_edge
    for i in range(1, targets):
        use = alpha[i - 1, :, None] + transition + (emission[i] + beta[i])[None, :] - value
        on_edge += use.exp()
    return value, (alpha + beta - value).exp(), on_edge
