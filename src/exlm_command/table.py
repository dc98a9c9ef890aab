"""The table of commands (`commands.yaml`) and names that are spelled alike."""

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml


class Command(NamedTuple):
    """A command, as `commands.yaml` describes it."""

    module: str
    words: list[str]
    example: str


_ROWS = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Command] = {name: Command(**row) for name, row in _ROWS.items()}


def function_of(name: str) -> Callable:
    """The function behind a command; its module is imported only now."""
    return getattr(import_module(COMMANDS[name].module), name)


def summary(command: str) -> str:
    """The first line of the docstring of a command's function, read from the source."""
    module = (
        Path(__file__).parents[1].joinpath(*COMMANDS[command].module.split(".")).with_suffix(".py")
    )
    found = re.search(
        rf'^def {command}\(.*?"""(.+?)("""|$)',
        module.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    return found[1] if found else ""


def similar(word: str, names: Iterable[str]) -> list[str]:
    """The name that is spelled like `word`, or else up to three whose last part is like its last
    part."""
    last = {name: re.split("[./]", name)[-1] for name in (word, *names)}
    own = last.pop(word)
    alike = [
        name for name, part in last.items() if own in part or get_close_matches(own, [part], 1, 0.7)
    ]
    return (
        get_close_matches(word, last, 1, 0.8)
        or sorted(alike, key=lambda name: last[name] != own)[:3]
    )
