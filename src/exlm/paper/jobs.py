"""Jobs that can be interrupted, each in a process of its own: what is done, what remains, and how long it will take."""

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
import transformers

from exlm.errors import Interrupted, TrainingStopped
from exlm.storage import plain, write_json

Result = TypeVar("Result")
Records = dict[str, dict[str, Any]]  # of finished jobs by name: kind, work, seconds, identity of the settings


@dataclass(frozen=True)
class Job:
    """One step of an experiment.

    Attributes:
        kind: jobs of a kind take time in proportion to their `work`.
        name: unique.
        work: in any unit, the same for a kind.
        settings: a finished job is repeated if these, or those of the job that it needs, have changed.
        output: the file that the job leaves behind.
        run: does it.
        needs: the pre-training without which this one cannot be done.
        resumes: an interrupted job goes on if the directory of `output` is there: its time says nothing of others.
    """

    kind: str
    name: str
    work: float
    settings: dict[str, Any]
    output: Path
    run: Callable[[], object]
    needs: "Job | None" = None
    resumes: bool = False

    @property
    def identity(self) -> str:
        """SHA-256 of the settings."""
        settings = self.settings | ({"model": self.needs.settings} if self.needs else {})
        return hashlib.sha256(json.dumps(plain(settings), sort_keys=True).encode()).hexdigest()

    def done(self, records: Records) -> bool:
        """Whether the job was finished with these settings, and its output is there."""
        record = records.get(self.name.replace("/", "."), {})
        return self.output.exists() and record.get("identity") == self.identity

    def finish(self, directory: Path) -> None:
        """Does the job and adds its record to `directory`, with its time if all of it was done at once."""
        fresh, started = not (self.resumes and self.output.parent.exists()), time.monotonic()
        self.run()
        record = {"kind": self.kind, "work": self.work, "seconds": time.monotonic() - started if fresh else None}
        write_json(directory / f"{self.name.replace('/', '.')}.json", record | {"identity": self.identity})


def read_records(directory: Path) -> Records:
    """The records of finished jobs; damaged files are passed over."""
    records: Records = {}
    for path in directory.glob("*.json"):
        with suppress(OSError, ValueError, TypeError):
            records[path.stem] = dict(json.loads(path.read_text()))
    return records


def run_jobs(jobs: list[Job], directory: Path, own_processes: bool) -> list[str]:
    """Runs what has no record in `directory`, in order, and says before each job how long the rest will take.

    A training that stops itself (diverges) is passed over, and with it what needs it.

    Returns:
        One sentence for each job that stopped itself.
    """
    records = read_records(directory)
    left = [job for job in jobs if not job.done(records)]
    for kind in dict.fromkeys(job.kind for job in jobs):
        total, missing = sum(job.kind == kind for job in jobs), [job for job in left if job.kind == kind]
        print(f"  {kind:32s} {total - len(missing):3d} of {total:3d} done; {duration(missing, records)}", flush=True)
    stopped: dict[str, str] = {}
    for i, job in enumerate(left):
        remaining = duration(left[i:], read_records(directory))
        print(f"[{jobs.index(job) + 1}/{len(jobs)}] {job.kind}: {job.name}; {remaining}", flush=True)
        if job.needs and job.needs.name in stopped:
            print(f"passed over, since {job.needs.name} stopped itself", flush=True)
            continue
        try:
            in_own_process(job.finish, directory) if own_processes else job.finish(directory)
        except TrainingStopped as error:
            stopped[job.name] = f"{job.name}: {error}"
            print(f"stopped: {error}", flush=True)
    return list(stopped.values())


def duration(jobs: list[Job], records: Records) -> str:
    """How long jobs will take, as far as finished jobs of their kind tell."""
    if not jobs:
        return "nothing remains"
    finished = pd.DataFrame(list(records.values()), columns=["kind", "work", "seconds"])
    sums = finished.dropna().groupby("kind").sum()
    rates = sums["seconds"] / sums["work"].where(sums["work"] > 0)
    seconds = rates.reindex([job.kind for job in jobs]) * [job.work for job in jobs]
    unknown, minutes = int(seconds.isna().sum()), seconds.sum() / 60
    if unknown == len(jobs):
        return f"{len(jobs)} remain, time unknown before the first is done"
    about = f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"
    return f"{len(jobs)} remain, {about}" + (f", and {unknown} whose time is unknown yet" if unknown else "")


def in_own_process(function: Callable[..., Result], *values: Any) -> Result:
    """The function's result, or the exception that it raised, from a new process. Call it in the main thread.

    SIGINT (Ctrl-C) and SIGTERM are passed on, so that a training saves its state and ends; a second signal ends the
    process at once. The process also ends when the calling one does.

    Args:
        function: defined in a module, so that the new process can import it.
        values: its arguments; they and the result must be picklable.

    Raises:
        Interrupted: a signal asked for a stop.
        TrainingStopped: the process was killed, for lack of memory for example.
    """
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        for process in multiprocessing.active_children():
            (process.kill if received else process.terminate)()
        received.append(number)

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (torch.get_num_threads(),)) as pool:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C must not end the process while it begins
            future = pool.submit(function, *values)
            for number in previous:
                signal.signal(number, pass_on)
            result = future.result()
    except Interrupted as error:
        raise Interrupted(received[0] if received else error.number, str(error)) from None
    except BrokenProcessPool:
        if not received:
            raise TrainingStopped("its process was killed; often because there was not enough memory") from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise Interrupted(received[0], "interrupted; run the same command to go on")
    return result


def _begin(threads: int) -> None:
    """Settings of the new process: those of the command line, and as many threads as the calling process has."""

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    os.setpgrp()  # Ctrl-C reaches the calling process alone, which passes it on once
    threading.Thread(target=end_with_parent, daemon=True).start()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
