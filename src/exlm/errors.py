"""Exceptions and notes that users are meant to see, and checks that raise them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from types import NoneType
from typing import Any, Literal, get_args, get_origin


class InputError(ValueError):
    """A file, row, option or checkpoint cannot be used; the message says which one and what to
    do."""


class TrainingStopped(RuntimeError):
    """Training cannot go on: the loss is not finite or no sequence can be aligned any more."""


class OutOfMemory(TrainingStopped):
    """Training needs more memory than there is; smaller steps may help."""


class Diverged(TrainingStopped):
    """The outputs of a trained model are not numbers. The message has the advice already."""


class Interrupted(RuntimeError):
    """A signal asked for a stop; `number` is the signal's. The message says whether the run can go
    on from here."""

    def __init__(self, number: int, message: str) -> None:
        # all arguments, or the error could not come out of another process
        super().__init__(number, message)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[1])


def note(text: str) -> None:
    """Prints on standard error what the user should know, though it is no error."""
    print(f"note: {text}", file=sys.stderr)


@contextmanager
def advising(advice: str, memory_advice: str) -> Iterator[None]:
    """Adds to the message of a training that stops itself what its user can do: `memory_advice` if
    memory ran out, else `advice`, unless the message has advice already."""
    try:
        yield
    except OutOfMemory as error:
        raise OutOfMemory(f"{error}; {memory_advice}") from error
    except Diverged:
        raise
    except TrainingStopped as error:
        raise TrainingStopped(f"{error}; {advice}") from error


def check_at_least(config: object, **smallest: float) -> None:
    """Raises InputError if one of these settings of `config` is not None and less than its smallest
    value."""
    for name, least in smallest.items():
        value = getattr(config, name)
        if value is not None and not value >= least:  # NaN must fail, too
            raise InputError(f"{name} is {value}; it must be at least {least}")


def check_choices(config: Any) -> None:
    """Raises InputError if a setting of a dataclass is none of the values that its type, a Literal,
    lists; of `Literal | None`, None is one, too."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        hint = setting.type
        if value is not None and NoneType in get_args(hint):
            hint = get_args(hint)[0]
        choices = get_args(hint)
        # True equals 1, but who writes `true` does not mean the number.
        is_bool_for_number = isinstance(value, bool) and not any(value is x for x in choices)
        if get_origin(hint) is Literal and (value not in choices or is_bool_for_number):
            names = ", ".join(map(str, choices))
            raise InputError(f"{setting.name} is {value!r}; it must be one of {names}")


def import_optional(module: str, extra: str, purpose: str) -> Any:
    """A module that comes with an optional extra of this package; InputError if it is not
    installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{purpose} needs {module}; install it with: pip install '.[{extra}]' in the folder of "
            "ExLM's source"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of a library's error message, or as much of it as one can read."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
