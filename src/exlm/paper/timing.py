"""What a run was made on, and how much memory and time things take there."""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

Call = Callable[[], object]
Result = TypeVar("Result")


def clock(device: str) -> str:
    """What `seconds` reads: with one thread of a CPU its processor time, which other jobs disturb least."""
    if device == "cuda":
        return "GPU time"
    return "processor time of one thread" if torch.get_num_threads() == 1 else "wall time"


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
    read = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = read()
    call()
    return read() - begin


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
