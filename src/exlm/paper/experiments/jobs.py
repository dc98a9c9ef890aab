"""A list of jobs that can be interrupted: what is done, what remains, and how long it will take."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlm.errors import TrainingStopped
from exlm.storage import plain, write_json


@dataclass(frozen=True)
class Job:
    """One command of an experiment.

    Attributes:
        kind: jobs of a kind take time in proportion to their `work`.
        name: unique, also the place of its record.
        work: in any unit, the same for a kind.
        settings: a finished job is repeated if these have changed.
        output: what the job leaves behind.
        begun: what is there once the job has begun: the time of a job that goes on says nothing of others.
        run: does it; must itself go on where it was interrupted.
        needs: the job without which this one cannot be done.
    """

    kind: str
    name: str
    work: float
    settings: Any
    output: Path
    begun: Path
    run: Callable[[], object]
    needs: str | None = None

    @property
    def identity(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(json.dumps(plain(self.settings), sort_keys=True).encode()).hexdigest()


class Ledger:
    """Records of finished jobs in a directory, one JSON file each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def read(self, job: Job) -> dict[str, Any] | None:
        """The record of a job that is done with these settings and whose output is there."""
        try:
            record = json.loads(self._path(job).read_text())
        except (OSError, ValueError):
            return None
        return record if record.get("identity") == job.identity and job.output.exists() else None

    def write(self, job: Job, seconds: float | None) -> None:
        """Records a job as done; `seconds` if all of it was done at once."""
        self.directory.mkdir(parents=True, exist_ok=True)
        entry = {"kind": job.kind, "work": job.work, "seconds": seconds, "identity": job.identity}
        write_json(self._path(job), entry)

    def rates(self) -> dict[str, float]:
        """Seconds per unit of work, by kind."""
        sums: dict[str, list[float]] = {}
        for path in self.directory.glob("*.json"):
            try:
                record = json.loads(path.read_text())
                if record["seconds"] is not None:
                    seconds, work = sums.get(record["kind"], [0.0, 0.0])
                    sums[record["kind"]] = [seconds + record["seconds"], work + record["work"]]
            except (OSError, ValueError, KeyError):
                continue
        return {kind: seconds / work for kind, (seconds, work) in sums.items() if work}

    def _path(self, job: Job) -> Path:
        return self.directory / f"{job.name.replace('/', '.')}.json"


def run_jobs(jobs: list[Job], ledger: Ledger) -> list[str]:
    """Runs what is not done, in order, and says before each how long the rest will take.

    A run that stops itself (diverges) is passed over, and with it what needs it.

    Returns:
        One sentence for each run that stopped itself.
    """
    waiting = [job for job in jobs if ledger.read(job) is None]
    print(overview(jobs, waiting, ledger.rates()), flush=True)
    stopped: dict[str, str] = {}
    for i, job in enumerate(waiting):
        if ledger.read(job) is not None:  # another process was quicker
            continue
        number = len(jobs) - len(waiting) + i + 1
        print(f"[{number}/{len(jobs)}] {job.kind}: {job.name}; {duration(waiting[i:], ledger.rates())}", flush=True)
        if job.needs in stopped:
            print(f"passed over, since {job.needs} stopped itself", flush=True)
            continue
        try:
            _run(job, ledger)
        except TrainingStopped as error:
            stopped[job.name] = f"{job.name}: {error}"
            print(f"stopped: {error}", flush=True)
    return list(stopped.values())


def _run(job: Job, ledger: Ledger) -> None:
    fresh, started = not job.begun.exists(), time.monotonic()
    job.run()
    ledger.write(job, time.monotonic() - started if fresh else None)


def overview(jobs: list[Job], waiting: list[Job], rates: dict[str, float]) -> str:
    """A line for each kind of job."""
    lines = []
    for kind in dict.fromkeys(job.kind for job in jobs):
        total = sum(job.kind == kind for job in jobs)
        left = [job for job in waiting if job.kind == kind]
        lines.append(f"  {kind:32s} {total - len(left):3d} of {total:3d} done; {duration(left, rates)}")
    return "\n".join(lines)


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
