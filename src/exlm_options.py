"""The options of every `exlm` command, read from the source files.

To import the functions behind the commands takes seconds. So a mistyped option is found here first, in their source.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent
OF_EVERY_COMMAND = ("config", "print_config")


def options_of(module: str, function: str, words: Iterable[str]) -> dict[str, str]:
    """The options of a command by their full names without dashes, with their types. `words` are those arguments of the
    function that are no options."""
    options = dict.fromkeys(OF_EVERY_COMMAND, "str") | dict(_fields(module, function))
    return {option: hint for option, hint in options.items() if option not in set(words)}


def summary(module: str, function: str) -> str:
    """The first line of a function's docstring."""
    _, definition = _definition(module, function) or ("", None)
    return (definition and ast.get_docstring(definition) or "").partition("\n")[0]


def full_options(arguments: list[str], options: dict[str, str]) -> list[str]:
    """The arguments with the full names of their options, and with brackets around the values `a,b` of a list. Sections
    may be left out where only one option then has the name: `--learning_rate` is `--train.learning_rate` in fine-tuning
    and `--train.optimizer.learning_rate` in pre-training. ValueError names an option that does not exist."""
    full, is_list = list[str](), False
    for argument in arguments:
        option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if option:
            name = _full_name(option[2:], options)
            option, is_list = f"--{name}", options.get(name, "").startswith("list[")
        if is_list and value[:1] not in ("", "[", "-"):
            value = f"[{value}]"
        full.append(option + equals + value)
    return full


def similar(word: str, names: Iterable[str]) -> list[str]:
    """The name that is spelled like `word`, or else up to three whose last part is like its last part."""
    last = {name: re.split("[./]", name)[-1] for name in (word, *names)}
    own = last.pop(word)
    alike = [name for name, part in last.items() if own in part or get_close_matches(own, [part], 1, 0.7)]
    return get_close_matches(word, last, 1, 0.8) or sorted(alike, key=lambda name: last[name] != own)[:3]


def _full_name(name: str, options: dict[str, str]) -> str:
    if name.rstrip("+") in options or any("dict[" in options.get(name[:i], "") for i in range(len(name))):
        return name
    *sections, last = name.split(".")
    named = [option for option in options if option.split(".")[-1] == last and set(sections) <= set(option.split("."))]
    if len(named) == 1:
        return named[0]
    meant = " or ".join(f"--{option}" for option in named or similar(name, options))
    raise ValueError(f"there is no option --{name}{f'; did you mean {meant}?' if meant else ''}")


def _fields(module: str, name: str, section: str = "") -> Iterator[tuple[str, str]]:
    """Name and type of every argument of a function or field of a dataclass, and of those inside these dataclasses."""
    if not (found := _definition(module, name)):
        return
    module, definition = found
    entries: list[tuple[str, ast.expr | None]]
    if isinstance(definition, ast.ClassDef):
        lines = [line for line in definition.body if isinstance(line, ast.AnnAssign)]
        lines = [line for line in lines if "init=False" not in ast.unparse(line)]  # no argument of the class
        entries = [(ast.unparse(line.target), line.annotation) for line in lines]
    else:
        entries = [(argument.arg, argument.annotation) for argument in definition.args.args]
        if rest := definition.args.kwarg:  # `**options`: the arguments of the class that is called with them
            calls = [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
            for call in [call for call in calls if f"**{rest.arg}" in map(ast.unparse, call.keywords)]:
                yield from _fields(module, ast.unparse(call.func), section)
    for target, annotation in entries:
        hint = ast.unparse(annotation or ast.Name("str"))
        yield section + target, hint
        yield from _fields(module, hint, f"{section}{target}.")


def _definition(module: str, name: str) -> tuple[str, ast.ClassDef | ast.FunctionDef] | None:
    """A class or function that `module` defines or imports from this package, and the module that defines it."""
    for node in _statements(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            package = module.split(".")[: -node.level] if node.level else []
            return _definition(".".join([*package, node.module]), name)
    return None


@cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of a module of this package; none of any other module."""
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
