"""The table of commands (`commands.yaml`)."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml


class CommandLineError(Exception):
    """The command line cannot be used; the message says why."""


class Command(NamedTuple):
    """A command, as `commands.yaml` describes it. `positionals` has, for each argument without an
    option's name, how many values it takes, as in argparse."""

    module: str
    positionals: dict[str, str | None]
    summary: str
    example: str


_ROWS = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Command] = {name: Command(**row) for name, row in _ROWS.items()}


def function_of(name: str) -> Callable:
    """The function behind a command; its module is imported only now."""
    return getattr(import_module(COMMANDS[name].module), name)
