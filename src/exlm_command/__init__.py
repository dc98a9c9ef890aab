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

from exlm_command.commands import COMMANDS, CommandLineError, did_you_mean, find_similar
from exlm_command.recipes import recipe_path

HELP = ("-h", "--help")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGTERM, _interrupt)
        _set_environment()
    name, *words = arguments or [""]
    try:
        _run(name, words)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        number = next(iter(interrupt.args), signal.SIGINT)
        _leave(128 + number, f"exlm {name}: interrupted")
    except BrokenPipeError:
        # A reader of the output, such as `head`, has closed it. What is not written yet is thrown
        # away, or Python would try to write it once more.
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


def _run(name: str, words: list[str]) -> None:
    """Answers what needs no command, or checks the words behind the command `name` and runs it."""
    if name == "--version":
        from exlm import __version__

        print(f"exlm {__version__}")
        return
    if name in HELP:
        print(_usage())
        return
    if name not in COMMANDS:
        hint = did_you_mean(find_similar(name, COMMANDS))
        error = f"exlm: error: unknown command {name!r}{hint}\n\n" if name else ""
        _leave(2, error + _usage())
    words = ["--help" if word == "-h" else word for word in words]
    positionals = list(takewhile(lambda word: not _is_option(word), words))
    options = words[len(positionals) :]
    if "--help" not in options:
        positionals = _check_words(name, positionals, options)

    # This import brings the command, most often with PyTorch.
    from exlm_command.parser import run

    status, message = run(name, [*positionals, *options])
    if status:
        _leave(status, f"exlm {name}: {message}")


def _check_words(name: str, positionals: list[str], options: list[str]) -> list[str]:
    """Ends the process if the words of a command line cannot be used, before the command is
    imported, which takes seconds. Returns the positionals with `--config` before a recipe."""
    try:
        gives_config = any(option.partition("=")[0] == "--config" for option in options)
        # With --config, the recipe need not stand before the options.
        if positionals or not gives_config:
            positionals = _recipe_as_option(name, positionals)
        # settings may be printed before the file is there
        if not any(option.startswith("--print_config") for option in options):
            _check_paths(name, positionals, options)
    except CommandLineError as error:
        _leave(2, f"exlm {name}: error: {error}")
    return positionals


def _recipe_as_option(name: str, values: list[str]) -> list[str]:
    """The values of the positionals, with `--config PATH` in place of a recipe. CommandLineError if
    their number is wrong or there is no such recipe."""
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
        names_file = argument.lstrip("-").removeprefix("task.") in command.files and "." in value
        if not (names_file or argument in command.paths):
            continue
        if _is_standard_input(value) or os.path.exists(value):
            continue
        advice = f"check the path of {argument}"
        if argument == "model":
            # This module of the library needs no PyTorch.
            from exlm.storage.shipped import shipped_models

            if value in shipped_models():
                continue
            advice += ", or give a name that exlm models lists"
        raise CommandLineError(f"{value} does not exist; {advice}")


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _is_standard_input(word)


def _is_standard_input(word: str) -> bool:
    """Whether a word means standard input: `-`, or with a format `-.csv`."""
    return word == "-" or word.startswith("-.")


def _usage() -> str:
    lines = "\n".join(f"  {name:10s} {command.summary}" for name, command in COMMANDS.items())
    return (
        f"usage: exlm COMMAND ...\n\n{lines}\n\nexlm COMMAND --help lists the options of a command"
    )


def _leave(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)
