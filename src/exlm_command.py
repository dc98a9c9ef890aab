"""The `exlm` command, without importing the library until a command needs it.

This module is outside the package because importing `exlm` imports PyTorch and transformers, which
takes seconds. General help, the version, recipes and mistyped commands are answered without them.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by
signal n."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

import yaml


class Command(NamedTuple):
    """A command, as `commands.yaml` describes it."""

    module: str
    words: list[str]
    example: str


PACKAGE = Path(__file__).parent / "exlm"
_ROWS = yaml.safe_load((PACKAGE / "commands.yaml").read_text(encoding="utf-8"))
COMMANDS: dict[str, Command] = {name: Command(**row) for name, row in _ROWS.items()}
VERSION = "0.1.0"
HELP = ("-h", "--help")
RECIPES = PACKAGE / "recipes"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name == "--version":
        print(f"exlm {VERSION}")
        return
    if name not in COMMANDS:
        _usage(name)
    first_option = next(
        (i for i, word in enumerate(rest) if word.startswith("-") and word != "-"), len(rest)
    )
    words, options = rest[:first_option], rest[first_option:]
    if not set(HELP) & set(options):
        words = _checked(name, words)
        if name == "recipes" and not options:
            return recipes(*words)

    from exlm.cli import run

    status, message = run(name, [*words, *options])
    if status:
        _leave(status, f"exlm {name}: {message}")


def recipes(name: str | None = None) -> None:
    """Lists the recipes that come with the package, or prints one of them.

    Args:
        name: the recipe to print, for example molecules/exlm-1M; by default all are listed."""
    if name:
        print(Path(_recipe("recipes", name)).read_text(encoding="utf-8"), end="")
        return
    for short, path in _bundled().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        command = "analyze" if "space:" in lines else "finetune" if "task:" in lines else "pretrain"
        about = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
        print(f"{command:8} {short:27} {re.split('[.:(;] | [(]', about)[0]}")


def _bundled() -> dict[str, Path]:
    """The recipes of the package by their names, for example molecules/exlm-1M."""
    return {
        path.relative_to(RECIPES).with_suffix("").as_posix(): path
        for path in sorted(RECIPES.glob("*/*.yaml"))
    }


def _recipe(command: str, name: str) -> str:
    """The path of the recipe `name`: a file, or a recipe of the package by the last part of its
    name or all of it."""
    # also false, unlike Path.is_file, for a name too long for the file system
    if os.path.isfile(name):
        return name
    bundled, wanted = _bundled(), name.removeprefix("recipes/").removesuffix(".yaml")
    found = [short for short in bundled if f"/{short}".endswith(f"/{wanted}")]
    if len(found) == 1:
        return str(bundled[found[0]])
    meant = " or ".join(found or similar(wanted, bundled))
    hint = f"did you mean {meant}?" if meant else "`exlm recipes` lists those of the package"
    _leave(2, f"exlm {command}: error: there is no recipe {name}; {hint}")


def function_of(name: str) -> Callable:
    """The function behind a command; its module is imported only now."""
    return getattr(import_module(COMMANDS[name].module), name)


def _checked(name: str, words: list[str]) -> list[str]:
    """The words before the options; a recipe becomes --config. A wrong number of words ends the
    command."""
    wanted = COMMANDS[name].words
    needed = [word for word in wanted if word[-1] not in "?*"]
    if len(words) < len(needed) or (len(words) > len(wanted) and wanted[-1][-1] not in "*+"):
        given = " and ".join(word.rstrip("+?").upper() for word in needed or wanted)
        alone = " alone" if len(words) > len(needed) else ""
        _leave(
            2, f"exlm {name}: error: give {given}{alone} before the options (exlm {name} --help)"
        )
    if wanted[-1].rstrip("?") == "recipe" and len(words) == len(wanted):
        return [*words[:-1], "--config", _recipe(name, words[-1])]
    return words


def _usage(name: str) -> NoReturn:
    lines = "\n".join(f"  {command:10s} {summary(command)}" for command in COMMANDS)
    text = (
        f"usage: exlm COMMAND ...\n\n{lines}\n\nexlm COMMAND --help lists the options of a command"
    )
    if name in HELP:
        print(text)
        raise SystemExit(0)
    close = " or ".join(similar(name, COMMANDS))
    hint = f"; did you mean {close}?" if close else ""
    _leave(2, f"exlm: error: unknown command {name!r}{hint}\n\n{text}" if name else text)


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)


def summary(command: str) -> str:
    """The first line of the docstring of a command's function, read from the source."""
    module = Path(__file__).parent.joinpath(*COMMANDS[command].module.split(".")).with_suffix(".py")
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
