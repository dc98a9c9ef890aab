"""The transition matrix over the DAG of states, as log-probabilities (paper, section 4.2).

`single` is the paper's equation, one softmax over Q K^T / sqrt(d); `gated` is what the authors' release trains:
one such distribution per head, mixed by a learned gate. Both are at least float32 whatever the model's precision,
since a bfloat16 log-probability is off by up to 3% per link.
"""

import torch
from torch import Tensor


def edge_mask(num_states: Tensor, width: int, group: Tensor | None = None) -> Tensor:
    """[B, N, N] bool: an edge u -> v exists iff u < v < num_states.

    Args:
        num_states: [B] states of each sequence.
        width: N, the padded number of states.
        group: [B, N] the mask each state belongs to; where given, states of one mask are not linked (Sparse DAG).
    """
    index = torch.arange(width, device=num_states.device)
    edges = (index[:, None] < index) & (index < num_states[:, None])[:, None, :]
    return edges if group is None else edges & (group[:, :, None] != group[:, None, :])


def single(query: Tensor, key: Tensor, edges: Tensor) -> Tensor:
    """log softmax(Q K^T / sqrt(d)) over the valid successors of every state.

    Args:
        query, key: [B, N, d].
        edges: [B, N, N] bool.

    Returns:
        [B, N, N] at least float32; -inf where there is no edge. States without successors have rows of -inf.
    """
    return gated(query[:, :, None], key[:, :, None], query.new_zeros(*query.shape[:2], 1), edges)


def gated(query: Tensor, key: Tensor, log_gate: Tensor, edges: Tensor) -> Tensor:
    """Mixture over heads of log softmax(q k^T / sqrt(d / H)), weighted by a gate per state.

    Args:
        query, key: [B, N, H, d / H].
        log_gate: [B, N, H] log-probabilities of the heads.
        edges: [B, N, N] bool.

    Returns:
        [B, N, N] at least float32; -inf where there is no edge. States without successors have rows of -inf.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.to(dtype).transpose(1, 2) * query.shape[-1] ** -0.5
    scores = query @ key.to(dtype).permute(0, 2, 3, 1)  # [B, H, N, N]
    # A finite floor: rows without a successor would otherwise give NaN in the softmax and in its gradient.
    scores = scores.masked_fill(~edges[:, None], torch.finfo(scores.dtype).min)
    heads = scores.log_softmax(-1) + log_gate.to(dtype).transpose(1, 2)[..., None]
    return heads.logsumexp(1).masked_fill(~edges, float("-inf"))
