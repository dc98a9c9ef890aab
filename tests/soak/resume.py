"""Stopping and going on: at every step, and several times in a row."""

import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from exlm.data.batching import MaskedBatches
from exlm.data.prepare import prepare
from exlm.errors import Interrupted
from exlm.pretrain.run import pretrain
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, PriorSchedule
from exlm.train.loop import LoopConfig
from exlm.train.optim import OptimizerConfig
from tests.soak import work
from tests.soak.work import Test, differences

STEPS = 48  # two epochs of the corpus below


def _run(shared: Path, output: Path, accumulation: int) -> None:
    corpus = work.shared(
        shared,
        "small-corpus",
        lambda path: prepare(
            [str(work.shared(shared, "molecules.csv", work.molecules))], str(path), workers=1
        ),
    )
    pretrain(
        str(output),
        DataConfig(
            str(corpus),
            tokens_per_batch=270,
            tokens_per_micro_batch=270 // accumulation,
            eval_sequences=10,
        ),
        ArchitectureConfig(
            num_states=2,
            expanded_layers=1,
            copy_embedding=0.06,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.1,
            max_position_embeddings=256,
        ),  # fmt: skip
        LoopConfig(STEPS, OptimizerConfig(1e-3, 5), log_every=4, eval_every=12, save_every=5),
        seed=5,
        prior=PriorSchedule(order=10.0, sticky=3.0, decay=(0.2, 0.9)),
    )


def interrupted_at(steps: Iterable[int], action: Any) -> Any:
    """Replaces `MaskedBatches.__call__` so that it calls `action` when the batch of one of `steps`
    is asked for first. Returns what was there."""
    original, waiting = MaskedBatches.__call__, set(steps)

    def call(self: MaskedBatches, step: int) -> Any:
        if step in waiting:
            waiting.remove(step)
            action()
        return original(self, step)

    MaskedBatches.__call__ = call  # type: ignore[method-assign]
    return original


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Crash(Exception):
    """Stands for a process that ends without a word."""


def _crash() -> None:
    raise Crash


def _trial(directory: Path, steps: list[int], accumulation: int, action: Any) -> dict[str, Any]:
    shared = directory.parent.parent
    expected = shared / f"reference-resume-{accumulation}"
    if not (expected / "result.json").exists():
        _run(shared, expected, accumulation)
    original, stops = interrupted_at(steps, action), 0
    try:
        for _ in range(len(steps) + 1):
            try:
                _run(shared, directory / "run", accumulation)
            except (Interrupted, Crash):
                stops += 1
    finally:
        MaskedBatches.__call__ = original  # type: ignore[method-assign]
    wrong = differences(directory / "run", expected)
    return {
        "passed": not wrong and stops == len(steps),
        "stops": stops,
        "steps": steps,
        "differences": wrong,
    }


def every_step(index: int, directory: Path) -> dict[str, Any]:
    """Stopped by SIGTERM at one of the 48 steps, with 1 or 3 micro-batches per update."""
    return _trial(directory, [1 + index % (STEPS - 2)], (1, 3)[index % 2], _stop)


def every_crash(index: int, directory: Path) -> dict[str, Any]:
    """An exception at one of the 48 steps; the run goes on from the last checkpoint, up to 4 steps
    before."""
    return _trial(directory, [6 + index % (STEPS - 6)], (3, 1)[index % 2], _crash)


def chain(index: int, directory: Path) -> dict[str, Any]:
    """Four stops in one run, one at the end of an epoch."""
    return _trial(
        directory,
        sorted({STEPS // 2, *random.Random(index).sample(range(1, STEPS - 2), 3)}),
        3,
        _stop,
    )


TESTS = [
    Test("resume every step", "stopped at any step, a run ends with the same bits", 96, every_step),
    Test(
        "resume every crash", "crashed at any step, a run ends with the same bits", 96, every_crash
    ),
    Test("resume chain", "stopped four times, a run ends with the same bits", 20, chain),
]
