"""The alignment as the paper writes it: sums over predecessors, one sequence at a time, in float64.

Slow and obvious; every other back end is tested against it.
"""

import torch
from torch import Tensor


def forward_backward(
    emission: Tensor, transition: Tensor, num_targets: Tensor, num_states: Tensor, gradients: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Value [B], at least float32, and, if asked for, the posteriors [B, T, N] and [B, N, N]."""
    at_state = torch.zeros_like(emission, dtype=torch.float64)
    on_edge = torch.zeros_like(transition, dtype=torch.float64)
    values = []
    lengths = zip(num_targets.tolist(), num_states.tolist(), strict=True)
    for b, (targets, states) in enumerate(lengths):
        value, at_state[b, :targets, :states], on_edge[b, :states, :states] = _one_sequence(
            emission[b, :targets, :states].double(), transition[b, :states, :states].double()
        )
        values.append(value)
    value = torch.stack(values) if values else emission.new_zeros(0)
    value = value.to(torch.promote_types(emission.dtype, torch.float32))
    if not gradients:
        return value, None, None
    return value, at_state.to(emission.dtype), on_edge.to(transition.dtype)


def _one_sequence(emission: Tensor, transition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """alpha[i, u]: all partial paths that end by emitting target i at u; beta[i, u]: all their continuations."""
    targets, states = emission.shape
    alpha = torch.full_like(emission, -torch.inf)
    beta = torch.full_like(emission, -torch.inf)
    if targets and states:
        alpha[0, 0] = emission[0, 0]
        beta[-1, -1] = 0.0
    for i in range(1, targets):
        for u in range(1, states):
            alpha[i, u] = torch.logsumexp(alpha[i - 1, :u] + transition[:u, u], 0) + emission[i, u]
    for i in range(targets - 2, -1, -1):
        for u in range(states - 1):
            onward = transition[u, u + 1 :] + emission[i + 1, u + 1 :] + beta[i + 1, u + 1 :]
            beta[i, u] = torch.logsumexp(onward, 0)
    value = alpha[-1, -1] if targets and states else emission.new_tensor(-torch.inf)
    on_edge = torch.zeros_like(transition)
    if value == -torch.inf:
        return value, torch.zeros_like(emission), on_edge
    for i in range(1, targets):
        use = alpha[i - 1, :, None] + transition + (emission[i] + beta[i])[None, :] - value
        on_edge += use.exp().triu(1)
    return value, (alpha + beta - value).exp(), on_edge
