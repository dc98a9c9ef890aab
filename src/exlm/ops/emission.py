"""Emission: the log-probability of every target at every state, log softmax(H W^T + b) (paper, section 4.2)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def emission(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of the targets at the states.

    Args:
        hidden: [B, N, D] states after the prediction head's transform.
        weight: [V, D] token embeddings (tied).
        bias: [V].
        targets: [B, T] token ids.

    Returns:
        [B, T, N] at least float32.
    """
    logits = F.linear(hidden, weight, bias)  # [B, N, V]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    columns = targets[:, None, :].expand(-1, logits.shape[1], -1)
    return (logits.gather(2, columns) - logits.logsumexp(-1, keepdim=True)).transpose(1, 2)
