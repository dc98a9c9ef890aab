"""The training loop of pre-training and of fine-tuning.

Its inputs are a model, a function from an update's number to its micro-batches, and a loss. The
loss returns a sum, the count it was summed over, and the number of skipped sequences. The loop does
not depend on masks, lattices or tasks. Sums are added over micro-batches and processes and divided
once by the global count. Every micro-batch seeds dropout by (seed, step, number), so on a CPU
resuming is exact, bit for bit; a GPU adds some sums in any order. How a batch is divided changes an
update by rounding and by what dropout drops: other units, with the same probabilities."""

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import is_initialized
from torch.nn.parallel import DistributedDataParallel

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.ops.precision import autocast, training_products
from exlm.randomness import Purpose, draw
from exlm.train import checkpoint, distributed
from exlm.train.optim import OptimizerConfig, build_optimizer, learning_rate
from exlm.train.tracking import GO_ON, Sums, Tracker, clocks

Batch = dict[str, Any]  # tensors on the host; attention_mask [B, S] among them
MicroBatches = Callable[[int], list[tuple[int, Batch]]]  # step -> (number within the update, batch)
# sum, count summed over, sequences skipped
Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, Tensor]]
Evaluate = Callable[[nn.Module, int], dict[str, Any]]


class EarlyStop(Exception):
    """Raised by an evaluation to end training; its argument are the evaluation's metrics."""


@dataclass(frozen=True)
class LoopConfig:
    """Length of a run, how it is computed, and how often it reports.

    Attributes:
        steps: optimizer updates.
        optimizer: optimizer and schedule.
        precision: `auto` takes bfloat16 autocast where the processor has it, else float32.
        log_every: updates between log lines.
        eval_every: updates between evaluations on held-out data; 0 evaluates at the end only.
        save_every: updates between checkpoints, with one more at the end; 0 saves none, so no run
            can be resumed.
        keep_checkpoints: how many of the newest checkpoints are kept.
        max_infeasible_steps: stop after this many updates in a row with sequences that had to be
            skipped.
        max_wait: seconds that a process waits for the others before it stops.
        gradient_checkpointing: keep only the inputs of every layer and compute the layers a second
            time in the backward pass: less memory, a third more time, the same numbers."""

    steps: int = 1000
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    log_every: int = 10
    eval_every: int = 0
    save_every: int = 500
    keep_checkpoints: int = 2
    max_infeasible_steps: int = 20
    max_wait: int = 600
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        least = dict.fromkeys(
            ("steps", "log_every", "keep_checkpoints", "max_infeasible_steps", "max_wait"), 1
        )
        for name, smallest in (least | {"eval_every": 0, "save_every": 0}).items():
            if getattr(self, name) < smallest:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {smallest}")
        # a run is known by its steps, however they were given
        if (ratio := self.optimizer.warmup_ratio) is not None:
            optimizer = replace(
                self.optimizer, warmup_steps=int(ratio * self.steps), warmup_ratio=None
            )
            object.__setattr__(self, "optimizer", optimizer)
        if self.optimizer.warmup_steps > self.steps:
            found = f"{self.optimizer.warmup_steps} warmup_steps exceed the {self.steps} steps of the run"
            raise InputError(f"{found}; give fewer, or a share of the steps as warmup_ratio")


def fit(
    model: nn.Module,
    loss: Loss,
    batches: MicroBatches,
    config: LoopConfig,
    directory: Path,
    seed: int,
    evaluate: Evaluate | None = None,
    identity: dict[str, Any] | None = None,
    loss_name: str = "loss",
    description: str = "train",
    checkpoints: Path | None = None,
    memory_advice: str = "make the micro-batches smaller",
) -> dict[str, Any] | None:
    """Trains `model` in place, resuming from the newest undamaged checkpoint.

    Args:
        model: on its device, in training precision.
        batches: this process's micro-batches of a step, on the CPU. The model moves them to its
            device once it knows their layout, so that no step waits for sizes.
        directory: gets `log.jsonl`, TensorBoard events and, unless `checkpoints` is another
            directory, checkpoints.
        evaluate: (model, finished updates) -> metrics on held-out data.
        identity: settings that must be equal between a checkpoint and this run. None: the caller
            sees to that.
        loss_name, description: the names of the loss and of the run in the log and beside the
            progress bar.
        memory_advice: what to do if memory runs out, for the message.

    Returns the metrics of the last update, or None if the run was complete already. TrainingStopped
    if the loss is not finite, every update skips sequences or memory runs out (the last good
    checkpoint is kept), Interrupted at SIGINT or SIGTERM (after a checkpoint, unless `save_every`
    is 0), InputError if a checkpoint belongs to another run or cannot be written."""
    if config.gradient_checkpointing:
        recompute_layers(model)
    optimizer = build_optimizer(model, config.optimizer)
    checkpoints = checkpoints or directory
    state = (
        checkpoint.resume(checkpoints, model, optimizer, identity or {})
        if config.save_every
        else None
    )
    state = state or {"step": 0, "sums": [0.0] * 4, "infeasible_run": 0}
    # averages gradients over the processes
    wrapped = DistributedDataParallel(model) if is_initialized() else model
    main, values = distributed.is_main(), None
    advice = (
        GO_ON if config.save_every and identity else "use a lower learning rate or precision fp32"
    )
    shown, received = (config.max_infeasible_steps, main, loss_name, description), list[int]()
    tracker = Tracker(directory, state, config.steps, *shown)
    with closing(tracker), on_signals(received.append, once=True):
        model.train()
        for step, micro_batches in _ahead(batches, state["step"], config.steps):
            sums, norm, stop = update(
                wrapped,
                optimizer,
                loss,
                micro_batches,
                config,
                seed,
                step,
                received,
                advice,
                memory_advice,
            )
            done, last = step + 1, step + 1 == config.steps
            tracker.add(sums, done)
            if last or done % config.log_every == 0:
                tracker.log_updates(
                    done, learning_rate=optimizer.param_groups[0]["lr"], grad_norm=norm
                )
            if evaluate and (last or (config.eval_every and done % config.eval_every == 0)):
                begin = clocks()
                try:
                    values = evaluate(model, done)
                except EarlyStop as early:
                    tracker.log(done, "eval", early.args[0])
                    return early.args[0]
                tracker.since += clocks() - begin  # it is no training
                tracker.log(done, "eval", values)
                model.train()
            if last or stop or (config.save_every and done % config.save_every == 0):
                if config.save_every and main:
                    now = {
                        "sums": tracker.sums,
                        "infeasible_run": tracker.skipped_in_a_row,
                        "identity": identity or {},
                    }
                    checkpoint.save(
                        checkpoints, done, model, optimizer, now, config.keep_checkpoints
                    )
                distributed.barrier()
            if stop and not last:
                aim = "to go on" if config.save_every else "to start again"
                where = f"interrupted after step {done} of {config.steps}"
                raise Interrupted(stop, f"{where}; run the same command {aim}")
    return values


