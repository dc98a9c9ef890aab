"""The training loop of pre-training and of fine-tuning.

Its inputs are a model, a function from an update's number to its micro-batches, and a loss. The
loss returns a sum, the count it was summed over, and the number of skipped sequences. The loop does
not depend on masks, lattices or tasks. Sums are added over micro-batches and processes and divided
once by the global count. Every micro-batch seeds dropout by (seed, step, number), so on a CPU
resuming is exact, bit for bit; a GPU adds some sums in any order. How a batch is divided changes an
update by rounding and by what dropout drops: other units, with the same probabilities."""

import math
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import is_initialized
from torch.nn.parallel import DistributedDataParallel

from exlm.errors import (
    InputError,
    Interrupted,
    OutOfMemory,
    TrainingStopped,
    check_at_least,
    check_choices,
)
from exlm.identity import NOT_IDENTITY
from exlm.ops.precision import autocast, training_products
from exlm.randomness import Purpose, draw
from exlm.train import checkpoint, distributed
from exlm.train.optim import OptimizerConfig, build_optimizer, learning_rate
from exlm.train.tracking import Sums, Tracker

# what the loss takes, on any device; attention_mask [B, S] is among it
MicroBatch = dict[str, Any]
# with its number within the update, which seeds dropout
NumberedBatch = tuple[int, MicroBatch]
# from a step to its micro-batches
MakeMicroBatches = Callable[[int], list[NumberedBatch]]
# from a model and a micro-batch to a sum, the count it was summed over, and the sequences skipped
LossFunction = Callable[[nn.Module, MicroBatch], tuple[Tensor, Tensor, Tensor]]
Model = TypeVar("Model", bound=nn.Module)

ADVICE = "use a lower learning rate or precision fp32"  # if training stops itself


