"""What to do when a command is interrupted."""

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack


def on_signals(handler: Callable[[int], object], once: bool = False) -> ExitStack:
    """Calls `handler` with the number of every SIGINT or SIGTERM (`once`: the first) until the
    result is closed. Does nothing outside of the main thread, where Python allows no handlers."""
    restore = ExitStack()
    if threading.current_thread() is not threading.main_thread():
        return restore

    def handle(number: int, _frame: object) -> None:
        if once:
            restore.close()
        handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        previous_handler = signal.signal(number, handle)
        restore.callback(signal.signal, number, previous_handler)
    return restore
