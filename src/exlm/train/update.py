"""One optimizer step on the micro-batches of all processes.

A loss is a sum over a micro-batch. The sums of all micro-batches and processes are added up, and
divided once by the global count.

Every micro-batch seeds dropout by (seed, step, number). So on a CPU a run that is resumed is exact,
bit for bit; a GPU adds some sums in any order. How a batch is divided into micro-batches changes an
update by rounding and by what dropout drops: other numbers, with the same probabilities."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from exlm.errors import OutOfMemory, TrainingStopped
from exlm.ops.loss import LossSum
from exlm.ops.precision import autocast, float32_products
from exlm.randomness import Purpose, random_bits
from exlm.train import distributed

# What a loss takes, on any device, and always attention_mask [B, S]
MicroBatch = dict[str, Any]
# A micro-batch with its number within the update, which seeds dropout
NumberedBatch = tuple[int, MicroBatch]
LossFunction = Callable[[nn.Module, MicroBatch], LossSum]


@dataclass(frozen=True)
class Sums:
    """A `LossSum` in numbers, of all micro-batches and processes of one update or of several; and
    how many tokens these had."""

    total: float = 0.0
    count: float = 0.0
    infeasible: float = 0.0
    tokens: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            total=self.total + other.total,
            count=self.count + other.count,
            infeasible=self.infeasible + other.infeasible,
            tokens=self.tokens + other.tokens,
        )

    @property
    def mean_loss(self) -> float:
        """The mean of the losses that were counted; 0 without any."""
        return self.total / max(self.count, 1.0)


def update(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: LossFunction,
    micro_batches: list[NumberedBatch],
    precision: str,
    clip_norm: float,
    seed: int,
    step: int,
) -> tuple[Sums, float]:
    """Makes one optimizer step on the mean gradient of all micro-batches and processes. `clip_norm`
    is the largest norm of the gradient (0: any), `seed` the seed of dropout.

    Returns the sums, and the gradient's norm before clipping. TrainingStopped if one of them is not
    finite, OutOfMemory if memory runs out."""
    sums = _add_gradients(network, loss, micro_batches, precision, seed, step)
    _, processes = distributed.rank_and_world()
    if processes > 1:
        # A lost process is noticed here: to read the sums waits for the device, and the device for
        # the gradients of all processes.
        distributed.barrier()
        sums = sums.new_tensor(distributed.sum_over_processes(sums.tolist()))
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    # DDP has averaged the gradients over processes; undo that and divide by the global count.
    count_of_all = sums[1]
    scale = processes / count_of_all.clamp(min=1.0)
    torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))
    norm_of_mean = torch.nn.utils.get_total_norm(gradients)
    # With one process, nothing before this line waits for the device.
    numbers = torch.cat([sums, norm_of_mean.double().view(1)]).tolist()
    sums_of_all = Sums(*numbers[:-1])
    norm = numbers[-1]
    if not (math.isfinite(norm) and math.isfinite(sums_of_all.total)):
        raise TrainingStopped(
            f"the loss or its gradient is not finite at step {step + 1} "
            f"(loss sum {sums_of_all.total}, gradient norm {norm})"
        )
    if clip_norm:
        torch._foreach_mul_(gradients, min(clip_norm / (norm + 1e-6), 1.0))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums_of_all, norm


def _add_gradients(
    network: nn.Module,
    loss: LossFunction,
    micro_batches: list[NumberedBatch],
    precision: str,
    seed: int,
    step: int,
) -> Tensor:
    """Adds up the gradients of all micro-batches of this process. Returns their `Sums`, [4] float64
    on the device."""
    device = next(network.parameters()).device
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    for i, (number, batch) in enumerate(micro_batches, 1):
        torch.manual_seed(int(random_bits(Purpose.DROPOUT, seed, step, number)) >> 1)
        # Only the last micro-batch adds up gradients over the processes.
        synchronisation: AbstractContextManager = nullcontext()
        if i < len(micro_batches) and isinstance(network, DistributedDataParallel):
            synchronisation = network.no_sync()
        with synchronisation, float32_products(device, precision):
            try:
                with autocast(device, precision):
                    loss_sum = loss(network, batch)
                loss_sum.total.backward()
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                rows, length = batch["attention_mask"].shape
                raise OutOfMemory(
                    f"out of memory at step {step + 1}, in {rows} sequences of up to {length} "
                    f"tokens ({error})"
                ) from error
        values = (loss_sum.total.detach(), loss_sum.count, loss_sum.infeasible)
        sums[:3] += torch.stack([value.double() for value in values])
        sums[3] += int(batch["attention_mask"].sum())
    return sums


def _is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory of a GPU or of the host ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "can't allocate memory" in str(error)
    )
