"""Runs jobs one after the other, usually each in a new process. Every job writes a result file."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from exlm.data.processes import end_with_parent
from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.storage.files import write_json
from exlm.storage.runs import made_with
from exlm.train.loop import on_signals

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """A function that writes a result file, unless there is one made with the same settings."""

    title: str  # what it does, for messages
    result: Path
    run: Callable[[], object]
    settings: dict[str, Any]  # everything that the result depends on
    needs: Path | None = None  # a file without which the job cannot be done

    @property
    def settings_file(self) -> Path:
        """It has the settings of the finished job: `result.settings.json` for `result.json`."""
        return self.result.with_suffix(".settings.json")

    def finished(self) -> bool:
        """Whether the result file exists and was made with these settings."""
        return self.result.exists() and made_with(self.settings, self.settings_file)


def run_jobs(jobs: list[Job], own_processes: bool) -> None:
    """Runs the unfinished jobs in order. If a training stops itself (diverges), only the jobs that
    need its result are skipped, and TrainingStopped names it at the end."""
    unfinished = [job for job in jobs if not job.finished()]
    if len(unfinished) < len(jobs):
        finished = len(jobs) - len(unfinished)
        print(f"{finished} of {len(jobs)} jobs are finished already", flush=True)
    stopped = []
    for number, job in enumerate(unfinished, 1):
        print(f"job {number} of {len(unfinished)}: {job.title}, {job.result.parent}", flush=True)
        if job.needs and not job.needs.exists():
            print(f"passed over, since there is no {job.needs}", flush=True)
            continue
        begin = time.monotonic()
        try:
            if own_processes:
                in_own_process(job.run)
            else:
                job.run()
        except TrainingStopped as error:
            stopped.append(f"{job.result.parent}: {error}")
            print(f"stopped: {error}", flush=True)
            continue
        write_json(job.settings_file, job.settings)
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
