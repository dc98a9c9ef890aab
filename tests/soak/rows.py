"""A million rows: the same file as without a kill, in the memory of ten thousand."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.soak import kills, work
from tests.soak.work import Test

ROWS = int(os.environ.get("SOAK_ROWS", 1_000_000))
ALLOWED = 200 * 2**20  # bytes beyond what the same command needs for a table of one part

Words = Callable[
    [Path, Path, Path], list[str]
]  # from the shared directory, a table and an output to the words of a command


def finish(words: list[str], log: Path, kill_after: float | None = None) -> tuple[int, int, float]:
    """Runs `exlm WORDS` in a process of its own, to its end or for some seconds. Returns the exit
    status, the most memory that the process had, in bytes, and how many seconds it took."""
    begin = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "exlm", *words], stdout=file, stderr=file)
    if kill_after is not None:
        time.sleep(kill_after)
        process.kill()
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, time.monotonic() - begin


def killed_twice(words: Words, suffix: str, index: int, directory: Path) -> dict[str, Any]:
    """The command without a kill, for many rows and for few; then with two kills."""
    shared, draw = directory.parent.parent, random.Random(index)
    few, many = (
        work.shared(shared, f"{n}.smi", partial(work.unlabelled, rows=n)) for n in (10_000, ROWS)
    )
    whole, cut = directory / f"whole{suffix}", directory / f"cut{suffix}"
    _, small, _ = finish(words(shared, few, directory / f"few{suffix}"), directory / "few.txt")
    first, peak, seconds = finish(words(shared, many, whole), directory / "whole.txt")
    killed = [
        finish(words(shared, many, cut), directory / f"{n}.txt", draw.uniform(0.1, 0.45) * seconds)[
            0
        ]
        for n in (1, 2)
    ]
    last, resumed_peak, resumed = finish(words(shared, many, cut), directory / "3.txt")
    kept = (
        first == last == 0
        and killed == [-signal.SIGKILL] * 2
        and cut.read_bytes() == whole.read_bytes()
    )
    return {
        "passed": kept and max(peak, resumed_peak) < small + ALLOWED,
        "rows": ROWS,
        "status": [first, *killed, last],
        "peaks": [small, peak, resumed_peak],
        "run_seconds": [round(seconds), round(resumed)],
    }


def _embed(shared: Path, table: Path, output: Path) -> list[str]:
    return ["embed", str(kills.pretrained(shared)), str(table), "--output", str(output)]


def _predict(shared: Path, table: Path, output: Path) -> list[str]:
    return ["predict", str(kills.finetuned(shared)), str(table), "--output", str(output)]


PROMISE = (
    "killed twice, the same file as without a kill; memory is that for 10,000 rows and "
    "at most 200 MB more"
)
TESTS = [
    Test("million rows embed", PROMISE, 1, partial(killed_twice, _embed, ".parquet")),
    Test("million rows predict", PROMISE, 1, partial(killed_twice, _predict, ".csv")),
]
