"""What every loss of this package is: a sum, and what it was summed over."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LossSum:
    """The loss of a batch, as tensors of one number each."""

    total: Tensor  # sum of the losses
    # How many terms `total` has: sequences (`exlm`, `ctc`), masked tokens (`mlm`) or labels of a
    # task.
    count: Tensor
    # Sequences that cannot be learned, since no alignment of their targets with the states has a
    # finite probability: they add 0 to `total`. A task has none.
    infeasible: Tensor
