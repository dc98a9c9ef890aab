"""The command line: a table from command to typed function.

Arguments, YAML recipes, `--section.key value` overrides and help all come from the functions' signatures and
docstrings (jsonargparse). `exlm COMMAND RECIPE.yaml` is short for `--config RECIPE.yaml`.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by signal n.
"""

import signal
import sys
from argparse import ArgumentError
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from jsonargparse import ActionConfigFile, ArgumentParser

from .errors import InputError
from .train.loop import Interrupted, TrainingStopped

# command -> (module, function, one line, positional arguments); one that ends in * is the list of all further words
COMMANDS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "prepare": ("exlm.data.prepare", "prepare", "tokenise files into a corpus for pre-training", ("inputs",)),
    "pretrain": ("exlm.pretrain", "pretrain", "pre-train ExLM or a baseline on a corpus", ()),
    "finetune": ("exlm.tasks.finetune", "finetune", "fine-tune a model on labelled data and evaluate it", ()),
    "predict": (
        "exlm.tasks.predict",
        "predict",
        "add a fine-tuned model's predictions to a table",
        ("model", "input"),
    ),
    "embed": ("exlm.tasks.predict", "embed", "write embeddings of the rows of a table", ("model", "input")),
    "fill": (
        "exlm.filling.fill",
        "fill",
        "fill masks jointly: n best, Viterbi or samples",
        ("model", "texts*"),
    ),
    "explore": (
        "exlm.filling.explore",
        "explore",
        "a page to look inside: states, transitions, best fillings",
        ("model", "text"),
    ),
    "analyze": (
        "exlm.paper.analyze",
        "analyze",
        "run an experiment of the paper: whatever is missing of it",
        ("experiment", "config"),
    ),
    "report": (
        "exlm.paper.report.command",
        "report",
        "tables and figures of the paper from runs, beside the paper's values",
        ("runs*",),
    ),
    "demo": ("exlm.demo", "demo", "the whole pipeline on data that ship with a package", ()),
}


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
    parser.add_function_arguments(function, skip={word.rstrip("*") for word in positional} or None)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the `exlm` command."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] not in COMMANDS:
        _usage(arguments)
    name, *rest = arguments
    try:
        _run(name, rest)
    except InputError as error:
        _leave(2, f"exlm {name}: error: {error}")
    except OSError as error:
        _leave(
            2, f"exlm {name}: error: a file could not be read or written: {error}; check the path and the free space"
        )
    except TrainingStopped as error:
        _leave(3, f"exlm {name}: stopped: {error}")
    except Interrupted as error:
        _leave(128 + error.number, f"exlm {name}: {error}")
    except KeyboardInterrupt:
        _leave(128 + signal.SIGINT, f"exlm {name}: interrupted")


def _run(name: str, rest: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    positional = COMMANDS[name][3]
    given: dict[str, str | list[str]] = {}
    if positional:
        rest = _take_positional(name, positional, rest, given)
        rest = _with_recipe(given.pop("config"), rest) if "config" in given else rest
    elif rest and not rest[0].startswith("-"):
        rest = _with_recipe(rest[0], rest[1:])
    command_function(name)(**given, **_parse(name, rest))


def _with_recipe(path: str | list[str], rest: list[str]) -> list[str]:
    if not Path(str(path)).is_file():
        raise InputError(f"the recipe {path} does not exist; see the recipes folder for examples")
    return ["--config", str(path), *rest]


def _parse(name: str, rest: list[str]) -> dict[str, Any]:
    """The function's keyword arguments. Whatever the parser dislikes becomes one sentence."""
    parser = build_parser(name)
    try:
        config = parser.instantiate_classes(parser.parse_args(rest)).as_dict()
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


def _take_positional(
    name: str, positional: tuple[str, ...], rest: list[str], given: dict[str, str | list[str]]
) -> list[str]:
    """Moves the leading words of `rest` into `given`; an argument alone, or one with a *, takes all others."""
    words = []
    while rest and not rest[0].startswith("-"):
        words.append(rest[0])
        rest = rest[1:]
    if rest and rest[0] in ("-h", "--help"):
        return rest
    starred = positional[-1].endswith("*")
    names = positional[:-1] if starred else positional
    if starred:
        given[positional[-1][:-1]], words = words[len(names) :], words[: len(names)]
    takes_all = len(names) == 1 and not starred
    if len(words) < len(names) or (len(words) > len(names) and not takes_all):
        raise InputError(f"give {' and '.join(w.upper() for w in names)} before the options (exlm {name} --help)")
    given.update({names[0]: words} if takes_all else dict(zip(names, words, strict=True)))
    return rest


def _usage(arguments: list[str]) -> None:
    lines = [f"  {name:10s} {summary}" for name, (_, _, summary, _) in COMMANDS.items()]
    text = "usage: exlm COMMAND ...\n\n" + "\n".join(lines) + "\n\nexlm COMMAND --help lists the options of a command"
    if arguments and arguments[0] in ("-h", "--help"):
        print(text)
        raise SystemExit(0)
    unknown = f"exlm: error: unknown command {arguments[0]!r}\n\n" if arguments else ""
    _leave(2, unknown + text)


def _leave(status: int, message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
