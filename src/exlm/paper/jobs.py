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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
import transformers

from exlm.errors import Interrupted, TrainingStopped
from exlm.storage import plain, write_json

Result = TypeVar("Result")
INTERRUPTED = "interrupted; run the same command to go on"


@dataclass(frozen=True)
class Job:
    """One step of an experiment.

    Attributes:
        kind: jobs of a kind take time in proportion to their `work`.
        name: unique.
        work: in any unit, the same for a kind.
        settings: a finished job is repeated if these have changed.
        output: the file that the job leaves behind.
        run: does it.
        needs: name of the job without which this one cannot be done.
        resumes: an interrupted job goes on if the directory of `output` is there: its time says nothing of others.
    """

    kind: str
    name: str
    work: float
    settings: Any
    output: Path
    run: Callable[[], object]
    needs: str | None = None
    resumes: bool = False

    def identity(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(json.dumps(plain(self.settings), sort_keys=True).encode()).hexdigest()

    def done(self, records: Path) -> bool:
        """Whether the job was finished with these settings, and its output is there."""
        return self.output.exists() and _read(self._path(records)).get("identity") == self.identity()

    def write_record(self, records: Path, seconds: float | None) -> None:
        """Keeps that the job is done, and its time if all of it was done at once."""
        record = {"kind": self.kind, "work": self.work, "seconds": seconds, "identity": self.identity()}
        write_json(self._path(records), record)

    def _path(self, records: Path) -> Path:
        return records / f"{self.name.replace('/', '.')}.json"


def run_jobs(jobs: list[Job], records: Path, own_processes: bool) -> list[str]:
    """Runs what is not done, in order, and says before each how long the rest will take.

    A training that stops itself (diverges) is passed over, and with it what needs it.

    Args:
        jobs: all of an experiment.
        records: directory with a JSON file for every finished job.
        own_processes: run each job in a process of its own.

    Returns:
        One sentence for each job that stopped itself.
    """
    for kind in dict.fromkeys(job.kind for job in jobs):
        same = [job for job in jobs if job.kind == kind]
        left = [job for job in same if not job.done(records)]
        done = f"{len(same) - len(left):3d} of {len(same):3d} done"
        print(f"  {kind:32s} {done}; {duration(left, rates(records))}", flush=True)
    stopped: dict[str, str] = {}
    for number, job in enumerate(jobs):
        left = [other for other in jobs[number:] if not other.done(records)]
        if job not in left:
            continue
        remaining = duration(left, rates(records))
        print(f"[{number + 1}/{len(jobs)}] {job.kind}: {job.name}; {remaining}", flush=True)
        if job.needs in stopped:
            print(f"passed over, since {job.needs} stopped itself", flush=True)
            continue
        fresh, started = not (job.resumes and job.output.parent.exists()), time.monotonic()
        late_signals: list[int] = []
        try:
            in_own_process(job.run, late_signals=late_signals) if own_processes else job.run()
        except TrainingStopped as error:
            stopped[job.name] = f"{job.name}: {error}"
            print(f"stopped: {error}", flush=True)
        else:
            job.write_record(records, time.monotonic() - started if fresh else None)
        if late_signals:
            raise Interrupted(late_signals[0], INTERRUPTED)
    return list(stopped.values())


def _read(path: Path) -> dict[str, Any]:
    """A record, empty where there is none that can be read."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def rates(records: Path) -> dict[str, float]:
    """Seconds per unit of work, by kind, of finished jobs."""
    table = pd.DataFrame([_read(path) for path in records.glob("*.json")], columns=["kind", "work", "seconds"])
    sums = table.dropna().groupby("kind").sum()
    sums = sums[sums["work"] > 0]
    return dict(sums["seconds"] / sums["work"])


def duration(jobs: list[Job], rates: dict[str, float]) -> str:
    """How long jobs will take, as far as it is known from finished ones of their kind."""
    if not jobs:
        return "nothing remains"
    known = [job for job in jobs if job.kind in rates]
    seconds = sum(rates[job.kind] * job.work for job in known)
    minutes = f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
    if not known:
        return f"{len(jobs)} remain, time unknown before the first is done"
    unknown = f", and {len(jobs) - len(known)} whose time is unknown yet" if len(known) < len(jobs) else ""
    return f"{len(jobs)} remain, {minutes}{unknown}"


def in_own_process(function: Callable[..., Result], *values: Any, late_signals: list[int] | None = None) -> Result:
    """The function's result, or the exception that it raised, from a new process. Call it in the main thread.

    SIGINT (Ctrl-C) and SIGTERM are passed on, so that a training saves its state and ends; a second signal ends the
    process at once. The process also ends when the calling one does.

    Args:
        function: defined in a module, so that the new process can import it.
        values: its arguments; they and the result must be picklable.
        late_signals: gets the signals that arrived when the function was about to return, for a caller that has
            something to do with the result before it stops. Where absent, they raise `Interrupted` too.

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
        if received:
            raise Interrupted(received[0], INTERRUPTED) from None
        raise TrainingStopped("its process was killed; often because there was not enough memory") from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received and late_signals is None:
        raise Interrupted(received[0], INTERRUPTED)
    if late_signals is not None:
        late_signals += received
    return result


def _begin(threads: int) -> None:
    """Settings of the new process: those of the command line, and as many threads as the calling process has."""
    os.setpgrp()  # Ctrl-C reaches the calling process alone, which passes it on once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _end_with_parent() -> None:
    """Asks for a stop, as SIGTERM does, when the calling process is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
