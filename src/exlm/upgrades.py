"""What earlier versions wrote, as this version writes it. Each function is called where such a file
is read. What else is read may lack an entry that earlier versions did not write."""

from collections.abc import Iterator
from typing import Any

# What a run did whose identity lacks a setting, or has null in its place: the settings of a model
# with IDENTITY_IF_CHANGED, and no weights to start from (of a fine-tuning `start_from`).
DEFAULTS: dict[str, Any] = {"model.state_share": 0.5, "start": None, "start_from": None}


def upgrade_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Without the setting `start_from: null`, which fine-tunings had."""
    return {
        name: value for name, value in recipe.items() if name != "start_from" or value is not None
    }


def upgrade_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """With the sums and the `seconds` since the last entry of the log, which checkpoints lacked."""
    return {"sums": (), "seconds": [0.0, 0.0], **state}


def upgrade_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as every version would record it, so that two runs are the same if theirs are
    equal: with DEFAULTS, and what was `inferred`, where a setting was left out; without
    dictionaries (the setting `dataset` of a dictionary `task` is `task.dataset`); and with names of
    columns cut at their commas."""
    inferred = identity.get("inferred", {})
    named = {name: value for name, value in identity.items() if name != "inferred"}
    recorded = {name: value for name, value in _settings(named) if value is not None}
    settings = {**inferred, **recorded}
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
    names = [name.strip() for name in ",".join(value).split(",")]
    return [name for name in names if name]
