"""Jobs that leave a file behind, one after the other, each in a process of its own."""

import json
import multiprocessing
import os
import signal
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import transformers

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage import plain, write_json


@dataclass(frozen=True)
class Job:
    """What leaves a file behind. It is done once, and again if other settings are recorded beside the file."""

    kind: str  # jobs of a kind take about as long as each other
    result: Path
    run: Callable[[], object]
    settings: dict[str, Any]  # all that the result is made from
    needs: Path | None = None  # a file without which the job cannot be done

    @property
    def record(self) -> Path:
        """Where the settings of the finished job are: `result.settings.json` for `result.json`."""
        return self.result.with_suffix(".settings.json")

    def finished(self) -> bool:
        """Whether the result is there and was made with these settings."""
        there = self.result.exists() and self.record.exists()
        return there and json.loads(self.record.read_text()) == plain(self.settings)


def run_jobs(jobs: list[Job], own_processes: bool) -> None:
    """Does what is not finished, in order, and says how long the rest will take, once one job of every kind was done.

    A training that stops itself (diverges) is passed over, and what needs it; TrainingStopped names it at the end.
    """
    left = [job for job in jobs if not job.finished()]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} jobs are finished already", flush=True)
    seconds: dict[str, list[float]] = defaultdict(list)
    stopped = []
    for number, job in enumerate(left, 1):
        print(f"job {number} of {len(left)}: {job.kind}, {job.result.parent}", flush=True)
        if job.needs and not job.needs.exists():
            print(f"passed over, since there is no {job.needs}", flush=True)
            continue
        begin = time.monotonic()
        try:
            in_own_process(job.run) if own_processes else job.run()
        except TrainingStopped as error:
            stopped.append(f"{job.result.parent}: {error}")
            print(f"stopped: {error}", flush=True)
            continue
        write_json(job.record, job.settings)
        seconds[job.kind].append(time.monotonic() - begin)
        message = f"done in {seconds[job.kind][-1]:.0f} s"
        if left[number:] and all(seconds[other.kind] for other in left[number:]):
            rest = sum(statistics.mean(seconds[other.kind]) for other in left[number:])
            message += f", the rest takes about {timedelta(seconds=round(rest))}"
        print(message, flush=True)
    if stopped:
        raise TrainingStopped("; ".join(stopped))


def in_own_process(function: Callable[..., Any], *values: Any) -> Any:
    """The function's result from a new process, or its error if that is one for users. Call it in the main thread.

    The function must stand in a module; its arguments and its result must be picklable. SIGINT (Ctrl-C) and SIGTERM
    both arrive as SIGTERM, so that a training saves its state and ends.

    Raises:
        Interrupted: a signal asked for a stop.
        TrainingStopped: the process was killed, for lack of memory for example, or failed unexpectedly.
    """
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        for process in multiprocessing.active_children():
            process.terminate()

    spawn = multiprocessing.get_context("spawn")
    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ProcessPoolExecutor(1, spawn, _begin, (torch.get_num_threads(),)) as executor:
            return executor.submit(function, *values).result()
    except (InputError, OSError, TrainingStopped):
        raise
    except Exception as error:
        if received:
            raise Interrupted(received[0], "interrupted; run the same command to go on") from None
        if isinstance(error, BrokenProcessPool):
            raise TrainingStopped("its process was killed; often memory ran out") from None
        traceback.print_exception(error)
        raise TrainingStopped(f"{type(error).__name__}: {error}") from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _begin(threads: int) -> None:
    """Gives the new process the settings of the command line and the threads of the calling process."""
    os.setpgrp()  # Ctrl-C reaches the calling process alone, which passes it on once
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