class EarlyStop(Exception):
    """Raised by an evaluation to end training, with the evaluation's metrics."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        super().__init__(metrics)
        self.metrics = metrics


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
    log_every: int = field(default=10, metadata=NOT_IDENTITY)
    eval_every: int = field(default=0, metadata=NOT_IDENTITY)
    save_every: int = field(default=500, metadata=NOT_IDENTITY)
    keep_checkpoints: int = field(default=2, metadata=NOT_IDENTITY)
    max_infeasible_steps: int = 20
    max_wait: int = field(default=600, metadata=NOT_IDENTITY)
    gradient_checkpointing: bool = field(default=False, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(
            self,
            steps=1,
            log_every=1,
            keep_checkpoints=1,
            max_infeasible_steps=1,
            max_wait=1,
            eval_every=0,
            save_every=0,
        )
        warmup = self.optimizer.warmup_in(self.steps)
        if warmup > self.steps:
            raise InputError(
                f"{warmup} warmup_steps exceed the {self.steps} steps of the run; "
                "give fewer, or a share of the steps as warmup_ratio"
            )

    def with_warmup_steps(self) -> "LoopConfig":
        """The same run with its warm-up in steps; two runs with the same steps are the same."""
        warmup = self.optimizer.warmup_in(self.steps)
        optimizer = replace(self.optimizer, warmup_steps=warmup, warmup_ratio=None)
        return replace(self, optimizer=optimizer)


def fit(
    model: Model,
    loss: LossFunction,
    batches: MakeMicroBatches,
    config: LoopConfig,
    directory: Path,
    seed: int,
    evaluate: Callable[[Model, int], dict[str, Any]] | None = None,
    identity: dict[str, Any] | None = None,
    may_differ: Collection[str] = (),
    loss_name: str = "loss",
    description: str = "train",
    checkpoints: Path | None = None,
) -> dict[str, Any] | None:
    """Trains `model` in place, resuming from the newest undamaged checkpoint.

    Args:
        model: on its device, with float32 weights.
        loss: the sum, the count and the skipped sequences of a micro-batch; see `LossFunction`.
        batches: this process's micro-batches of a step, on the CPU. The model moves them to its
            device once it knows their layout, so that no step waits for sizes.
        config: length of the run, optimizer, and how often it evaluates and saves.
        directory: gets `log.jsonl`, TensorBoard events and, unless `checkpoints` is another
            directory, checkpoints.
        seed: seed of dropout.
        evaluate: (model, finished updates) -> metrics on held-out data.
        identity: settings that must be equal between a checkpoint and this run, but for those that
            `may_differ`. None: the caller sees to that.
        loss_name, description: the names of the loss and of the run in the log and beside the
            progress bar.
        checkpoints: directory of the checkpoints, if it is not `directory`.

    Returns the metrics of the last evaluation; None without `evaluate`, or if the run was complete
    already. TrainingStopped if the loss is not finite, every update skips sequences or memory runs
    out (the last good checkpoint is kept), Interrupted at SIGINT or SIGTERM (after a checkpoint,
    unless `save_every` is 0), InputError if a checkpoint belongs to another run or cannot be
    written."""
    optimizer = build_optimizer(model, config.optimizer)
    checkpoints = checkpoints or directory
    compared = {name: x for name, x in (identity or {}).items() if name not in may_differ}
    state = _first_state(checkpoints, model, optimizer, config, compared)
    signals: list[int] = []
    trained = _for_training(model, config)
    tracker = Tracker(directory, state, config.steps, loss_name, description)
    metrics = None
    with closing(tracker), on_signals(signals.append, once=True):
        for step, micro_batches in _ahead(batches, tracker.step, config.steps):
            sums, norm, stop_signal = update(
                model=trained,
                optimizer=optimizer,
                loss=loss,
                micro_batches=micro_batches,
                config=config,
                seed=seed,
                step=step,
                signals=signals,
            )
            tracker.add(sums)
            _check_feasible(tracker, config)
            if _is_due(tracker.step, config.log_every, config.steps):
                tracker.log_updates(optimizer.param_groups[0]["lr"], norm)
            if evaluate and _is_due(tracker.step, config.eval_every, config.steps):
                metrics, ends_early = _measure(model, evaluate, tracker)
                if ends_early:
                    break
            if stop_signal or _is_due(tracker.step, config.save_every, config.steps):
                _save(checkpoints, model, optimizer, tracker, config, identity)
            _stop_at(stop_signal, tracker.step, config)
    # A signal during the last evaluation or save also stops whatever would be trained next.
    _stop_at(max(signals, default=0), tracker.step, config)
    return metrics


def _for_training(model: nn.Module, config: LoopConfig) -> nn.Module:
    """The model in training mode, which averages its gradients over the processes if there are
    several."""
    model.train()
    if config.gradient_checkpointing:
        recompute_layers(model)
    if is_initialized():
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model


def _first_state(
    checkpoints: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: LoopConfig,
    identity: dict[str, Any],
) -> dict[str, Any]:
    """The state of the checkpoint from which a run goes on, or that of a new run."""
    if config.save_every:
        state = checkpoint.resume(checkpoints, model, optimizer, identity)
        if state is not None:
            return state
    return {"step": 0, "sums": Sums(), "infeasible_run": 0}


def _save(
    checkpoints: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tracker: Tracker,
    config: LoopConfig,
    identity: dict[str, Any] | None,
) -> None:
    if config.save_every and distributed.is_main():
        state = {**tracker.state(), "identity": identity or {}}
        checkpoint.save(checkpoints, model, optimizer, state, config.keep_checkpoints)
    distributed.barrier()


def _measure(
    model: Model, evaluate: Callable[[Model, int], dict[str, Any]], tracker: Tracker
) -> tuple[dict[str, Any], bool]:
    """The metrics of an evaluation, and whether it ends training."""
    ends = False
    try:
        with tracker.paused():
            metrics = evaluate(model, tracker.step)
    except EarlyStop as stop:
        metrics, ends = stop.metrics, True
    tracker.log("eval", metrics)
    model.train()
    return metrics, ends


def _is_due(step: int, every: int, steps: int) -> bool:
    """Whether something is done after this step: every so many steps (0: never), and after the
    last."""
    return step == steps or (every > 0 and step % every == 0)


def _check_feasible(tracker: Tracker, config: LoopConfig) -> None:
    if tracker.infeasible_in_a_row >= config.max_infeasible_steps:
        raise TrainingStopped(
            f"{tracker.infeasible_in_a_row} updates in a row up to step {tracker.step} had "
            f"sequences without any alignment of finite probability"
        )


def _stop_at(stop_signal: int, step: int, config: LoopConfig) -> None:
    """Raises Interrupted unless the signal is 0."""
    if stop_signal:
        aim = "to go on" if config.save_every else "to start again"
        raise Interrupted(
            stop_signal,
            f"interrupted after step {step} of {config.steps}; run the same command {aim}",
        )


def recompute_layers(model: nn.Module) -> None:
    """Makes a Hugging Face model keep only its layers' inputs and compute the layers again in the
    backward pass, with the same dropout. InputError if its class cannot."""
    # transformers renamed the method, and warns of the earlier name where it has both.
    method = "activation_checkpointing_enable"
    if not hasattr(model, method):
        method = "gradient_checkpointing_enable"
    try:
        getattr(model, method)({"use_reentrant": False})
    except ValueError as error:
        raise InputError(
            f"{type(model).__name__} cannot compute its layers again; "
            "leave out gradient_checkpointing"
        ) from error


def _ahead(
    batches: MakeMicroBatches, start: int, steps: int
) -> Iterator[tuple[int, list[NumberedBatch]]]:
    """(step, micro-batches) of every update; a thread makes the next ones while the current ones
    are used."""
    if start >= steps:
        return
    with ThreadPoolExecutor(1) as worker:
        next_batches = worker.submit(batches, start)
        for step in range(start, steps):
            micro_batches = next_batches.result()
            if step + 1 < steps:
                next_batches = worker.submit(batches, step + 1)
            yield step, micro_batches


def update(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: LossFunction,
    micro_batches: list[NumberedBatch],
    config: LoopConfig,
    seed: int,
    step: int,
    signals: Sequence[int] = (),
) -> tuple[Sums, float, int]:
    """One optimizer step on the mean gradient of all micro-batches and processes; the arguments are
    those of `fit`, and the numbers of the signals received so far. Returns the sums, the gradient's
    norm before clipping, and the signal that asks for a stop (0: none), here or in another
    process."""
    sums_here, tokens_here = _add_gradients(
        model, loss, micro_batches, config.precision, seed, step
    )
    signal_here = max(signals, default=0)
    device_sums, tokens, signal_sum, processes = _add_processes(sums_here, tokens_here, signal_here)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    # DDP has averaged the sums over processes; undo that and divide by the global count.
    _, count, _ = device_sums
    scale = processes / count.clamp(min=1.0)
    torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))
    norm_of_mean = torch.nn.utils.get_total_norm(gradients)
    # One process waits for the device here alone.
    results = torch.cat([device_sums, norm_of_mean.double().view(1)])
    total, terms, infeasible, norm = results.tolist()
    sums = Sums(total, terms, infeasible, tokens)
    if not (math.isfinite(norm) and math.isfinite(total)):
        raise TrainingStopped(
            f"the loss or its gradient is not finite at step {step + 1} "
            f"(loss sum {total}, gradient norm {norm})"
        )
    if clip_norm := config.optimizer.clip_norm:
        torch._foreach_mul_(gradients, min(clip_norm / (norm + 1e-6), 1.0))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config.optimizer, step, config.steps)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    stop_signal = signal_here
    # Another process received a signal; which one cannot be told from the sum.
    if signal_here == 0 and signal_sum > 0:
        stop_signal = int(signal.SIGTERM)
    return sums, norm, stop_signal


def _add_gradients(
    model: nn.Module,
    loss: LossFunction,
    micro_batches: list[NumberedBatch],
    precision: str,
    seed: int,
    step: int,
) -> tuple[Tensor, int]:
    """Adds up the gradients of all micro-batches of this process. Returns the sums of what the loss
    returns, [3] float64 on the device, and the number of tokens."""
    device = next(model.parameters()).device
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    tokens = 0
    for i, (number, batch) in enumerate(micro_batches, 1):
        torch.manual_seed(int(draw(Purpose.DROPOUT, seed, step, number)) >> 1)
        # Only the last micro-batch adds up gradients over the processes.
        alone: AbstractContextManager = nullcontext()
        if i < len(micro_batches) and isinstance(model, DistributedDataParallel):
            alone = model.no_sync()
        with alone, training_products(device, precision):
            try:
                with autocast(device, precision):
                    total, count, infeasible = loss(model, batch)
                total.backward()
            except (MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                rows, length = batch["attention_mask"].shape
                raise OutOfMemory(
                    f"out of memory at step {step + 1}, in {rows} sequences of up to {length} "
                    f"tokens ({error})"
                ) from error
        totals += torch.stack([value.double() for value in (total.detach(), count, infeasible)])
        tokens += int(batch["attention_mask"].sum())
    return totals, tokens


def _add_processes(
    sums: Tensor, tokens: int, signal_here: int
) -> tuple[Tensor, float, float, float]:
    """The sums of what the loss returns [3] on the device, of the tokens and of the signals over
    all processes, and their number. One process does not wait for the device."""
    if not is_initialized():
        return sums, float(tokens), float(signal_here), 1.0
    # The host's numbers first: a lost process is noticed here. To read the sums waits for the
    # device, which waits for the gradients of all processes.
    all_tokens, signal_sum, processes = distributed.sum_over_processes(
        [float(tokens), float(signal_here), 1.0]
    )
    totals = distributed.sum_over_processes(sums.tolist())
    return sums.new_tensor(totals), all_tokens, signal_sum, processes


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "can't allocate memory" in str(error)
    )


def on_signals(handler: Callable[[int], object], once: bool = False) -> ExitStack:
    """Calls `handler` with the number of every SIGINT or SIGTERM (`once`: the first) until the
    result is closed."""
    restore = ExitStack()

    def handle(number: int, _frame: object) -> None:
        if once:
            restore.close()
        handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        previous_handler = signal.signal(number, handle)
        restore.callback(signal.signal, number, previous_handler)
    return restore
