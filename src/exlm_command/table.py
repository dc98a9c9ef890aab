"""The table of commands (`commands.yaml`) and names that are spelled alike."""

import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml


class CommandLineError(Exception):
    """The words of the command line cannot be used; the message says why."""


class Word(NamedTuple):
    """An argument without an option's name."""

    name: str
    # as in argparse: "?" at most one, "*" any number, "+" at least one, None exactly one
    nargs: str | None

    @property
    def usage(self) -> str:
        """The word in a line of usage."""
        forms = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
        return forms[self.nargs].format(self.name.upper())


class Command(NamedTuple):
    """A command, as `commands.yaml` describes it."""

    module: str
    words: list[Word]
    summary: str
    example: str


def _command(module: str, words: list[str], summary: str, example: str) -> Command:
    parsed = [Word(word.rstrip("?*+"), word[-1] if word[-1] in "?*+" else None) for word in words]
    return Command(module, parsed, summary, example)


_ROWS = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Command] = {name: _command(**row) for name, row in _ROWS.items()}


def function_of(name: str) -> Callable:
    """The function behind a command; its module is imported only now."""
    return getattr(import_module(COMMANDS[name].module), name)


def similar(word: str, names: Collection[str]) -> list[str]:
    """The name that is spelled like `word`, or else up to three whose last part is like its last
    part."""
    close = get_close_matches(word, names, 1, 0.8)
    if close:
        return close
    last = _last_part(word)
    alike = []
    for name in names:
        part = _last_part(name)
        if last in part or get_close_matches(last, [part], 1, 0.7):
            alike.append(name)
    return sorted(alike, key=lambda name: _last_part(name) != last)[:3]


def _last_part(name: str) -> str:
    """`steps` of the option `train.steps`, `exlm-1M` of the recipe `molecules/exlm-1M`."""
    return re.split("[./]", name)[-1]
