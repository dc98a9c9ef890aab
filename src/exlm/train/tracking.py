"""The numbers of a run: means between two log records, written as JSON lines, to TensorBoard and a
progress bar."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from exlm.storage.files import write_text


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a last line cut off by a crash is ignored."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


@dataclass(frozen=True)
class Sums:
    """Sums over the micro-batches and processes of one update, or of several updates: the loss,
    what it is the mean of, sequences without a finite loss, and tokens."""

    loss: float = 0.0
    count: float = 0.0
    infeasible: float = 0.0
    tokens: float = 0.0

    def plus(self, other: "Sums") -> "Sums":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Sums(*(a + b for a, b in pairs))

    @property
    def mean_loss(self) -> float:
        return self.loss / max(self.count, 1.0)


@dataclass
class Progress:
    """Where a run is, as its checkpoints record it: finished updates, the sums since the last
    record of the log, and the updates in a row with infeasible sequences."""

    step: int = 0
    sums: Sums = Sums()
    infeasible_run: int = 0

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Progress":
        return cls(state["step"], Sums(*state["sums"]), state["infeasible_run"])

    def to_json(self) -> dict[str, Any]:
        sums = list(astuple(self.sums))
        return {"step": self.step, "sums": sums, "infeasible_run": self.infeasible_run}

    def add(self, sums: Sums) -> None:
        """Counts one update."""
        self.step += 1
        self.sums = self.sums.plus(sums)
        self.infeasible_run = self.infeasible_run + 1 if sums.infeasible else 0


class Tracker:
    """Writes the numbers of a run to `log.jsonl` and TensorBoard in `directory`, and shows the loss
    in a progress bar. Earlier records after the step where the run begins are removed, since it
    repeats them.

    Args:
        progress: where the run begins.
        steps: the last update.
        active: whether this process writes and shows anything.
        loss_name, description: the names of the loss and of the run."""

    def __init__(
        self,
        directory: Path,
        progress: Progress,
        steps: int,
        active: bool,
        loss_name: str,
        description: str,
    ) -> None:
        self.progress, self.active, self.loss_name = progress, active, loss_name
        self.bar = tqdm(
            total=steps,
            initial=progress.step,
            desc=description,
            unit="step",
            disable=not active,
            mininterval=1,
        )
        if active:
            # It takes a second to import.
            from torch.utils.tensorboard import SummaryWriter

            path = directory / "log.jsonl"
            records = [record for record in read_log(path) if record["step"] <= progress.step]
            write_text(path, "".join(json.dumps(record) + "\n" for record in records))
            self.file = path.open("a")
            self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=progress.step + 1)
        # The time before is not counted.
        self.since = clocks()

    def add(self, sums: Sums) -> None:
        """Counts one update."""
        self.progress.add(sums)
        self.bar.set_postfix({self.loss_name: f"{sums.mean_loss:.3f}"}, refresh=False)
        self.bar.update()

    def log_updates(self, learning_rate: float, grad_norm: float) -> None:
        """Writes the means and sums since the last call. Processor time is that of all threads of
        this process."""
        sums = self.progress.sums
        seconds, processor_seconds = (clocks() - self.since).tolist()
        values = {
            self.loss_name: sums.mean_loss,
            "infeasible": sums.infeasible,
            "tokens": sums.tokens,
            "seconds": max(seconds, 1e-9),
            "processor_seconds": processor_seconds,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
        }
        self.since, self.progress.sums = clocks(), Sums()
        self.log("train", values)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time in this context does not count as training."""
        begin = clocks()
        yield
        self.since += clocks() - begin

    def log(self, kind: str, values: dict[str, Any]) -> None:
        """Writes a record of numbers, and of lists or dictionaries of numbers; `kind` is train or
        eval."""
        if not self.active:
            return
        step = self.progress.step
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if isinstance(value, list):
                value = dict(enumerate(value, 1))
            if isinstance(value, dict):
                for key, number in value.items():
                    self.board.add_scalar(f"{kind}/{name}/{key}", number, step)
            else:
                self.board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self.bar.close()
        if self.active:
            self.file.close()
            self.board.close()


def clocks() -> np.ndarray:
    """The time, and the processor time of this process, in seconds."""
    return np.array([time.monotonic(), time.process_time()])
