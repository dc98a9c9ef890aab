"""On which machine a result was made."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def machine(device: str = "auto") -> dict[str, Any]:
    """Processor and the cores that this process may use, the GPU (or `cpu`, if there is none or the
    `device` of a run is the processor), PyTorch version and threads, for every result."""
    cpuinfo = Path("/proc/cpuinfo")
    facts = cpuinfo.read_text() if cpuinfo.exists() else ""
    model_name = re.search(r"^model name[^:\n]*:([^:\n]*)", facts, re.MULTILINE)
    processor = model_name[1].strip() if model_name else platform.machine()
    # macOS does not say which cores a process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    uses_gpu = device != "cpu" and torch.cuda.is_available()
    return {
        "processor": f"{processor}, {cores} cores",
        "device": torch.cuda.get_device_name() if uses_gpu else "cpu",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
