"""Commands as typed functions: arguments, YAML recipes, `--section.key value` overrides and help all come from the
functions' signatures and docstrings (jsonargparse). `exlm_command` has the table of commands.
"""

import signal
from argparse import ArgumentError
from collections.abc import Callable
from importlib import import_module
from typing import Any

import transformers
from jsonargparse import ActionConfigFile, ArgumentParser

from exlm_command import COMMANDS, leave

from .errors import InputError, Interrupted, TrainingStopped


def command_function(name: str) -> Callable:
    """The function behind a command; modules are imported only when needed."""
    module, function, *_ = COMMANDS[name]
    return getattr(import_module(module), function)


def build_parser(name: str) -> ArgumentParser:
    """The parser of one command."""
    _, _, summary, positional = COMMANDS[name]
    parser = ArgumentParser(prog=f"exlm {name}", description=summary, exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile, help="YAML recipe; later options override it")
    function = command_function(name)
    parser.add_function_arguments(function, skip={word.rstrip("*+?") for word in positional} or None)
    return parser


def run(name: str, given: dict[str, Any], rest: list[str]) -> None:
    """Calls a command's function; what users can mend is one sentence and an exit status (`exlm_command`).

    Args:
        name: of the command.
        given: its positional arguments.
        rest: its options, as on the command line.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        command_function(name)(**given, **_parse(name, rest))
    except InputError as error:
        leave(2, f"exlm {name}: error: {error}")
    except OSError as error:
        leave(2, f"exlm {name}: error: a file could not be read or written: {error}; check the path and the free space")
    except TrainingStopped as error:
        leave(3, f"exlm {name}: stopped: {error}")
    except Interrupted as error:
        leave(128 + error.number, f"exlm {name}: {error}")
    except KeyboardInterrupt:
        leave(128 + signal.SIGINT, f"exlm {name}: interrupted")


def _parse(name: str, rest: list[str]) -> dict[str, Any]:
    """The function's keyword arguments. Whatever the parser dislikes becomes one sentence."""
    parser = build_parser(name)
    try:
        config = parser.instantiate(parser.parse_args(rest)).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        raise InputError(_reason(error)) from error
    config.pop("config", None)
    return config


def _reason(error: BaseException) -> str:
    """Our own message if one is behind the parser's, else the parser's first lines."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip(" -") for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(("Given value", "Subtypes")))


if __name__ == "__main__":
    from exlm_command import main

    main()
