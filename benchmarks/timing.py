"""Side-by-side measuring: interleaved repetitions, peak memory, and one JSON line per result.

Times on a CPU are processor time with one thread (what other jobs do then matters little) and wall time with more;
on CUDA they are those of events around a call. What counts is the ratio of calls that were measured alternately.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

Call = Callable[[], object]
Result = TypeVar("Result")


def arguments(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options that all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; more than one measures wall time")
    parser.add_argument("--pairs", type=int, default=10, help="repetitions of each side")
    parser.add_argument("--out", type=Path, help="file that gets the results as JSON lines")
    parser.set_defaults(**defaults)
    return parser


def seconds(call: Call, device: str, queued: int = 1) -> float:
    """Time of one call; on CUDA of one among `queued` calls that follow each other, as in training."""
    if device == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(queued):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / queued
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    call()
    return clock() - begin


def interleaved(
    calls: dict[str, Call], device: str, pairs: int, warmup: int = 3, queued: int = 1
) -> dict[str, list[float]]:
    """Seconds of every repetition of every call: A, B, A, B, ..., after warm-ups."""
    for _ in range(warmup):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(pairs):
        for name, call in calls.items():
            times[name].append(seconds(call, device, queued))
    return times


def summary(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times)}


def ratio(times: list[float], base: list[float]) -> dict[str, float]:
    """Of the minima, and the median of the ratios pair by pair."""
    pairwise = [a / b for a, b in zip(times, base, strict=True)]
    return {"min": min(times) / min(base), "median": statistics.median(pairwise)}


def peak_memory(build: Callable[[], Call], device: str) -> dict[str, int]:
    """Peak bytes of the second call: `total` above what was there before `build`, `step` above what lies there between
    calls (weights, gradients, optimizer). On a CPU this is resident memory; use `in_fresh_process`."""
    base = _in_use(device)
    call = build()
    call()
    before = _reset_peak(device)
    call()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else _proc_status("VmHWM")
    return {"total": peak - base, "step": peak - before}


def _in_use(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else _proc_status("VmRSS")


def _reset_peak(device: str) -> int:
    """Bytes in use, from which the peak starts again."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return _in_use(device)


def _proc_status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def in_fresh_process(function: Callable[..., Result], *values: Any) -> Result:
    """The function's result, from a process that has done nothing else."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *values).result()


def record(out: Path | None, benchmark: str, device: str, **values: Any) -> None:
    """Appends one JSON line: the values, the machine and its load, versions and date."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    line = {
        "benchmark": benchmark,
        "device": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else processor(),
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


def processor() -> str:
    """The processor's name and the number of its cores that may be used."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {len(os.sched_getaffinity(0))} cores"
