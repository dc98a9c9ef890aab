"""Adam with decoupled weight decay, and learning rates as pure functions of the step."""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from exlm.errors import InputError, check_at_least, check_choices
from exlm.identity import NOT_IDENTITY


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and learning-rate schedule.

    Attributes:
        learning_rate: peak learning rate.
        warmup_steps: steps of linear warm-up from 0.
        warmup_ratio: the same as a share of all steps, as in fine-tuning; if given, it replaces
            `warmup_steps`.
        schedule: after warm-up, `polynomial` (power 1: linear to 0, as fairseq), `cosine` to 0, or
            `constant`.
        adam_betas: decay of the first and second moment.
        adam_eps: added to the denominator.
        weight_decay: decoupled weight decay.
        decay: which parameters decay: `matrices` (not biases, norms and other vectors) or `all` (as
            in fairseq).
        clip_norm: largest norm of the gradient; 0 means no clipping."""

    learning_rate: float = 5e-4
    warmup_steps: int = 0
    warmup_ratio: float | None = field(default=None, metadata=NOT_IDENTITY)
    schedule: Literal["polynomial", "cosine", "constant"] = "polynomial"
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-6
    weight_decay: float = 0.01
    decay: Literal["matrices", "all"] = "matrices"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate is {self.learning_rate}; it must be a positive number")
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise InputError(f"adam_betas are {self.adam_betas}; each must lie in [0, 1)")
        check_at_least(self, warmup_steps=0, adam_eps=0, weight_decay=0, clip_norm=0)
        if self.warmup_ratio is not None and not 0 <= self.warmup_ratio < 1:
            raise InputError(f"warmup_ratio is {self.warmup_ratio}; it must lie in [0, 1)")

    def warmup_in(self, steps: int) -> int:
        """The steps of warm-up in a run of `steps` steps; a share is rounded down."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        # 0.57 * 100 is 56.99999999999999 in floating point, but means 57.
        return int(self.warmup_ratio * steps + 1e-9)


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Learning rate of update `step` (0-based) out of `steps`."""
    warmup = config.warmup_in(steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "constant":
        return config.learning_rate
    remaining = (steps - step) / max(1, steps - warmup)
    if config.schedule == "cosine":
        # The cosine is one of float32, as in the runs of earlier versions.
        remaining = 0.5 * (1 - torch.cos(torch.tensor(remaining * torch.pi)).item())
    return config.learning_rate * remaining


def build_optimizer(network: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW in two groups: matrices, and vectors (biases, norms), which decay only if
    `config.decay` is `all`."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    decay_of_vectors = config.weight_decay if config.decay == "all" else 0.0
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": decay_of_vectors},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.adam_betas, eps=config.adam_eps, fused=True
    )
