"""How a command line becomes a call of a Python function. For example
`exlm finetune --model runs/exlm --learning_rate 1e-3 --seeds 0 1`:

1. `build_parser` makes a parser (jsonargparse) whose options are the arguments of `finetune`, with
   the types of its signature and the help of its docstring. The fields of a dataclass are options
   of a section: its argument `train` gives `--train.learning_rate`, and so on.
2. `expand_options` completes names, and writes lists as YAML:
   `--model=runs/exlm --train.learning_rate=1e-3 --seeds=[0,1]`.
3. `settings` lets the parser read a recipe and these options, and makes the arguments of them:
   model="runs/exlm", train=FinetuneConfig(learning_rate=0.001), seeds=[0, 1].
4. `run` calls `finetune` with these, and says how it ended.

`commands.yaml` has the commands, and `messages.py` says what is wrong in one sentence."""

import json
import shlex
import sys
from argparse import ArgumentError
from itertools import chain, takewhile
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionConfigFile, ArgumentParser, get_loader, set_loader
from safetensors import SafetensorError

from exlm.errors import InputError, Interrupted, TrainingStopped
from exlm.upgrades import upgrade_recipe
from exlm_command.commands import (
    COMMANDS,
    CommandLineError,
    did_you_mean,
    find_similar,
    import_function,
)
from exlm_command.messages import explain_error

_read_any_yaml = get_loader("yaml")
NOT_FINITE = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}  # numbers, as YAML writes them


