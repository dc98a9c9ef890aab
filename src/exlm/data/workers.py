"""Work on chunks of rows in several processes, in order and with a bounded number of chunks in flight."""

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from .sources import Source, read_rows

CHUNK_ROWS = 4096
CHUNK_CHARACTERS = 2**21
Result = TypeVar("Result")


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one source: `rows` (1-based) and `texts` without blank ones, `read` counts all."""

    source: str
    rows: list[int]
    texts: list[str]
    read: int


def chunks(sources: Iterable[Source], column: str | None) -> Iterator[Chunk]:
    """All rows of all sources, at most CHUNK_ROWS rows and about CHUNK_CHARACTERS characters at a time."""
    for source in sources:
        numbered = enumerate(read_rows(source, column), 1)
        while piece := list(_piece(numbered)):
            filled = [(row, text) for row, text in piece if text]
            yield Chunk(source.name, [row for row, _ in filled], [text for _, text in filled], len(piece))


def _piece(numbered: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    size = 0
    for row, text in islice(numbered, CHUNK_ROWS):
        yield row, text
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            return


class Workers:
    """Processes that apply a function to chunks. With one worker, or one chunk, all happens in this process.

    Args:
        count: number of processes; 0 is one per available core.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count or _cores()
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["exlm.data.encoding"])  # imported once, shared by all workers
        self._executor = ProcessPoolExecutor(self.count, context, _start)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable[[list[str]], Result], source: Iterable[Chunk]) -> Iterator[tuple[Chunk, Result]]:
        """(chunk, function(its texts)) in the order of the chunks."""
        iterator = iter(source)
        first = list(islice(iterator, 2))
        if self.count == 1 or len(first) < 2:
            return ((chunk, function(chunk.texts)) for chunk in chain(first, iterator))
        return self._in_processes(function, chain(first, iterator))

    def _in_processes(
        self, function: Callable[[list[str]], Result], source: Iterable[Chunk]
    ) -> Iterator[tuple[Chunk, Result]]:
        pending: deque[tuple[Chunk, Future[Result]]] = deque()
        for chunk in source:
            pending.append((chunk, self._executor.submit(function, chunk.texts)))
            if len(pending) > 2 * self.count:
                done, future = pending.popleft()
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start() -> None:
    gc.freeze()  # a collection would write to, and so copy, every page shared with the other processes
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the files
