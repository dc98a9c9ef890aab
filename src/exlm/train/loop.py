"""The training loop of pre-training and of fine-tuning.

Its inputs are a network, a function from an update's number to its micro-batches, and a loss, which
turns a micro-batch into a `LossSum`. `exlm.train.update` computes one update, `exlm.train.tracking`
counts updates, and the sequences that a loss had to leave out."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from exlm.errors import InputError, Interrupted, check_at_least, check_choices
from exlm.identity import NOT_IDENTITY
from exlm.ops.precision import Precision
from exlm.train import distributed
from exlm.train.checkpoint import Checkpoints
from exlm.train.optim import OptimizerConfig, build_optimizer, learning_rate
from exlm.train.signals import on_signals
from exlm.train.tracking import RunLog, Tracker
from exlm.train.update import LossFunction, NumberedBatch, update

# Makes the micro-batches of a step.
MakeMicroBatches = Callable[[int], list[NumberedBatch]]

# What to do if training stops itself
ADVICE = "use a lower learning rate or precision fp32"


@dataclass(frozen=True)
class LoopConfig:
    """Length of a run, how it is computed, and how often it reports.

    Attributes:
        steps: optimizer updates.
        optimizer: optimizer and schedule.
        precision: `auto` takes bfloat16 autocast where the processor has it, else float32.
        log_every: updates between log lines.
        eval_every: updates between evaluations on held-out data; 0 evaluates at the end only.
        save_every: updates between checkpoints, with one more at the end; 0 saves none.
        keep_checkpoints: how many of the newest checkpoints are kept.
        max_infeasible_steps: stop after this many updates in a row with infeasible sequences, which
            have no alignment with the states of their masks; those of tasks always have one.
        max_wait: seconds that a process waits for the others before it stops.
        gradient_checkpointing: keep only the inputs of every layer and compute the layers a second
            time in the backward pass: less memory, a third more time, the same numbers."""

    steps: int = 1000
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Precision = "auto"
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
    network: nn.Module,
    loss: LossFunction,
    batches: MakeMicroBatches,
    config: LoopConfig,
    seed: int,
    log: RunLog,
    checkpoints: Checkpoints,
    evaluate: Callable[[int], dict[str, Any]],
    ends_early: Callable[[int], bool] = lambda step: False,
) -> dict[str, Any] | None:
    """Trains `network` in place, resuming from the newest undamaged checkpoint.

    Args:
        network: on its device, with float32 weights.
        loss: the `LossSum` of a micro-batch.
        batches: this process's micro-batches of a step, on the CPU. The network moves them to its
            device once it knows their layout, so that no step waits for sizes.
        config: length of the run, optimizer, and how often it logs, evaluates and saves.
        seed: seed of dropout.
        log: where updates and scores are written.
        checkpoints: where this run saves its state, and from which it goes on.
        evaluate: finished updates -> scores of the network on held-out data.
        ends_early: finished updates -> whether training ends after this evaluation.

    Returns the scores of the last evaluation, or None if the run was complete already.
    TrainingStopped if the loss is not finite, too many updates in a row leave out infeasible
    sequences, or memory runs out (the last good checkpoint is kept); Interrupted at SIGINT or
    SIGTERM (after a checkpoint, unless `save_every` is 0); InputError if a checkpoint belongs to
    another run or cannot be written."""
    optimizer = build_optimizer(network, config.optimizer)
    state = checkpoints.resume(network, optimizer)
    parallel_network = _prepare_network(network, config)
    tracker = Tracker(log, state, config.steps)
    signals: list[int] = []
    stop_signal = 0
    scores = None
    with closing(tracker), on_signals(signals.append, once=True):
        for step, micro_batches in _batches_ahead(batches, tracker.step, config.steps):
            rate = learning_rate(config.optimizer, step, config.steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            sums, norm = update(
                network=parallel_network,
                optimizer=optimizer,
                loss=loss,
                micro_batches=micro_batches,
                precision=config.precision,
                clip_norm=config.optimizer.clip_norm,
                seed=seed,
                step=step,
            )
            tracker.add(sums, config.max_infeasible_steps)
            if tracker.is_due(config.log_every):
                tracker.log_updates(rate, norm)
            if tracker.is_due(config.eval_every):
                scores = tracker.log_scores(evaluate)
                network.train()
                if ends_early(tracker.step):
                    break
            stop_signal = distributed.largest_of_processes(max(signals, default=0))
            if config.save_every and (stop_signal or tracker.is_due(config.save_every)):
                checkpoints.save(network, optimizer, tracker.state(), config.keep_checkpoints)
            if stop_signal:
                break
    # A signal during the last evaluation or save also stops whatever would be trained next.
    _raise_if_stopped(max([stop_signal, *signals]), tracker.step, config)
    return scores


def _raise_if_stopped(stop_signal: int, step: int, config: LoopConfig) -> None:
    """Raises Interrupted unless the signal is 0."""
    if stop_signal:
        aim = "to go on" if config.save_every else "to start again"
        raise Interrupted(
            stop_signal,
            f"interrupted after step {step} of {config.steps}; run the same command {aim}",
        )


def _prepare_network(network: nn.Module, config: LoopConfig) -> nn.Module:
    """The network in training mode, which averages its gradients over the processes if there are
    several."""
    network.train()
    if config.gradient_checkpointing:
        recompute_layers(network)
    _, processes = distributed.rank_and_world()
    if processes > 1:
        return DistributedDataParallel(network, gradient_as_bucket_view=True)
    return network


def recompute_layers(network: nn.Module) -> None:
    """Makes a network of transformers keep only the inputs of its layers and compute the layers
    again in the backward pass, with the same dropout. InputError if its class cannot."""
    # transformers renamed the method, and warns of the earlier name where it has both.
    method = "activation_checkpointing_enable"
    if not hasattr(network, method):
        method = "gradient_checkpointing_enable"
    try:
        getattr(network, method)({"use_reentrant": False})
    except ValueError as error:
        raise InputError(
            f"{type(network).__name__} cannot compute its layers again; "
            "leave out gradient_checkpointing"
        ) from error


def _batches_ahead(
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
