"""The identity of a run: the settings, by name, that another run must share to be the same run. It
has all fields of the run's configurations but those that are marked otherwise."""

import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from exlm.upgrades import DEFAULTS, upgrade_identity

# Metadata of a dataclass's field that does not change what a run computes, or that another setting
# contains.
NOT_IDENTITY = {"identity": "never"}
# Metadata of a field that earlier versions did not have, and whose default is what those versions
# did: an identity has it only where it differs from the default.
IDENTITY_IF_CHANGED = {"identity": "if changed"}

# By a setting that is a checksum, the settings that name the files or the model with this checksum.
# Where the checksums of two runs are equal, other names are no difference.
NAMES_BY_CHECKSUM = {
    "data_sha256": ("task.dataset", "task.valid", "task.test"),
    "model_sha256": ("model",),
}
LONGEST_VALUE = 80  # characters of a value in a message


def identity_of(config: Any, section: str = "") -> dict[str, Any]:
    """What a dataclass adds to an identity: its fields in types of JSON, by name. A field is called
    `section.name`, and a field of a dataclass in it `section.name.inner`."""
    identity: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        rule = field.metadata.get("identity")
        name = f"{section}.{field.name}" if section else field.name
        default = field.default if field.default_factory is MISSING else field.default_factory()
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
    for name, (value_before, value_now) in find_differences(before, now).items():
        return name, _show(value_before, "not recorded"), _show(value_now, "the default")
    return None


def find_differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """The settings that differ between the identities `before` and `now`: by name, their values in
    both, which are None where an identity has none."""
    # Earlier versions also recorded settings that change nothing. They are not compared.
    names = now.keys() | DEFAULTS.keys()
    compared = {name: before[name] for name in before if name in names}
    # They did not record what they inferred. It was the same as now.
    earlier = upgrade_identity({"inferred": now.get("inferred", {})} | compared)
    current = upgrade_identity(now)
    equal_content = _settings_of_equal_content(earlier, current)
    values = {name: [earlier.get(name), current.get(name)] for name in current | earlier}
    return {
        name: [value_before, value_now]
        for name, (value_before, value_now) in values.items()
        if name not in equal_content and value_before != value_now
    }


def describe_changes(changes: list[dict[str, Any]]) -> str:
    """In words, which settings of a run changed where it was resumed, as its `result.json` has them
    in `changed`; "" if none did."""
    phrases = [f"at update {change['step']}: {', '.join(change['settings'])}" for change in changes]
    return f"settings changed {'; '.join(phrases)}" if phrases else ""


def _settings_of_equal_content(earlier: dict[str, Any], current: dict[str, Any]) -> set[str]:
    """The settings that name the same content in two identities, as equal checksums say."""
    settings = set[str]()
    for checksum, names in NAMES_BY_CHECKSUM.items():
        # Questions have a checksum for every file, such as data_sha256.valid.
        entries = [name for name in current if name.split(".")[0] == checksum]
        if entries and all(earlier.get(name) == current[name] for name in entries):
            settings.update(names)
    return settings


def _show(value: Any, missing: str) -> str:
    """A value for a message, in one line; `missing` if there is none."""
    return missing if value is None else repr(value)[:LONGEST_VALUE]
