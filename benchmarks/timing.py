"""Side-by-side measuring: interleaved repetitions, peak memory, and one JSON line per result.

Times on a CPU are processor time with one thread (what other jobs do then matters little) and wall
time with more; on CUDA they are those of events around a call. What counts is the ratio of calls
that were measured alternately.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from exlm.paper.cost import Call, read_resident_memory, time_call
from exlm.paper.jobs import in_own_process
from exlm.storage.machine import machine

__all__ = [
    "Call",
    "arguments",
    "in_own_process",
    "interleaved",
    "peak_memory",
    "ratio",
    "record",
    "summary",
]


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options that all scripts share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--threads", type=int, default=1, help="of the CPU; more than one measures wall time"
    )
    parser.add_argument("--pairs", type=int, default=10, help="repetitions of each side")
    parser.add_argument("--output", type=Path, help="file that gets the results as JSON lines")
    parser.set_defaults(**defaults)
    return parser


def interleaved(
    calls: dict[str, Call], device: str, pairs: int, warmup: int = 3, queued: int = 1
) -> dict[str, list[float]]:
    """Seconds of every repetition of every call: A, B, A, B, ..., after warm-ups.

    A repetition is one call; on CUDA it is the mean of `queued` calls that follow each other, as in
    training.
    """
    repeats = queued if device == "cuda" else 1

    def repeated(call: Call) -> None:
        for _ in range(repeats):
            call()

    for _ in range(warmup):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(pairs):
        for name, call in calls.items():
            times[name].append(time_call(partial(repeated, call), device) / repeats)
    return times


def summary(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times)}


def ratio(times: list[float], base: list[float]) -> dict[str, float]:
    """Of the minima, and the median of the ratios pair by pair."""
    pairwise = [a / b for a, b in zip(times, base, strict=True)]
    return {"min": min(times) / min(base), "median": statistics.median(pairwise)}


def record(out: Path | None, benchmark: str, device: str, **values: Any) -> None:
    """Appends one JSON line: the values, the machine and its load, versions and date."""
    versions, here = {"python": platform.python_version(), "torch": torch.__version__}, machine()
    line = {
        "benchmark": benchmark,
        "device": here["device" if device == "cuda" and torch.cuda.is_available() else "processor"],
        "kind": device,
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "versions": {**versions, "transformers": transformers.__version__},
        **values,
    }
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def peak_memory(build: Callable[[], Call], device: str) -> dict[str, int]:
    """Peak memory in bytes during the second call of the function that `build` returns. `total` is
    the peak minus the memory before `build`; `step` is the peak minus the memory between calls
    (weights, gradients, optimizer). Call it by `in_own_process`: on a CPU it measures the resident
    memory of the whole process."""
    cuda = device == "cuda"

    def allocated(of_cpu: str = "VmRSS") -> int:
        return torch.cuda.memory_allocated() if cuda else read_resident_memory(of_cpu)

    base = allocated()
    call = build()
    call()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # makes Linux forget the earlier peak
    before = allocated()
    call()
    peak = torch.cuda.max_memory_allocated() if cuda else allocated("VmHWM")
    return {"total": peak - base, "step": peak - before}
