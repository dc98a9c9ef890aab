"""The identity of a run: the settings, by name, that another run must share to be the same run. It
has all fields of the run's configurations but those that are marked otherwise."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

# Metadata of a dataclass's field that does not change what a run computes, or that another setting
# contains.
NOT_IDENTITY = {"identity": "never"}
# Metadata of a field that earlier versions did not have, and whose default is what those versions
# did: an identity has it only where it differs from the default.
IDENTITY_IF_CHANGED = {"identity": "if changed"}

# What a run did whose identity lacks a setting, or has null in its place: the settings of a model
# with IDENTITY_IF_CHANGED, and no weights to start from (of a fine-tuning `start_from`).
DEFAULTS: dict[str, Any] = {"model.state_share": 0.5, "start": None, "start_from": None}
LONGEST_VALUE = 80  # characters of a value in a message


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
    """The first setting that differs between the identities `before` and `now`: its name, and both
    values as a message has them. None if no setting differs."""
    # Earlier versions recorded some settings that change nothing, and not what they inferred.
    names = now.keys() | DEFAULTS.keys()
    inferred = {"inferred": now.get("inferred", {})}
    earlier = normalize(inferred | {name: before[name] for name in before if name in names})
    current = normalize(now)
    for name in current | earlier:
        if earlier.get(name) != current.get(name):
            value_before = _in_words(earlier.get(name), "not recorded")
            return name, value_before, _in_words(current.get(name), "the default")
    return None


def normalize(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as every version would record it, so that two runs are the same if theirs are
    equal: with DEFAULTS, and what was `inferred`, where a setting was left out, without
    dictionaries (the setting `dataset` of a dictionary `task` is `task.dataset`), and with names of
    columns cut at their commas, as earlier versions did."""
    inferred = identity.get("inferred", {})
    named = {name: value for name, value in identity.items() if name != "inferred"}
    settings = {
        **inferred,
        **{name: value for name, value in _settings(named) if value is not None},
    }
    return DEFAULTS | {name: _cut(value) for name, value in settings.items()}


def _settings(identity: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All settings of an identity by name, also those in dictionaries."""
    for name, value in identity.items():
        if isinstance(value, dict):
            for inner_name, inner_value in _settings(value):
                yield f"{name}.{inner_name}", inner_value
        else:
            yield name, value


def _cut(value: Any) -> Any:
    """A list of names cut at their commas; any other value as it is."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    pieces = [piece.strip() for piece in ",".join(value).split(",")]
    return [piece for piece in pieces if piece]


def _in_words(value: Any, missing: str) -> str:
    return missing if value is None else repr(value)[:LONGEST_VALUE]
