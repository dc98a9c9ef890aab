"""Training in several processes started by torchrun; with one process these functions do nothing
special."""

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from exlm.errors import TrainingStopped
from exlm.train.devices import device, started_by_torchrun


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
