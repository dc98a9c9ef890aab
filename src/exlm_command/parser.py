"""Makes commands from typed functions: jsonargparse reads arguments, YAML recipes, `--section.key
value` overrides and help from their signatures and docstrings. `commands.yaml` lists the
commands."""

import re
import signal
from argparse import ArgumentError
from typing import Any, get_type_hints

import transformers
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ArgumentParser
from safetensors import SafetensorError

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm_command.table import COMMANDS, function_of, similar


def run(name: str, arguments: list[str]) -> tuple[int, str]:
    """Calls a command's function with `arguments`. Returns (0, ""), or an exit status and one
    sentence why."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        function_of(name)(**settings(name, arguments))
    except InputError as error:
        return 2, f"error: {error}"
    except (OSError, SafetensorError) as error:  # the second comes from a full disk, too
        return (
            2,
            f"error: a file could not be read or written: {error}; check the path and the free space",
        )
    except TrainingStopped as error:
        return 3, f"stopped: {error}"
    except Interrupted as error:
        return 128 + error.number, str(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, "interrupted"
    return 0, ""


def build_parser(name: str) -> ArgumentParser:
    """The parser of one command."""
    function, command = function_of(name), COMMANDS[name]
    many = {word.rstrip("?*+"): word[-1] if word[-1] in "?*+" else None for word in command.words}
    shown = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    usage = " ".join(shown[count].format(word.upper()) for word, count in many.items())
    parser = ArgumentParser(
        prog=f"exlm {name}",
        usage=f"exlm {name} {usage} [--option value ...]",
        epilog=f"example: exlm {name} {command.example}",
        exit_on_error=False,
    )
    many.pop("recipe", None)  # it arrives as --config
    helps = {
        entry.arg_name: entry.description
        for entry in parse_docstring(function.__doc__ or "").params
    }
    for word, count in many.items():
        hint = str if count else get_type_hints(function)[word]
        parser.add_argument(word, type=hint, nargs=count, help=helps[word])
    parser.add_argument(
        "--config", action=ActionConfigFile, help="YAML recipe; later options override it"
    )
    parser.add_function_arguments(function, skip=set(many) or None)
    return parser


def settings(name: str, arguments: list[str]) -> dict[str, Any]:
    """The keyword arguments of a command's function. Any error of the parser becomes an InputError
    of one sentence."""
    parser = build_parser(name)
    try:
        config = parser.instantiate(parser.parse_args(full_options(arguments, parser))).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        raise InputError(_reason(error, parser)) from error
    config.pop("config", None)
    return config


def full_options(arguments: list[str], parser: ArgumentParser) -> list[str]:
    """The arguments with the full names of their options, and with brackets around the values `a,b`
    of a list. Sections may be left out where only one option then has the name: `--learning_rate`
    is `--train.learning_rate` in fine-tuning and `--train.optimizer.learning_rate` in pre-training.
    InputError names an option that does not exist."""
    known = {  # the type of every option
        name.lstrip("-"): str(getattr(action, "_typehint", "")).removeprefix("typing.Optional[")
        for action in parser._actions
        for name in action.option_strings
    }
    full, is_list = list[str](), False
    for argument in arguments:
        option, equals, value = (
            argument.partition("=") if argument.startswith("--") else ("", "", argument)
        )
        if option:
            name = _full_name(option[2:], known, parser.prog)
            option, is_list = f"--{name}", known.get(name, "").startswith("list[")
        if is_list and value[:1] not in ("", "[", "-"):
            value = f"[{value}]"
        full.append(option + equals + value)
    return full


def _full_name(name: str, known: dict[str, str], command: str) -> str:
    *sections, last = name.split(".")
    parents = [".".join(sections[:i]) for i in range(len(sections) + 1)]
    if name in known or any("dict[" in known.get(parent, "") for parent in parents):
        return name
    named = [
        option
        for option in known
        if option.split(".")[-1] == last and set(sections) <= set(option.split("."))
    ]
    if len(named) == 1:
        return named[0]
    meant = " or ".join(
        f"--{option}" for option in named or similar(name, [key for key in known if key[-1] != "+"])
    )
    hint = f"; did you mean {meant}?" if meant else ""
    raise InputError(f"there is no option --{name}{hint} ({command} --help lists all options)")


def _reason(error: BaseException, parser: ArgumentParser) -> str:
    """The message of an InputError if one caused the parser's error, else the parser's own message
    in one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip(" -") for line in str(error).splitlines()]
    text = " ".join(
        line for line in lines if line and not line.startswith(("Given value", "Subtypes"))
    )
    # of a recipe; those of the command line are known to exist
    if re.match("(Group|Option) '.+ accept", text):
        setting = ".".join(re.findall(r"'(\S+)'", text))
        meant = " or ".join(
            similar(setting, [name.strip("-") for name in parser._option_string_actions])
        )
        return f"there is no setting {setting}{f'; did you mean {meant}?' if meant else ''}"
    choices = r'Parser key "(\S+)": Expected a typing.Literal\[(.*)\]. Got value: (.*)'
    return re.sub(choices, r"\1 is \3; it must be one of \2", text)
