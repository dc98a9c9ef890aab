"""The `exlm` command, without importing the library until a command needs it.

This package is outside of `exlm` because importing `exlm` imports PyTorch and transformers, which
takes seconds. General help, the version, recipes and mistyped commands are answered without them.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by
signal n."""

import sys
from typing import NoReturn

from exlm_command.recipes import RecipeNotFound, recipe_path, recipes
from exlm_command.table import COMMANDS, similar, summary

VERSION = "0.1.0"
HELP = ("-h", "--help")


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
        try:
            words = _checked(name, words)
            if name == "recipes" and not options:
                return recipes(*words)
        except RecipeNotFound as error:
            _leave(2, f"exlm {name}: error: {error}")

    from exlm_command.parser import run

    status, message = run(name, [*words, *options])
    if status:
        _leave(status, f"exlm {name}: {message}")


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
        return [*words[:-1], "--config", recipe_path(words[-1])]
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