def recompute_layers(model: nn.Module) -> None:
    """Makes a Hugging Face model keep only its layers' inputs and compute the layers again in the
    backward pass, with the same dropout. InputError if its class cannot."""
    # transformers renamed the method, and warns of the earlier name where it has both.
    renamed = hasattr(model, "activation_checkpointing_enable")
    enable = getattr(
        model, "activation_checkpointing_enable" if renamed else "gradient_checkpointing_enable"
    )
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        name = type(model).__name__
        raise InputError(
            f"{name} cannot compute its layers again; leave out gradient_checkpointing"
        ) from error


def _ahead(
    batches: MicroBatches, start: int, steps: int
) -> Iterator[tuple[int, list[tuple[int, Batch]]]]:
    """(step, micro-batches) of every update; a thread makes the next ones while the current ones
    are used."""
    with ThreadPoolExecutor(1) as worker:
        following = [worker.submit(batches, start)] if start < steps else []
        for step in range(start, steps):
            ready = following.pop().result()
            if step + 1 < steps:
                following.append(worker.submit(batches, step + 1))
            yield step, ready


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    micro_batches: list[tuple[int, Batch]],
    config: LoopConfig,
    seed: int,
    step: int,
    received: Sequence[int] = (),
    advice: str = GO_ON,
    memory_advice: str = "make the micro-batches smaller",
) -> tuple[Sums, float, int]:
    """One optimizer step on the mean gradient of all micro-batches and processes; the arguments are
    those of `fit`. Returns the sums, the gradient's norm before clipping, and the signal that asks
    for a stop (0: none), one of those `received` here or in another process."""
    device = next(model.parameters()).device
    found, tokens = torch.zeros(3, dtype=torch.float64, device=device), 0
    for i, (number, batch) in enumerate(micro_batches, 1):
        torch.manual_seed(int(draw(Purpose.DROPOUT, seed, step, number)) >> 1)
        # gradients of those before are added up in this process only
        last = i == len(micro_batches)
        alone = (
            nullcontext()
            if last or not isinstance(model, DistributedDataParallel)
            else model.no_sync()
        )
        with alone, training_products(device, config.precision):
            try:
                with autocast(device, config.precision):
                    total, count, skipped = loss(model, batch)
                total.backward()
            except (MemoryError, RuntimeError) as error:
                if isinstance(
                    error, torch.OutOfMemoryError | MemoryError
                ) or "can't allocate memory" in str(error):
                    rows, length = batch["attention_mask"].shape
                    where = f"out of memory at step {step + 1}, in {rows} sequences of up to {length} tokens ({error})"
                    raise TrainingStopped(f"{where}; {memory_advice}") from error
                raise
        found += torch.stack([value.double() for value in (total.detach(), count, skipped)])
        tokens += int(batch["attention_mask"].sum())  # on the host, as all batches
    signal_here = max(received, default=0)
    here = [*found.tolist(), float(tokens), float(signal_here), 1.0]
    *values, signals, processes = distributed.sum_over_processes(here)
    sums = Sums(*values)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    # DDP has averaged the sums over processes; undo that and divide by the global count.
    torch._foreach_mul_(gradients, processes / max(sums.counted, 1.0))
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if not (math.isfinite(norm) and math.isfinite(sums.total)):
        where = f"step {step + 1} (loss sum {sums.total}, gradient norm {norm})"
        raise TrainingStopped(f"the loss or its gradient is not finite at {where}; {advice}")
    if clip_norm := config.optimizer.clip_norm:
        torch._foreach_mul_(gradients, min(clip_norm / (norm + 1e-6), 1.0))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config.optimizer, step, config.steps)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return sums, norm, signal_here or (int(signal.SIGTERM) if signals else 0)


def on_signals(handler: Callable[[int], object], once: bool = False) -> ExitStack:
    """Calls `handler` with the number of every SIGINT or SIGTERM (`once`: the first) until the
    result is closed."""
    restore = ExitStack()

    def handle(number: int, _frame: object) -> None:
        if once:
            restore.close()
        handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        restore.callback(signal.signal, number, signal.signal(number, handle))
    return restore
