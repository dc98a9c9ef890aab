"""Every measurement in one command.

    python benchmarks/run.py --device cpu --output results.jsonl       about 12 minutes on two cores
    python benchmarks/run.py --device cuda --output results.jsonl      under half an hour on an H200

Each job is a process of its own with a time limit and appends its results as they come, so that an
interruption loses at most the job that ran. A job that fails or takes too long leaves a line that
says so; the others go on.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from timing import record

# Most important first; each with its limit in seconds.
JOBS: dict[str, list[tuple[str, int]]] = {
    "cpu": [
        ("step.py exlm --preset molecules", 180),
        ("step.py exlm --preset molecules-1M", 120),
        ("step.py exlm --preset text-small", 180),
        ("step.py peers --preset molecules --pairs 7", 240),
        ("step.py defaults --preset molecules --pairs 7", 180),
        ("heads.py loss --pairs 3", 120),
        ("heads.py memory", 120),
        ("heads.py emission --pairs 2", 120),
        ("alignment.py", 240),
        ("alignment.py --growth", 120),
        ("loader.py", 120),
        ("step.py exlm --preset molecules --dropout 0.1 --no-memory", 120),
        ("step.py peers --preset molecules-1M --pairs 7", 120),
    ],
    "cuda": [
        # Most of these times is the compilation of kernels, which a new machine does once.
        ("pytest tests/ops/test_emission.py tests/ops/test_alignment_triton.py", 120),
        ("pytest tests/model/test_cuda.py -k 'not run'", 240),
        ("pytest tests/model/test_cuda.py -k run", 180),
        ("step.py exlm --preset text-base-512 --no-memory", 120),
        ("step.py exlm --preset text-base-512 --no-memory --dropout 0.1 --unequal-masks", 120),
        ("step.py exlm --preset text-base-512 --no-memory --compile", 120),
        ("step.py exlm --preset molecules-paper --no-memory", 120),
        ("step.py exlm --preset molecules-paper --no-memory --dropout 0.1 --unequal-masks", 120),
        ("step.py exlm --preset molecules-paper --no-memory --compile", 120),
        ("step.py exlm --preset text-base-128 --no-memory", 90),
        ("heads.py emission --large", 60),
        ("alignment.py", 60),
        ("heads.py memory --batch 64 --layers 12", 90),
        ("step.py peers --preset text-base-512 --pairs 5 --no-memory", 120),
    ],
}
BUDGET = {"cpu": 900, "cuda": 1800}


def run(job: str, limit: float, device: str, out: Path) -> str | None:
    """Runs one job; what went wrong, or None."""
    script, *options = shlex.split(job)
    root = Path(__file__).parent.parent
    if script == "pytest":
        command = [sys.executable, "-m", "pytest", "-q", *options]
    else:
        command = [sys.executable, str(root / "benchmarks" / script), *options]
        command += ["--device", device, "--output", str(out)]
    process = subprocess.Popen(command, start_new_session=True, cwd=root)
    try:
        code = process.wait(limit)
    except BaseException as reason:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.wait()
        if isinstance(reason, subprocess.TimeoutExpired):
            return f"took more than {limit:.0f} s"
        raise
    return f"ended with exit code {code}" if code else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=JOBS)
    parser.add_argument("--output", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--only", default="", help="jobs whose command contains this")
    parser.add_argument(
        "--budget",
        type=float,
        help="seconds after which no job starts and a running one is stopped",
    )
    options = parser.parse_args()
    end = time.monotonic() + (options.budget or BUDGET[options.device])
    failures = 0
    for job, limit in JOBS[options.device]:
        if options.only not in job:
            continue
        start = time.monotonic()
        left = end - start
        print(f"\n> {job}", flush=True)
        failure = (
            run(job, min(limit, left), options.device, options.output.resolve())
            if left > 10
            else "not started: no time left"
        )
        if failure:
            failures += 1
            print(f"{job}: {failure}", flush=True)
            record(options.output, "failure", options.device, job=job, reason=failure)
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
