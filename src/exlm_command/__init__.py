"""The `exlm` command, without importing the library until a command needs it.

This package is outside of `exlm` because importing `exlm` imports PyTorch and transformers, which
takes seconds. General help, the version, recipes and mistyped commands are answered without them.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by
signal n."""

import os
import signal
import sys
from itertools import pairwise
from typing import NoReturn

from exlm_command.commands import COMMANDS, did_you_mean, similar

VERSION = "0.2.0"

# Whether this process is the command, as `exlm` or as `python -m exlm` (Python calls it -m until it
# runs). Then importing `exlm` does not import all models.
is_running = sys.argv[:1] == ["-m"] and ("-m", "exlm") in pairwise(sys.orig_argv)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    if arguments is None:
        global is_running
        is_running = True
        arguments = sys.argv[1:]
        signal.signal(signal.SIGTERM, _interrupt)
    name, *others = arguments or [""]
    try:
        _run(name, others)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        number = next(iter(interrupt.args), signal.SIGINT)
        _leave(128 + number, f"exlm {name}: interrupted")
    except BrokenPipeError:
        # Who read the output, such as `head`, has seen enough. What is left is thrown away, or
        # Python would try to write it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM, which a cluster sends, ends a command as Ctrl-C does."""
    raise KeyboardInterrupt(number)


def _run(name: str, others: list[str]) -> None:
    if name == "--version":
        print(f"exlm {VERSION}")
        return
    if name in ("-h", "--help"):
        print(_usage())
        return
    if name not in COMMANDS:
        _leave(2, _unknown(name))
    # imports the command, most often with PyTorch
    from exlm_command.parser import run

    status, message = run(name, others)
    if status:
        _leave(status, f"exlm {name}: {message}")


def _usage() -> str:
    lines = "\n".join(f"  {name:10s} {command.summary}" for name, command in COMMANDS.items())
    return (
        f"usage: exlm COMMAND ...\n\n{lines}\n\nexlm COMMAND --help lists the options of a command"
    )


def _unknown(name: str) -> str:
    """What to say of a command that does not exist; without a command, the usage."""
    if not name:
        return _usage()
    hint = did_you_mean(similar(name, COMMANDS))
    return f"exlm: error: unknown command {name!r}{hint}\n\n{_usage()}"


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)
