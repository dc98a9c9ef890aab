"""Makes commands from typed functions: jsonargparse reads arguments, YAML recipes, `--section.key
value` overrides and help from their signatures and docstrings. `commands.yaml` lists the
commands."""

import json
import sys
from argparse import ArgumentError
from itertools import takewhile
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ArgumentParser, get_loader, set_loader
from safetensors import SafetensorError

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm_command.commands import COMMANDS, function_of

_load_yaml = get_loader("yaml")


def _load(text: str) -> Any:
    """A value or a recipe in YAML. A value is text if YAML reads nothing in it: `#activity` is the
    name of a column."""
    value = _load_yaml(text)
    is_text = value is None and text.strip().lower() not in ("", "~", "null") and "\n" not in text
    return text if is_text else value


set_loader("yaml", _load, exceptions=(yaml.YAMLError,))


def run(name: str, arguments: list[str]) -> tuple[int, str]:
    """Calls a command's function with `arguments`. Returns (0, ""), or an exit status and one
    sentence why."""
    try:
        function_settings = settings(name, arguments)
        if transformers := sys.modules.get("transformers"):
            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
        function_of(name)(**function_settings)
    except InputError as error:
        return 2, f"error: {error}"
    except BrokenPipeError:
        raise  # no file, but the standard output
    # a full disk, too, can raise SafetensorError
    except (OSError, SafetensorError) as error:
        advice = "check the path and the free space"
        return 2, f"error: a file could not be read or written: {error}; {advice}"
    except TrainingStopped as error:
        return 3, f"stopped: {error}"
    except Interrupted as error:
        return 128 + error.number, str(error)
    return 0, ""


def build_parser(name: str) -> ArgumentParser:
    """The parser of one command. Its options are the arguments of the command's function, and those
    of the class to which the function passes its `**options`: jsonargparse finds that call in the
    function's source."""
    function = function_of(name)
    command = COMMANDS[name]
    forms = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    positionals_in_usage = [
        forms[count].format(positional.upper()) for positional, count in command.positionals.items()
    ]
    parser = ArgumentParser(
        prog=f"exlm {name}",
        usage=" ".join(["exlm", name, *positionals_in_usage, "[--option value ...]"]),
        epilog=f"example: exlm {name} {command.example}",
        exit_on_error=False,
    )
    hints = get_type_hints(function)
    docstring = parse_docstring(function.__doc__ or "")
    helps = {entry.arg_name: entry.description for entry in docstring.params}
    # a recipe arrives as --config
    positionals = {**command.positionals}
    positionals.pop("recipe", None)
    for positional, count in positionals.items():
        value_type = str if count else hints[positional]
        parser.add_argument(positional, type=value_type, nargs=count, help=helps[positional])
    parser.add_argument(
        "--config", action=ActionConfigFile, help="YAML recipe; later options override it"
    )
    group = parser.add_argument_group(command.summary)
    group.add_function_arguments(function, as_group=False, skip={*positionals} or None)
    return parser


def settings(name: str, arguments: list[str]) -> dict[str, Any]:
    """The keyword arguments of a command's function. Any error of the parser becomes an InputError
    of one sentence."""
    parser = build_parser(name)
    try:
        parsed = parser.parse_args(full_options(arguments, types_of_options(parser)))
        config = parser.instantiate(parsed).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        raise InputError(_reason(error)) from error
    config.pop("config", None)
    return config


def types_of_options(parser: ArgumentParser) -> dict[str, Any]:
    """By the full name of every option, such as `train.steps`, its type if jsonargparse takes care
    of it (lists and dicts among them), else None. No public function of the parser tells types."""
    actions = [action for action in parser._actions if action.option_strings]
    return {action.dest: _without_none(getattr(action, "_typehint", None)) for action in actions}


def _without_none(hint: Any) -> Any:
    """`X` of `X | None`."""
    members = [member for member in get_args(hint) if member is not NoneType]
    return members[0] if get_origin(hint) in (Union, UnionType) and len(members) == 1 else hint


def full_options(arguments: list[str], option_types: dict[str, Any]) -> list[str]:
    """The arguments with the full names of their options, and with the values `a b` of a list as
    one value."""
    full = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    options: list[tuple[str, list[str]]] = []  # each with the values that follow it
    for argument in arguments[len(full) :]:
        if argument.startswith("--"):
            option, equals, value = argument[2:].partition("=")
            options.append((option, [value] if equals else []))
        else:
            options[-1][1].append(argument)
    for option, values in options:
        # jsonargparse appends to a list with --name+
        plus = "+" if option.endswith("+") else ""
        name = _full_name(option.removesuffix("+"), option_types)
        list_type = option_types.get(name)
        if values and get_origin(list_type) is list:
            values = [_as_list(values, list_type)]
        full += [f"--{name}{plus}", *values]
    return full


def _full_name(name: str, option_types: dict[str, Any]) -> str:
    """The full name of an option. Sections may be left out where only one option then has the name:
    `--learning_rate` is `--train.learning_rate` in fine-tuning and
    `--train.optimizer.learning_rate` in pre-training. Any other name is returned as it is."""
    if name in option_types:
        return name
    *sections, last = name.split(".")
    same_last = [option for option in option_types if option.split(".")[-1] == last]
    matches = [option for option in same_last if set(sections) <= set(option.split("."))]
    return matches[0] if len(matches) == 1 else name


def _as_list(values: list[str], list_type: Any) -> str:
    """The values of a list as one value in YAML. A text is an element as it was typed, even if YAML
    reads it otherwise, such as `1`, `yes`, `a: b` or `log P, #1`; but one text may be the whole
    list in JSON."""
    if list_type != list[str]:
        return values[0] if values[0].startswith("[") else f"[{', '.join(values)}]"
    try:
        is_json = len(values) == 1 and isinstance(json.loads(values[0]), list)
    except ValueError:
        is_json = False
    return values[0] if is_json else json.dumps(values)


def _reason(error: BaseException) -> str:
    """The message of an InputError if one caused the parser's error, else the parser's own message
    in one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())
