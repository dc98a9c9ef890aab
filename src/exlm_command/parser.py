"""Makes commands from typed functions: jsonargparse reads arguments, YAML recipes, `--section.key
value` overrides and help from their signatures and docstrings. `commands.yaml` lists the
commands."""

import json
import re
import shlex
import sys
from argparse import ArgumentError
from collections.abc import Collection
from itertools import chain, takewhile
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ArgumentParser, get_loader, set_loader
from safetensors import SafetensorError

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.upgrades import upgrade_recipe
from exlm_command.commands import COMMANDS, CommandLineError, did_you_mean, function_of, similar

_load_yaml = get_loader("yaml")


def _load(text: str) -> Any:
    """A value or a recipe in YAML. A value is text if YAML reads nothing in it: `#activity` is the
    name of a column."""
    value = _load_yaml(text)
    if isinstance(value, dict):
        value = upgrade_recipe(value)
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
    except (InputError, CommandLineError) as error:
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
    option_types = types_of_options(parser)
    try:
        parsed = parser.parse_args(full_options(arguments, option_types, f"exlm {name}"))
        config = parser.instantiate(parsed).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        raise InputError(_reason(error, option_types)) from error
    config.pop("config", None)
    return config


def types_of_options(parser: ArgumentParser) -> dict[str, Any]:
    """By the full name of every option, such as `train.steps`, its type if jsonargparse takes care
    of it (lists and dicts among them), else None. No public function of the parser tells types."""
    actions = [action for action in parser._actions if action.option_strings]
    return {action.dest: getattr(action, "_typehint", None) for action in actions}


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a union has; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def full_options(arguments: list[str], option_types: dict[str, Any], command: str) -> list[str]:
    """The arguments with the full names of their options, and with the values `a,b` or `a b` of a
    list as YAML. Sections may be left out where only one option then has the name:
    `--learning_rate` is `--train.learning_rate` in fine-tuning and
    `--train.optimizer.learning_rate` in pre-training. InputError names an option that does not
    exist, a list that is given twice, and a range without brackets."""
    positionals = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    full: list[str] = []
    options: list[tuple[str, list[str]]] = []  # each with its values
    for argument in arguments[len(positionals) :]:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            options.append((_full_name(name, option_types, command), [value] if equals else []))
        else:
            options[-1][1].append(argument)
    for name, values in options:
        members = _members(option_types.get(name.removesuffix("+")))
        list_type = next((member for member in members if get_origin(member) is list), None)
        if any(get_origin(member) is tuple for member in members):
            _check_brackets(name, values)
        all_values = [values_of_other for other, values_of_other in options if other == name]
        # --name+ appends
        if list_type and len(all_values) > 1 and not name.endswith("+"):
            once = shlex.join(chain.from_iterable(all_values))
            raise InputError(f"--{name} is given twice; give its values once: --{name} {once}")
        # of `str | list[str]`, one value is a str
        if list_type and any(values) and (len(values) > 1 or str not in members):
            values = [_list_as_yaml(",".join(values), list_type)]
        full.append(f"--{name}={values[0]}" if values else f"--{name}")
        full += values[1:]
    # argparse would take `-.csv` (standard input) for an option
    return [*full, "--", *positionals] if positionals else full


def _full_name(name: str, option_types: dict[str, Any], command: str) -> str:
    # jsonargparse appends to a list with --name+
    if name.endswith("+"):
        return _full_name(name[:-1], option_types, command) + "+"
    *sections, last = name.split(".")
    parents = [".".join(sections[: i + 1]) for i in range(len(sections))]
    types_of_parents = chain.from_iterable(_members(option_types.get(parent)) for parent in parents)
    # any key can stand below a dict, such as the name of a task
    if name in option_types or any(get_origin(hint) is dict for hint in types_of_parents):
        return name
    same_last = [option for option in option_types if option.split(".")[-1] == last]
    matches = [option for option in same_last if set(sections) <= set(option.split("."))]
    if len(matches) == 1:
        return matches[0]
    hint = did_you_mean(f"--{option}" for option in matches or similar(name, option_types))
    raise InputError(f"there is no option --{name}{hint} ({command} --help lists all options)")


def _check_brackets(name: str, values: list[str]) -> None:
    """Raises InputError for a range, such as that of `mask_ratio`, that is no list in YAML."""
    has_brackets = len(values) == 1 and values[0].startswith("[")
    numbers = ",".join(value.strip("()[], ") for value in values)
    if "," in numbers and not has_brackets:
        raise InputError(
            f"--{name} is {' '.join(values)}; several numbers need brackets and no spaces: "
            f"--{name} [{numbers}]"
        )


def _list_as_yaml(value: str, list_type: Any) -> str:
    """The value of a list as jsonargparse reads it: `0,1` gets brackets. What stands between the
    commas of a list of texts is text, even if YAML reads it otherwise, such as `1`, `yes`, `a: b`
    or `log P #1`; where quotes begin an element, the list is YAML."""
    has_brackets = value.startswith("[") and value.endswith("]")
    elements = [element.strip() for element in (value[1:-1] if has_brackets else value).split(",")]
    has_quotes = any(element.startswith(("'", '"')) for element in elements)
    if list_type == list[str] and not has_quotes:
        return json.dumps([element for element in elements if element])
    return value if has_brackets else f"[{value}]"


def _reason(error: BaseException, options: Collection[str]) -> str:
    """The message of an InputError if one caused the parser's error, else the parser's own message
    in one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    message = str(error)
    # Group 'train.optimizer' does not accept option 'stepz'
    # Option 'trainn.steps' is not accepted
    if re.match("(Group|Option) '.+ accept", message):
        # Only a recipe has such settings: `full_options` has looked up those of the command line.
        setting = ".".join(re.findall(r"'(\S+)'", message))
        return f"there is no setting {setting}{did_you_mean(similar(setting, options))}"
    lines = [line.strip(" -") for line in message.splitlines()]
    # Given value type: <class 'str'>
    # Subtypes: [<class 'int'>, typing.Literal['all']]
    told = [line for line in lines if not line.startswith(("Given value", "Subtypes"))]
    return _wrong_type(message) or " ".join(told)


def _wrong_type(message: str) -> str | None:
    """What to say of a value of another type than the setting's, if `message` is about one whose
    types are all simple."""
    # Parser key "passes":
    #   - Expected a <class 'int'>. Got value: x
    #   - Expected a typing.Literal['all']. Got value: x
    key = re.match('Parser key "(.+?)":', message)
    values = re.findall("(?:Got|Given) value: (.*)", message)
    types = re.findall(r"Expected an? (?:<class '(.+?)'>|typing.Literal\[(.*?)\])", message)
    all_are_simple = len(types) == message.count("Expected a") > 0
    if not (key and values and all_are_simple):
        return None
    names = [f"one of {choices}" if choices else name for name, choices in types]
    names = ["null" if name == "NoneType" else name for name in names]
    return f"{key[1]} is {values[0]}; it must be {' or '.join(names)}"
