"""Runs jobs one after the other, usually each in a new process."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
import transformers

from exlm.data.processes import end_with_parent
from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.train.signals import on_signals

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """A function that writes a result file, or ends at once if it finds it finished."""

    title: str  # what it does, for messages
    result: Path
    run: Callable[[], object]
    needs: Path | None = None  # a file without which the job cannot be done


def run_jobs(jobs: list[Job], own_processes: bool) -> None:
    """Runs the jobs in order. If a training stops itself (diverges), only the jobs that need its
    result are skipped, and TrainingStopped names it at the end."""
    stopped = []
    for number, job in enumerate(jobs, 1):
        print(f"job {number} of {len(jobs)}: {job.title}, {job.result.parent}", flush=True)
        if job.needs and not job.needs.exists():
            print(f"passed over, since there is no {job.needs}", flush=True)
            continue
        begin = time.monotonic()
        try:
            # what is finished trains nothing
            if own_processes and not job.result.exists():
                in_own_process(job.run)
            else:
                job.run()
        except TrainingStopped as error:
            stopped.append(f"{job.result.parent}: {error}")
            print(f"stopped: {error}", flush=True)
            continue
        print(f"done in {time.monotonic() - begin:.0f} s", flush=True)
    if stopped:
        raise TrainingStopped("; ".join(stopped))


def in_own_process(function: Callable[..., Result], *arguments: object) -> Result:
    """Runs a function in a new process and returns its result. Call it in the main thread, with
    what can be pickled. SIGINT (Ctrl-C) and SIGTERM both reach it as SIGTERM, so that a training
    saves its state and ends; Interrupted is then raised. Its InputError or OSError is raised here.
    TrainingStopped is raised if it was killed or failed unexpectedly."""
    received: list[int] = []

    def pass_on(number: int) -> None:
        received.append(number)
        for process in multiprocessing.active_children():
            process.terminate()

    executor = ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare_process,
        initargs=(torch.get_num_threads(),),
    )
    try:
        with on_signals(pass_on), executor:
            return executor.submit(function, *arguments).result()
    except (InputError, OSError, TrainingStopped):
        raise
    except Exception as error:
        if received:
            raise Interrupted(received[0], "interrupted; run the same command to go on") from None
        if isinstance(error, Interrupted):
            raise
        if isinstance(error, BrokenProcessPool):
            raise TrainingStopped("its process was killed; often memory ran out") from None
        traceback.print_exception(error)
        raise TrainingStopped(f"{type(error).__name__}: {error}") from error


def _prepare_process(threads: int) -> None:
    """The process ends if its caller is killed, has as many threads, and prints less."""
    # Ctrl-C now reaches only the calling process, which passes it on once.
    os.setpgrp()
    end_with_parent()
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
