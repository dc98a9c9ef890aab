"""The training loop, for pre-training and fine-tuning alike.

It knows modules, a function from step to batches and a loss that returns a sum and a count; nothing of masks,
lattices or tasks. Sums are accumulated over micro-batches and processes and divided once by the global count, so
the update does not depend on how a batch is cut. Randomness is reseeded from (seed, step, piece), so that a run
resumed after any step continues bit for bit.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..ops.precision import exact_level, products
from ..randomness import dropout_seed
from . import checkpoint, distributed
from .optim import OptimizerConfig, build_optimizer, learning_rate
from .tracking import Tracker

Batch = dict[str, Any]  # tensors on the host; attention_mask [B, S] among them
MicroBatches = Callable[[int], list[tuple[int, Batch]]]
Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor, Tensor]]
Evaluate = Callable[[nn.Module, int], dict[str, Any]]


class TrainingStopped(RuntimeError):
    """Training cannot go on: the loss is not finite or no sequence can be aligned any more."""


class Interrupted(RuntimeError):
    """A signal asked for a stop; the state was saved. `number` is the signal's."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class EarlyStop(Exception):
    """Raised by an evaluation to end training; carries its metrics."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__("early stop")
        self.values = values


@dataclass(frozen=True)
class LoopConfig:
    """Length of a run, how it is computed, and how often it reports.

    Attributes:
        steps: optimizer updates.
        optimizer: optimizer and schedule.
        precision: `auto` takes bfloat16 autocast where the processor has it, else float32.
        log_every: updates between log lines.
        eval_every: updates between evaluations on held-out data; 0 evaluates at the end only.
        save_every: updates between checkpoints, and one at the end; 0 saves none, so that nothing can be resumed.
        keep_checkpoints: how many of the newest are kept.
        max_infeasible_steps: stop after this many updates in a row with sequences that have no alignment.
    """

    steps: int = 1000
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    log_every: int = 10
    eval_every: int = 0
    save_every: int = 500
    keep_checkpoints: int = 2
    max_infeasible_steps: int = 20

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "keep_checkpoints", "max_infeasible_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.optimizer.warmup_steps > self.steps:
            raise InputError(f"warmup_steps ({self.optimizer.warmup_steps}) exceed the {self.steps} steps of the run")
        if self.eval_every < 0 or self.save_every < 0:
            raise InputError("eval_every and save_every must not be negative")


def used_precision(device: torch.device, precision: str) -> Literal["bf16", "fp32"]:
    """What `precision` comes to on a device: `auto` is bfloat16 where the processor computes with it."""
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if precision == "bf16" or (precision == "auto" and native) else "fp32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """bfloat16 autocast, or nothing."""
    enabled = used_precision(device, precision) == "bf16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def training_products(device: torch.device, precision: str) -> AbstractContextManager:
    """Products that stay float32 in training: true float32, but on a GPU beside bfloat16 those of the heads may be
    TF32, which is eight times as precise as bfloat16."""
    half_on_gpu = device.type != "cpu" and used_precision(device, precision) == "bf16"
    return products("high" if half_on_gpu else exact_level(device))


@contextmanager
def in_precision(device: torch.device, precision: str) -> Iterator[None]:
    """For evaluation and prediction: what `precision` says, whatever the process or a surrounding autocast says."""
    with training_products(device, precision), autocast(device, precision):
        yield


def fit(
    model: nn.Module,
    loss: Loss,
    batches: MicroBatches,
    config: LoopConfig,
    directory: Path,
    seed: int,
    evaluate: Evaluate | None = None,
    identity: dict[str, Any] | None = None,
    description: str = "train",
) -> None:
    """Trains `model` in place, resuming from the newest checkpoint in `directory` that verifies.

    Args:
        model: on its device, in training precision.
        loss: (model, batch) -> (sum of losses, count, sequences that could not be aligned).
        batches: step -> [(piece number, batch)] of this process. They stay on the host: the model brings them to its
            device when it knows their layout, so that no step waits for sizes.
        config: see `LoopConfig`.
        directory: gets checkpoints, `log.jsonl` and TensorBoard events.
        seed: of dropout.
        evaluate: (model, finished updates) -> metrics on held-out data.
        identity: facts that must be equal between a checkpoint and this run.
        description: of the progress bar.

    Raises:
        TrainingStopped: the loss is not finite, or nothing can be aligned. The last good checkpoint is kept.
        Interrupted: SIGINT or SIGTERM arrived; a checkpoint was saved if `save_every` is not 0.
        InputError: a checkpoint belongs to another run or cannot be written.
    """
    optimizer = build_optimizer(model, config.optimizer)
    meter = _Meter(config.max_infeasible_steps)
    start = _resume(directory, model, optimizer, identity or {}, meter) if config.save_every else 0
    wrapped = distributed.wrap(model)
    device = next(model.parameters()).device
    context = autocast(device, config.precision)

    def save(step: int) -> None:
        if config.save_every and distributed.is_main():
            state = {"identity": identity or {}, "sums": meter.sums, "infeasible_run": meter.infeasible_run}
            checkpoint.save(directory, step, model, optimizer, state)
            checkpoint.prune(directory, config.keep_checkpoints)
        distributed.barrier()

    def report(step: int) -> None:
        last = step == config.steps
        if last or step % config.log_every == 0:
            tracker.log(step, "train", meter.read() | {"learning_rate": rate, "grad_norm": norm})
        if evaluate and (last or (config.eval_every and step % config.eval_every == 0)):
            with meter.paused():
                tracker.log(step, "eval", evaluate(model, step))
            model.train()

    with (
        Tracker(directory, start, config.steps, distributed.is_main(), description) as tracker,
        _signals() as received,
        training_products(device, config.precision),
    ):
        model.train()
        for step, made in _ahead(batches, start, config.steps):
            rate = learning_rate(config.optimizer, step, config.steps)
            pieces = [(dropout_seed(seed, step, piece), batch) for piece, batch in made]
            sums, stop = _accumulate(wrapped, loss, pieces, context, received)
            norm = _update(model, optimizer, rate, config, sums, step)
            meter.add(sums, step)
            tracker.advance(sums.total / max(sums.counted, 1.0))
            try:
                report(step + 1)
            except EarlyStop as early:
                tracker.log(step + 1, "eval", early.values)
                return
            due = step + 1 == config.steps or (config.save_every and (step + 1) % config.save_every == 0)
            if due or stop:
                save(step + 1)
            if stop and step + 1 < config.steps:
                kept = (
                    "run the same command to go on" if config.save_every else "the same command starts this part again"
                )
                raise Interrupted(stop, f"interrupted after step {step + 1} of {config.steps}; {kept}")


def _resume(
    directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: dict[str, Any], meter: "_Meter"
) -> int:
    """Restores everything from the newest good checkpoint; returns the number of finished updates."""
    path, rejected = checkpoint.newest(directory)
    distributed.barrier()
    if distributed.is_main() and path is not None:
        for damaged, reason in rejected.items():
            print(f"warning: {damaged} is passed over and set aside: {reason}", flush=True)
            checkpoint.set_aside(damaged)
    if path is None:
        if rejected:
            first, reason = next(iter(rejected.items()))
            raise InputError(f"no checkpoint verifies ({first}: {reason}); delete {directory} to start again")
        return 0
    state = checkpoint.read_state(path)
    for name, value in identity.items():
        if state["identity"].get(name) != value:
            raise InputError(
                f"{path} was trained with {name} {state['identity'].get(name)!r}, this run has {value!r}; restore it, "
                "use another output directory, or (training settings only) add --resume_anyway true"
            )
    with torch.no_grad():
        checkpoint.load(path, model, optimizer)
    meter.sums, meter.infeasible_run = state["sums"], state["infeasible_run"]
    return int(state["step"])


def _ahead(batches: MicroBatches, start: int, steps: int) -> Iterator[tuple[int, list[tuple[int, Batch]]]]:
    """(step, batches) of every step; a thread makes the next ones while the present ones are used."""
    with ThreadPoolExecutor(1) as worker:
        following = worker.submit(batches, start) if start < steps else None
        for step in range(start, steps):
            assert following is not None
            made = following.result()
            if step + 1 < steps:
                following = worker.submit(batches, step + 1)
            yield step, made


class Sums(NamedTuple):
    """Of one update, over all its micro-batches and processes."""

    total: float
    counted: float
    infeasible: float
    tokens: float


def _accumulate(
    model: nn.Module,
    loss: Loss,
    pieces: list[tuple[int, Batch]],
    context: AbstractContextManager,
    received: list[int],
) -> tuple[Sums, int]:
    """Adds up gradients of the summed loss; returns the sums and the signal that asks for a stop (0 for none)."""
    device = next(model.parameters()).device
    sums, tokens = torch.zeros(3, dtype=torch.float64, device=device), 0
    for number, (seed, batch) in enumerate(pieces):
        torch.manual_seed(seed)
        with distributed.no_sync(model) if number + 1 < len(pieces) else nullcontext():
            with context:
                total, count, infeasible = loss(model, batch)
            total.backward()
        sums += torch.stack([part.double() for part in (total.detach(), count, infeasible)])
        tokens += int(batch["attention_mask"].sum())  # on the host, as all batches
    *values, stop = distributed.sum_over_processes([*sums.tolist(), float(tokens), float(max(received, default=0))])
    return Sums(*values), max(received, default=0) or (int(signal.SIGTERM) if stop else 0)


def _update(
    model: nn.Module, optimizer: torch.optim.Optimizer, rate: float, config: LoopConfig, sums: Sums, step: int
) -> float:
    """One optimizer step on the mean gradient; returns its norm before clipping."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    # DDP has averaged the sums over processes; undo that and divide by the global count.
    torch._foreach_mul_(gradients, distributed.world_size() / max(sums.counted, 1.0))
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if not (math.isfinite(norm) and math.isfinite(sums.total)):
        way_out = (
            "the last good checkpoint is kept: to go on from it with another learning rate or precision, change the "
            "setting and add --resume_anyway true"
        )
        raise TrainingStopped(
            f"the loss or its gradient is not finite at step {step + 1} (loss sum {sums.total}, gradient norm "
            f"{norm}); {way_out if config.save_every else 'use a lower learning rate or precision fp32'}"
        )
    if clip_norm := config.optimizer.clip_norm:
        torch._foreach_mul_(gradients, min(clip_norm / (norm + 1e-6), 1.0))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


class _Meter:
    """Means since the last log line; stops a run whose sequences cannot be aligned any more."""

    def __init__(self, max_infeasible_steps: int) -> None:
        self.limit, self.infeasible_run = max_infeasible_steps, 0
        self.since = time.monotonic()
        self.sums = [0.0] * 4

    def add(self, sums: Sums, step: int) -> None:
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.infeasible_run = self.infeasible_run + 1 if sums.infeasible else 0
        if self.infeasible_run >= self.limit:
            raise TrainingStopped(
                f"{self.infeasible_run} updates in a row up to step {step + 1} had sequences without any alignment of "
                "finite probability; the last good checkpoint is kept: to go on from it with a lower learning rate, "
                "change it and add --resume_anyway true"
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is not training."""
        before = time.monotonic()
        yield
        self.since += time.monotonic() - before

    def read(self) -> dict[str, float]:
        now = time.monotonic()
        sums, seconds = Sums(*self.sums), max(now - self.since, 1e-9)
        self.since, self.sums = now, [0.0] * 4
        return {
            "loss": sums.total / max(sums.counted, 1.0),
            "infeasible": sums.infeasible,
            "tokens": sums.tokens,
            "seconds": seconds,
        }


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM; a second one acts at once."""
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        restore()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()
