"""The device of a process, and models on it."""

import contextlib
import ctypes
import os

import torch
from torch import nn

from exlm.errors import InputError

# Names and numbers are those of <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def started_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def device(name: str = "auto") -> torch.device:
    """The device called `name`: cpu, cuda or cuda:1; `auto` is this process's own GPU where there
    is one. InputError if there is no such device, or if torchrun started this process, which gives
    each one its own device."""
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"torchrun started process {local_rank} of this machine, which has "
                f"{torch.cuda.device_count()} GPUs; give --nproc_per_node that number at most"
            )
        return torch.device("cuda", local_rank)
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    devices = [] if started_by_torchrun() else ["cpu", *gpus]
    full_name = "cuda:0" if name == "cuda" else name
    if full_name not in devices:
        raise InputError(f"device is {name}; it must be {' or '.join(['auto', *devices])} here")
    return torch.device(full_name)


def place_model(network: nn.Module, name: str = "auto") -> None:
    """Moves a network to the device called `name`; see `device`."""
    target = device(name)
    if target.type == "cpu":
        keep_freed_memory()
    network.to(target)


def keep_freed_memory() -> None:
    """Lets the C library keep what tensors free. By default it returns large blocks to the system,
    and every step must request them again, page by page: 4 to 9% of a step on a CPU. Does nothing
    if the library is not glibc."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_THRESHOLD, 2**25)
