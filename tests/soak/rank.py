"""`torchrun ... -m tests.soak.rank FAULT STEP WORDS...`: `exlm WORDS`, in which process 1 comes to
harm at a step."""

import os
import signal
import sys
from dataclasses import replace
from typing import Any

import torch

from exlm.train import loop


def harm(fault: str, step: int) -> None:
    """Lets the micro-batches of `step` end in a fault, in process 1 and in the first attempt
    alone."""
    marker = os.environ["SOAK_MARKER"]
    if fault == "none" or os.environ["RANK"] != "1" or os.path.exists(marker):
        return
    update, calls = loop.update, []

    def harmed(loss: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) != step:
            return update(loss=loss, **options)
        open(marker, "w").close()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "error":
            raise ValueError("something nobody thought of")

        def wrong(*inputs: Any) -> Any:
            if fault == "memory":
                raise torch.OutOfMemoryError("simulated: no memory left")
            sums = loss(*inputs)
            return replace(sums, total=sums.total * float("nan"))

        return update(loss=wrong, **options)

    loop.update = harmed


if __name__ == "__main__":
    from exlm_command import main

    harm(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
