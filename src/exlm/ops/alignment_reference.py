"""The alignment as the paper writes it: sums over predecessors, one sequence at a time, in float64.

Slow and obvious; every other back end is tested against it.
"""

import torch
from torch import Tensor

from .alignment_torch import feasible


def forward_backward(
    emission: Tensor, transition: Tensor, target_lengths: Tensor, state_lengths: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log f [B], at least float32, and, if asked for, the posteriors [B, T, N] and [B, N, N]."""
    on_path, edges = feasible(emission, target_lengths, state_lengths)
    clean = emission.double().where(on_path, -torch.inf), transition.double().where(edges, -torch.inf)
    value = emission.new_full((len(emission),), -torch.inf, dtype=torch.float64)
    at_state, on_edge = torch.zeros_like(clean[0]), torch.zeros_like(clean[1])
    for b, (t, n) in enumerate(zip(target_lengths.tolist(), state_lengths.tolist(), strict=True)):
        if 1 <= t <= emission.shape[1] and t <= n <= emission.shape[2]:
            value[b], at_state[b, :t, :n], on_edge[b, :n, :n] = _one_sequence(clean[0][b, :t, :n], clean[1][b, :n, :n])
    value = value.to(torch.promote_types(emission.dtype, torch.float32))
    return (value, at_state.to(emission.dtype), on_edge.to(transition.dtype)) if gradients else (value, None, None)


def _one_sequence(emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """alpha[i, u]: all partial paths that end by emitting target i at u; beta[i, u]: all their continuations."""
    targets, states = emission.shape
    alpha, beta = torch.full_like(emission, -torch.inf), torch.full_like(emission, -torch.inf)
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
