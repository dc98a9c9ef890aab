"""The identity of a run: those of its settings, by name, that another run must share to be the
same. It has all settings of dataclasses, but for fields that are marked otherwise."""

import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

# Metadata of a dataclass's field that does not change what a run computes, or that another setting
# contains.
NOT_IDENTITY = {"identity": "never"}
# Metadata of a field that earlier versions did not have, and whose default is what those versions
# did: an identity has it only where it differs from the default.
IDENTITY_IF_CHANGED = {"identity": "if changed"}

# The settings of a model with IDENTITY_IF_CHANGED. Some versions recorded them with their default
# too, or as null, others not.
DEFAULTS = {"model.state_share": 0.5}
LONGEST = 80  # characters of a value in a message


def identity_of(config: Any, section: str = "") -> dict[str, Any]:
    """The part of an identity that a dataclass has, in types of JSON, by name: `section.name`, or
    `section.name.inner` of a dataclass in it."""
    identity: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        rule = field.metadata.get("identity")
        name = f"{section}.{field.name}" if section else field.name
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if rule == "never" or (rule == "if changed" and value == default):
            continue
        if is_dataclass(value):
            identity |= identity_of(value, name)
        else:
            identity[name] = json.loads(json.dumps(value))
    return identity


def first_difference(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, str, str] | None:
    """Name, earlier value and value, for a message, of the first setting of `now` that was another
    one `before`; None if all are the same. A setting in a dictionary is named `dictionary.name`,
    and may also be one that was recorded only `before`, so that it has its default now."""
    before = _with_defaults(before)
    for name, value in _with_defaults(now).items():
        earlier = before.get(name)
        if isinstance(value, dict) and isinstance(earlier, dict):
            inner = first_difference(earlier, dict.fromkeys(earlier) | value)
            if inner:
                inner_name, earlier_in_words, in_words = inner
                return f"{name}.{inner_name}", earlier_in_words, in_words
        elif _as_cut(earlier) != _as_cut(value):
            earlier_in_words = repr(earlier)[:LONGEST] if name in before else "not recorded"
            in_words = "the default" if value is None else repr(value)[:LONGEST]
            return name, earlier_in_words, in_words
    return None


def _as_cut(value: Any) -> Any:
    """A list of names as earlier versions recorded it, which cut names at their commas and dropped
    the spaces there; any other value as it is."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    pieces = [piece.strip() for name in value for piece in name.split(",")]
    return [piece for piece in pieces if piece]


def _with_defaults(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity, also with those settings of DEFAULTS that are not recorded."""
    missing = {name: x for name, x in DEFAULTS.items() if identity.get(name) is None}
    return identity | missing
