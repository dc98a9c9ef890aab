"""Two processes under torchrun, one of which comes to harm: the other ends soon, says why, and a
new start goes on."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.soak.work import Test, differences, pretraining

WAIT = 10  # seconds that a process waits for another one
LONGEST = 60 + WAIT  # seconds until both must have ended; torchrun gives a stopped process 30
SAID = {
    "kill": "process 1 of 2",
    "stop": "process 1 of 2",
    "error": "something nobody thought of",
    "memory": "out of memory",
    "nan": "not finite",
}


def _torchrun(
    fault: str, step: int, words: list[str], marker: Path, log: Path
) -> tuple[int, float]:
    """Exit status, and seconds from the fault to the end."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    environment = os.environ | {
        "SOAK_MARKER": str(marker),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            [*launcher, "-m", "tests.soak.rank", fault, str(step), *words],
            stdout=file, stderr=file, env=environment, start_new_session=True,
        )  # fmt: skip
        begin = None
        while process.poll() is None:
            if begin is None and fault != "none" and marker.exists():
                begin = time.monotonic()
            if begin is not None and time.monotonic() - begin > 2 * LONGEST:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)
    return process.returncode, time.monotonic() - (begin or time.monotonic())


def two_processes(index: int, directory: Path) -> dict[str, Any]:
    """One fault in process 1 at a random step, then the same command again until it is done."""
    shared, draw = directory.parent.parent, random.Random(index)
    fault, step = list(SAID)[index % len(SAID)], draw.randint(3, 35)

    def words(path: Path) -> list[str]:
        return pretraining(shared, path, max_wait=WAIT)

    expected = shared / "reference-two-processes"
    if not (expected / "result.json").exists():
        _torchrun(
            "none", 0, words(expected), shared / "none", shared / "reference-two-processes.txt"
        )
    marker, log = directory / "marker", directory / "1.txt"
    first, seconds = _torchrun(fault, step, words(directory / "run"), marker, log)
    said = log.read_text(errors="replace")
    second, _ = _torchrun("none", 0, words(directory / "run"), marker, directory / "2.txt")
    wrong = differences(directory / "run", expected)
    sentence = next(
        (line for line in said.splitlines() if re.search("exlm pretrain: (stopped|error)", line)),
        "",
    )
    return {
        "passed": bool(first and sentence and SAID[fault] in said)
        and seconds < LONGEST
        and second == 0
        and not wrong,
        "fault": fault,
        "step": step,
        "seconds_to_end": round(seconds, 1),
        "said": sentence,
        "status": [first, second],
        "differences": wrong,
    }  # fmt: skip


TESTS = [
    Test(
        "two processes",
        "one of two is killed, stopped, fails, has NaN or no memory: the other ends and says so, a "
        "new start goes on",
        20,
        two_processes,
    ),
]
