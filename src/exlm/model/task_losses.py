"""The losses of fine-tuning tasks. They are sums, as those of objectives are."""

import torch
from torch import Tensor
from torch.nn import functional as F

from exlm.ops.expansion import IGNORED


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
        if labels.is_floating_point():
            problem_type = "multi_label_classification"
        else:
            problem_type = "single_label_classification"
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.long(), reduction="sum"), (labels != IGNORED).sum()
    labels = labels.to(logits.dtype).reshape(logits.shape)
    labelled = ~labels.isnan()
    answers = labels.nan_to_num(0.0)
    if problem_type == "multi_label_classification":
        losses = F.binary_cross_entropy_with_logits(logits, answers, reduction="none")
    else:
        losses = (logits - answers) ** 2
    return torch.where(labelled, losses, 0.0).sum(), labelled.sum()


def span_loss(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Sum over a batch of the mean of the cross entropies of start and end; logits [B, S],
    positions [B]."""
    device = start_logits.device
    start = F.cross_entropy(start_logits, starts.to(device), reduction="sum")
    end = F.cross_entropy(end_logits, ends.to(device), reduction="sum")
    return (start + end) / 2
