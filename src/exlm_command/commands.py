"""The table of commands (`commands.yaml`) and names that are spelled alike."""

import re
from collections.abc import Callable, Collection, Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml


class CommandLineError(Exception):
    """The command line cannot be used; the message says why."""


class Command(NamedTuple):
    """A command, as `commands.yaml` describes it."""

    module: str
    positionals: dict[str, str | None]
    summary: str
    example: str
    paths: list[str] = []
    files: list[str] = []


_ROWS = yaml.safe_load((Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Command] = {name: Command(**row) for name, row in _ROWS.items()}


def import_function(name: str) -> Callable:
    """Imports the function of a command, which has the command's name."""
    return getattr(import_module(COMMANDS[name].module), name)


def find_similar(misspelled: str, names: Collection[str]) -> list[str]:
    """The name that is spelled like `misspelled`, or else up to three names whose last section is
    spelled like its last section."""
    if matches := get_close_matches(misspelled, names, n=1, cutoff=0.8):
        return matches
    section = _last_section(misspelled)
    sections = {name: _last_section(name) for name in names}
    similar_sections = get_close_matches(section, sections.values(), n=len(names), cutoff=0.7)
    matches = [
        name for name in names if section in sections[name] or sections[name] in similar_sections
    ]
    # Names with the same last section come first.
    return sorted(matches, key=lambda name: sections[name] != section)[:3]


def _last_section(name: str) -> str:
    """`steps` of the option `train.steps`, `exlm-1M` of the recipe `molecules/exlm-1M`."""
    return re.split("[./]", name)[-1]


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message about a misspelled name: the names that may be meant, "" without any."""
    choices = " or ".join(names)
    return f"; did you mean {choices}?" if choices else ""
