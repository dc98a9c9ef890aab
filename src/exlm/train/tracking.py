"""The numbers of a run: means between two log records, written as JSON lines, to TensorBoard and a
progress bar."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from exlm.errors import TrainingStopped
from exlm.storage.files import write_text

GO_ON = "the last good checkpoint is kept; change the learning rate or the precision and add --resume_anyway true"


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a last line cut off by a crash is ignored."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


class Sums(NamedTuple):
    """Sums of one update over all its micro-batches and processes."""

    total: float
    counted: float
    skipped: float
    tokens: float


class Tracker:
    """The numbers of a run: means between two records go to `log.jsonl` and TensorBoard in
    `directory`, and a progress bar shows the loss. A run stops if `limit` updates in a row have to
    skip sequences. `state` is that of the checkpoint where the run begins. Records after its step
    are removed, since the run repeats them."""

    def __init__(
        self,
        directory: Path,
        state: dict[str, Any],
        steps: int,
        limit: int,
        active: bool,
        loss: str,
        description: str,
    ) -> None:
        start, self.sums, self.skipped_in_a_row = (
            state["step"],
            state["sums"],
            state["infeasible_run"],
        )
        self.limit, self.active, self.loss = limit, active, loss
        self.bar = tqdm(
            total=steps,
            initial=start,
            desc=description,
            unit="step",
            disable=not active,
            mininterval=1,
        )
        if active:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            path = directory / "log.jsonl"
            kept = [record for record in read_log(path) if record["step"] <= start]
            write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
            self.file = path.open("a")
            self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=start + 1)
        self.since = clocks()  # the time before it is not counted

    def add(self, sums: Sums, step: int) -> None:
        """Counts an update; `step` is the number of finished updates, here and below."""
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if sums.skipped else 0
        if self.skipped_in_a_row >= self.limit:
            skipped = f"{self.skipped_in_a_row} updates in a row up to step {step}"
            raise TrainingStopped(
                f"{skipped} had sequences without any alignment of finite probability; {GO_ON}"
            )
        self.bar.set_postfix(
            {self.loss: f"{sums.total / max(sums.counted, 1.0):.3f}"}, refresh=False
        )
        self.bar.update()

    def log_updates(self, step: int, **further: float) -> None:
        """Writes the means and sums since the last call. Processor time is that of all threads of
        this process."""
        elapsed, sums = clocks() - self.since, Sums(*self.sums)
        self.since, self.sums = clocks(), [0.0] * 4
        values = {
            self.loss: sums.total / max(sums.counted, 1.0),
            "infeasible": sums.skipped,
            "tokens": sums.tokens,
            "seconds": max(float(elapsed[0]), 1e-9),
            "processor_seconds": float(elapsed[1]),
        }
        self.log(step, "train", values | further)

    def log(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Writes a record of numbers, and of lists or dictionaries of numbers; `kind` is train or
        eval."""
        if not self.active:
            return
        self.file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if isinstance(value, list):
                value = dict(enumerate(value, 1))
            numbers = (
                {f"/{key}": number for key, number in value.items()}
                if isinstance(value, dict)
                else {"": value}
            )
            for ending, number in numbers.items():
                self.board.add_scalar(f"{kind}/{name}{ending}", number, step)

    def close(self) -> None:
        self.bar.close()
        if self.active:
            self.file.close()
            self.board.close()


def clocks() -> np.ndarray:
    """The time, and the processor time of this process, in seconds."""
    return np.array([time.monotonic(), time.process_time()])
