"""Training in several processes started by torchrun; with one process these functions do nothing
special."""

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from exlm.errors import InputError, TrainingStopped

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


def place_model(model: nn.Module, name: str = "auto") -> None:
    """Moves a model to the device called `name`; see `device`."""
    if device(name).type == "cpu":
        keep_freed_memory()
    model.to(device(name))


def keep_freed_memory() -> None:
    """Lets the C library keep what tensors free. By default it returns large blocks to the system,
    and every step must request them again, page by page: 4 to 9% of a step on a CPU. Does nothing
    if the library is not glibc."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_THRESHOLD, 2**25)


@contextlib.contextmanager
def process_group(max_wait: int) -> Iterator[tuple[int, int]]:
    """The process group of a run; yields (rank, world size). If another process ends, or does not
    answer for `max_wait` seconds, this one raises TrainingStopped. Its message says which process
    that was, and the reason if the process could still give it."""
    if not started_by_torchrun():
        yield 0, 1
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    store, rank, world = next(dist.rendezvous("env://"))
    # Numbers of the host go over gloo, which raises an error at once if a process is lost; NCCL
    # waits, and then ends this process before it can say why.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=max_wait)
    )
    try:
        yield rank, world
    except BaseException as error:
        is_lost_contact = isinstance(error, RuntimeError) and re.search(
            "gloo|NCCL|peer|[Tt]imed out", str(error)
        )
        if not is_lost_contact:
            store.set(f"end of {rank}", str(error)[:1000] or type(error).__name__)
            raise
        # torchrun sends the signal, which would end this process before it says why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The process that failed may still be about to say why.
        time.sleep(1)
        raise TrainingStopped(
            f"{_ends_of_others(store, rank, world, max_wait)} (this is process {rank}); "
            "run the same command to go on"
        ) from error
    # Not after an error: NCCL would wait here for sums to which a lost process adds nothing.
    dist.destroy_process_group()


def _ends_of_others(store: dist.Store, rank: int, world: int, max_wait: int) -> str:
    """Which other processes ended and why, as far as they could say it in `store`."""
    ends = []
    for other in range(world):
        if store.check([f"end of {other}"]):
            reason = store.get(f"end of {other}").decode()
            ends.append(f"process {other} of {world} ended: {reason}")
    silent = f"process {1 - rank} of 2" if world == 2 else f"one of the {world} processes"
    return "; ".join(ends) or f"{silent} was killed or did not answer for {max_wait} seconds"


def rank_and_world() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_main() -> bool:
    """Whether this process writes files and shows progress."""
    return rank_and_world()[0] == 0


def sum_over_processes(values: list[float]) -> list[float]:
    """Element-wise sums of the lists of all processes, in float64."""
    if not dist.is_initialized():
        return values
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()


def largest_of_processes(value: int) -> int:
    """The largest of the numbers that the processes have."""
    if not dist.is_initialized():
        return value
    tensor = torch.tensor(value)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def barrier() -> None:
    """Waits for all processes."""
    sum_over_processes([0.0])
