"""The `exlm` command, without importing the library until a command needs it.

This package is outside of `exlm` because importing `exlm` imports PyTorch and transformers, which
takes seconds. General help, the version and mistyped commands are answered without them.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by
signal n."""

import os
import signal
import sys
from itertools import pairwise, takewhile
from typing import NoReturn

from exlm_command.commands import COMMANDS, CommandLineError, did_you_mean, similar
from exlm_command.recipes import recipe_path

HELP = ("-h", "--help")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGTERM, _interrupt)
        _set_environment()
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


def _set_environment() -> None:
    """Sets variables that `exlm` and tqdm read when they are imported: the command imports the
    models that it needs, and where progress bars fill a log they move once in ten minutes."""
    if "exlm" not in sys.modules:
        os.environ["EXLM_WITHOUT_MODELS"] = "1"
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_MININTERVAL", "600")
        os.environ.setdefault("TQDM_MAXINTERVAL", "600")


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM, which a cluster sends, ends a command as Ctrl-C does."""
    raise KeyboardInterrupt(number)


def _run(name: str, others: list[str]) -> None:
    """Answers what needs no command, or checks the arguments and runs the command `name`."""
    if name == "--version":
        from exlm import __version__

        print(f"exlm {__version__}")
        return
    if name in HELP:
        print(_usage())
        return
    if name not in COMMANDS:
        hint = did_you_mean(similar(name, COMMANDS))
        error = f"exlm: error: unknown command {name!r}{hint}\n\n" if name else ""
        _leave(2, error + _usage())
    others = ["--help" if word == "-h" else word for word in others]
    values = list(
        takewhile(lambda word: _is_standard_input(word) or not word.startswith("-"), others)
    )
    options = others[len(values) :]
    if not set(HELP) & set(options):
        values = _check_arguments(name, values, options)

    # imports the command, most often with PyTorch
    from exlm_command.parser import run

    status, message = run(name, [*values, *options])
    if status:
        _leave(status, f"exlm {name}: {message}")


def _check_arguments(name: str, values: list[str], options: list[str]) -> list[str]:
    """The values before the options, as `_as_arguments` returns them. What is wrong with them, and
    with paths, is said before the command is imported, which takes seconds."""
    try:
        has_recipe = any(option.partition("=")[0] == "--config" for option in options)
        if values or not has_recipe:
            values = _as_arguments(name, values)
        # settings may be printed before the file is there
        if not any(option.startswith("--print_config") for option in options):
            _check_paths(name, values, options)
    except CommandLineError as error:
        _leave(2, f"exlm {name}: error: {error}")
    return values


def _as_arguments(name: str, values: list[str]) -> list[str]:
    """The values before the options as arguments of the parser: a recipe becomes --config. Raises
    CommandLineError if their number is wrong or there is no such recipe."""
    positionals = COMMANDS[name].positionals
    required = [positional for positional, count in positionals.items() if count in (None, "+")]
    too_many = len(values) > len(positionals) and not {"*", "+"} & set(positionals.values())
    if too_many or len(values) < len(required):
        names = " and ".join(positional.upper() for positional in required or positionals)
        alone = " alone" if too_many else ""
        raise CommandLineError(f"give {names}{alone} before the options (exlm {name} --help)")
    if "recipe" in positionals and len(values) == len(positionals):
        return [*values[:-1], "--config", recipe_path(values[-1])]
    return values


def _check_paths(name: str, values: list[str], options: list[str]) -> None:
    """Raises CommandLineError if an argument names a file or a directory that is not there."""
    command = COMMANDS[name]
    by_position = zip(command.positionals, values, strict=False)
    by_name = [pair for pair in pairwise(options) if pair[0].startswith("--")]
    for argument, value in [*by_position, *by_name]:
        is_file = argument.lstrip("-").removeprefix("task.") in command.files and "." in value
        if not (is_file or argument in command.paths):
            continue
        if _is_standard_input(value) or os.path.exists(value):
            continue
        advice = f"check the path of {argument}"
        if argument == "model":
            # a part of the library that needs no PyTorch
            from exlm.storage.shipped import shipped_models

            if value in shipped_models():
                continue
            advice += ", or give a name that exlm models lists"
        raise CommandLineError(f"{value} does not exist; {advice}")


def _is_standard_input(value: str) -> bool:
    """Whether a value is `-`, or as `-.csv`; no option begins so."""
    return value == "-" or value.startswith("-.")


def _usage() -> str:
    lines = "\n".join(f"  {name:10s} {command.summary}" for name, command in COMMANDS.items())
    return (
        f"usage: exlm COMMAND ...\n\n{lines}\n\nexlm COMMAND --help lists the options of a command"
    )


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)
