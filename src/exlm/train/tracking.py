"""The log of a run: means between two entries, written as JSON lines, to TensorBoard and a progress
bar."""

import json
import time
from collections.abc import Callable
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from exlm.errors import TrainingStopped
from exlm.storage.files import TRAINING_LOG, read_log, to_json_types, write_log
from exlm.train import distributed
from exlm.train.update import Sums
from exlm.upgrades import upgrade_checkpoint


class RunLog(NamedTuple):
    """Where a run writes its log, and how this names things."""

    directory: Path  # for `log.jsonl` and the events of TensorBoard
    loss_name: str = "loss"
    description: str = "train"  # of the run, beside its progress bar


class Tracker:
    """Counts the updates of a run, shows them in a progress bar, and logs means between two
    entries.

    `state` is None, or the state in the checkpoint from which a run goes on. Entries after its step
    are removed, since the run repeats them. Only the main process writes and shows anything."""

    def __init__(self, log: RunLog, state: dict[str, Any] | None, steps: int) -> None:
        self.loss_name = log.loss_name
        if state is None:
            state = {"step": 0, "sums": (), "seconds": [0.0, 0.0], "infeasible_in_a_row": 0}
        state = upgrade_checkpoint(state)
        self.steps = steps
        self.step = state["step"]
        self.sums = Sums(*state["sums"])
        self.infeasible_in_a_row = state["infeasible_in_a_row"]
        self.active = distributed.is_main()
        self.board: Any = None  # the writer for TensorBoard, where it is installed
        self.bar = tqdm(
            total=steps,
            initial=self.step,
            desc=log.description,
            unit="step",
            disable=not self.active,
        )
        if self.active:
            path = log.directory / TRAINING_LOG
            entries = [entry for entry in read_log(path) if entry["step"] <= self.step]
            write_log(path, entries)
            self.file = path.open("a")
            if find_spec("tensorboard") is not None:
                from torch.utils.tensorboard import SummaryWriter  # takes a second

                self.board = SummaryWriter(log.directory / "tensorboard", purge_step=self.step + 1)
        # The time that it took to load the run is not counted.
        self.since = clocks() - np.array(state["seconds"])

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: finished updates, how many of the last had infeasible sequences,
        and the sums and the `clocks` since the last entry of the log."""
        return {
            "step": self.step,
            "sums": astuple(self.sums),
            "infeasible_in_a_row": self.infeasible_in_a_row,
            "seconds": (clocks() - self.since).tolist(),
        }

    def is_due(self, every: int) -> bool:
        """Whether something is done now: every so many updates (0: never), and after the last."""
        return self.step == self.steps or (every > 0 and self.step % every == 0)

    def add(self, sums: Sums, max_infeasible: int) -> None:
        """Counts one update. TrainingStopped if each of the last `max_infeasible` updates had
        infeasible sequences."""
        self.step += 1
        self.sums += sums
        self.infeasible_in_a_row = self.infeasible_in_a_row + 1 if sums.infeasible else 0
        self.bar.set_postfix({self.loss_name: f"{sums.mean_loss:.3f}"}, refresh=False)
        self.bar.update()
        if self.infeasible_in_a_row >= max_infeasible:
            raise TrainingStopped(
                f"{self.infeasible_in_a_row} updates in a row up to step {self.step} left out "
                "infeasible sequences"
            )

    def log_updates(self, learning_rate: float, grad_norm: float) -> None:
        """Writes the means and sums since the last call. Processor time is the sum over all threads
        of this process."""
        seconds, processor_seconds = (clocks() - self.since).tolist()
        values = {
            self.loss_name: self.sums.mean_loss,
            "infeasible": self.sums.infeasible,
            "tokens": self.sums.tokens,
            "seconds": max(seconds, 1e-9),
            "processor_seconds": processor_seconds,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
        }
        self.since = clocks()
        self.sums = Sums()
        self.log("train", values)

    def log_scores(self, evaluate: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """Writes and returns the scores at this step. Their time does not count as training."""
        begin = clocks()
        scores = evaluate(self.step)
        self.since += clocks() - begin
        self.log("eval", scores)
        return scores

    def log(self, kind: str, values: dict[str, Any]) -> None:
        """Writes an entry of numbers, and of lists or dictionaries of numbers, which TensorBoard
        does not get; `kind` is train or eval."""
        if not self.active:
            return
        entry = to_json_types({"step": self.step, "kind": kind, **values})  # null for NaN
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(f"{kind}/{name}", value, self.step)

    def close(self) -> None:
        """Closes the log; the run is over."""
        self.bar.close()
        if self.active:
            self.file.close()
        if self.board is not None:
            self.board.close()


def clocks() -> np.ndarray:
    """The time, and the processor time of this process, in seconds."""
    return np.array([time.monotonic(), time.process_time()])