class _RepeatedKeys(yaml.SafeLoader):
    """A reader of YAML that raises InputError for two entries of one name in a mapping, and for an
    entry beside its section, such as `train.epochs` beside `train`. Other readers keep the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        mapping = super().compose_mapping_node(anchor)
        first_keys = dict[tuple[str, str], yaml.Node]()
        for key, _ in mapping.value:
            first = first_keys.setdefault((key.tag, str(key.value)), key)
            if first is not key:
                where = _lines_of(first, key)
                raise InputError(f"two entries are called {key.value!r}{where}; join them")
        for (tag, name), key in first_keys.items():
            section = name
            while section := section.rpartition(".")[0]:
                if beside := first_keys.get((tag, section)):
                    raise InputError(
                        f"the entry {name!r} stands beside its section {section!r}"
                        f"{_lines_of(key, beside)}; write it inside of the section"
                    )
        return mapping


def _lines_of(*nodes: yaml.Node) -> str:
    """Where two nodes stand, for a message; "" if they are in one line."""
    lines = {node.start_mark.line + 1 for node in nodes}
    return f" (lines {min(lines)} and {max(lines)})" if len(lines) > 1 else ""


def _read_yaml(text: str) -> Any:
    """A value or a recipe in YAML. A value in which YAML finds only a comment is text: `#activity`
    is the name of a column."""
    value = _read_any_yaml(text)
    if isinstance(value, (dict, list)):
        yaml.compose(text, _RepeatedKeys)
    if isinstance(value, dict):
        value = upgrade_recipe(value)
    is_text = value is None and text.strip().lower() not in ("", "~", "null") and "\n" not in text
    return text if is_text else value


set_loader("yaml", _read_yaml, exceptions=(yaml.YAMLError,))


def run(name: str, arguments: list[str]) -> tuple[int, str]:
    """Calls a command's function with `arguments`. Returns (0, ""), or an exit status and one
    sentence why."""
    try:
        function_settings = settings(name, arguments)
        if transformers := sys.modules.get("transformers"):
            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
        import_function(name)(**function_settings)
    except (InputError, CommandLineError) as error:
        return 2, f"error: {error}"
    except BrokenPipeError:
        raise  # It is an OSError, but of the standard output and no file.
    # A full disk, too, can raise SafetensorError.
    except (OSError, SafetensorError) as error:
        advice = "check the path and the free space"
        return 2, f"error: a file could not be read or written: {error}; {advice}"
    except TrainingStopped as error:
        return 3, f"stopped: {error}"
    except Interrupted as error:
        return 128 + error.number, str(error)
    return 0, ""


def build_parser(name: str) -> ArgumentParser:
    """The parser of one command. Its options are the arguments of the command's function, and the
    fields of the class to which the function passes its `**options`: jsonargparse finds that call
    in the function's source."""
    function = import_function(name)
    command = COMMANDS[name]
    usages = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ..."}
    positionals_in_usage = [
        usages[count].format(word.upper()) for word, count in command.positionals.items()
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
    # A recipe arrives as --config.
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
        parsed = parser.parse_args(expand_options(arguments, option_types, f"exlm {name}"))
        keywords = parser.instantiate(parsed).as_dict()
    except (ArgumentError, TypeError, ValueError) as error:
        raise InputError(explain_error(error, option_types)) from error
    keywords.pop("config", None)
    return keywords


def types_of_options(parser: ArgumentParser) -> dict[str, Any]:
    """The type of every option by its full name, such as `train.steps`; None where jsonargparse
    leaves the type to argparse. No public function of the parser tells types."""
    actions = [action for action in parser._actions if action.option_strings]
    return {action.dest: getattr(action, "_typehint", None) for action in actions}


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that `hint` allows: all of a union, or itself alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def expand_options(arguments: list[str], option_types: dict[str, Any], command: str) -> list[str]:
    """The arguments with the full names of their options (`_full_name`), and with the values `a,b`
    or `a b` of a list as YAML. What belongs to no option comes last, in its order. InputError names
    an option that does not exist, a list that is given twice, and a range without brackets."""
    positionals = list(takewhile(lambda argument: not argument.startswith("--"), arguments))
    options = _options_with_values(arguments[len(positionals) :], option_types, command)
    completed: list[str] = []
    for name, values in options:
        # --name+ appends to a list
        members = _members(option_types.get(name.removesuffix("+")))
        if any(get_origin(member) is tuple for member in members):
            _check_brackets(name, values)
        list_type = next((member for member in members if get_origin(member) is list), None)
        if list_type and not name.endswith("+"):
            _check_list_once(name, options)
        if float in members:
            values = [NOT_FINITE.get(value.lower(), value) for value in values]
        # of `str | list[str]`, one value is a str
        if list_type and any(values) and (len(values) > 1 or str not in members):
            values = [_list_as_yaml(",".join(values), list_type)]
        completed.append(f"--{name}={values[0]}" if values else f"--{name}")
        if list_type:
            completed += values[1:]
        else:  # what stands behind the one value belongs to no option
            positionals += values[1:]
    # argparse would take `-.csv` (standard input) for an option
    return [*completed, "--", *positionals] if positionals else completed


def _options_with_values(
    arguments: list[str], option_types: dict[str, Any], command: str
) -> list[tuple[str, list[str]]]:
    """The full name and the values of every option, in order: `--seeds 0 1 --metric=f1` becomes
    [("seeds", ["0", "1"]), ("metric", ["f1"])]."""
    options: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            options.append((_full_name(name, option_types, command), [value] if equals else []))
        else:
            options[-1][1].append(argument)
    return options


def _check_list_once(name: str, options: list[tuple[str, list[str]]]) -> None:
    """Raises InputError if the list `name` is given twice, as nobody knows which one counts."""
    lists = [values for option, values in options if option == name]
    if len(lists) > 1:
        once = shlex.join(chain.from_iterable(lists))
        raise InputError(f"--{name} is given twice; give its values once: --{name} {once}")


def _full_name(name: str, option_types: dict[str, Any], command: str) -> str:
    """The name of an option with the sections that were left out, as they may be where one option
    alone fits: `learning_rate` is `train.learning_rate` in fine-tuning and
    `train.optimizer.learning_rate` in pre-training. InputError if none or several fit."""
    # jsonargparse appends to a list with --name+
    if name.endswith("+"):
        return _full_name(name[:-1], option_types, command) + "+"
    *sections, last = name.split(".")
    parents = [".".join(sections[: i + 1]) for i in range(len(sections))]
    types_of_parents = chain.from_iterable(_members(option_types.get(parent)) for parent in parents)
    # Any key can stand below a dict, such as the name of a task.
    if name in option_types or any(get_origin(hint) is dict for hint in types_of_parents):
        return name
    with_last = [option for option in option_types if option.split(".")[-1] == last]
    matches = [option for option in with_last if set(sections) <= set(option.split("."))]
    if len(matches) == 1:
        return matches[0]
    hint = did_you_mean(f"--{option}" for option in matches or find_similar(name, option_types))
    raise InputError(f"there is no option --{name}{hint} ({command} --help lists all options)")


def _check_brackets(name: str, values: list[str]) -> None:
    """Raises InputError for a range, such as a `mask_ratio`, whose numbers have no brackets."""
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
