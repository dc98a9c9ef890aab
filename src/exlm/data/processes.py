"""Processes that work on chunks of rows."""

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_chunks(
    function: Callable[[Item], Result], chunks: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """The results of `function` for every chunk, in order, computed by `workers` processes (0 is
    one per core), which end when the generator is closed. At most a few chunks per worker are in
    memory at once."""
    if not workers:
        has_affinity = hasattr(os, "sched_getaffinity")
        workers = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    chunks = iter(chunks)
    if workers == 1:
        yield from map(function, chunks)
        return
    # This process does the first chunk itself, because there is often no other chunk.
    for first_chunk in islice(chunks, 1):
        yield function(first_chunk)
    context = multiprocessing.get_context("forkserver")
    # imported once, shared by all workers
    context.set_forkserver_preload(["exlm.data.examples"])
    pending: deque[Future[Result]] = deque()
    # The executor starts a process when it has work.
    with ProcessPoolExecutor(workers, context, _prepare_worker) as executor:
        for chunk in chunks:
            pending.append(executor.submit(function, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _prepare_worker() -> None:
    end_with_parent()
    # Garbage collection would write to every page shared with the other processes, and so copy it.
    gc.freeze()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the files


def end_with_parent() -> None:
    """From now on, this process ends if its parent is killed: nobody would use or stop it."""

    def wait() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os._exit(1)

    Thread(target=wait, daemon=True).start()
