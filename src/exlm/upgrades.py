"""What earlier versions wrote, as this version writes it.

Whoever reads such a file calls its function here, and knows the form of today alone from there on.

| file                            | what version 0.1 wrote               | function                |
| ------------------------------- | ------------------------------------ | ----------------------- |
| `recipe.yaml` of a fine-tuning  | `start_from: null`                   | `upgrade_recipe`        |
| `state.json` of a checkpoint    | neither of what this one adds        | `upgrade_checkpoint`    |
| identities, in several files    | names of columns cut at their commas | `upgrade_identity`      |
| `manifest.json` of a corpus     | `check_molecules`, not `molecules`   | `upgrade_corpus`        |
| `results.json` of a fine-tuning | no checksums of files and rows       | `upgrade_grid_results`  |
| `train.smi` beside a model      | control characters inside of a line  | `upgrade_training_text` |

Two names of then are read beside those of now: `loss` in the log of a pre-training, which
fine-tunings still write (exlm/paper/figures.py), and `task_states` of a model
(exlm/model/modeling_exlm.py)."""

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
    """With the `seconds` since the last entry of the log, and how many of the last updates had
    infeasible sequences (0: not known)."""
    return {"seconds": [0.0, 0.0], "infeasible_in_a_row": 0, **state}


def upgrade_corpus(manifest: dict[str, Any]) -> dict[str, Any]:
    """With the options `molecules` (None: not known) and `standardize`."""
    options = manifest.get("options", {})
    added = {"molecules": options.get("check_molecules"), "standardize": "none"}
    return {**manifest, "options": {**added, **options}}


def upgrade_grid_results(results: dict[str, Any]) -> dict[str, Any]:
    """With all entries about seeds that the report reads. They are empty where they were not
    recorded, and where a task type has no such thing."""
    empty_entries = {
        "label_columns": results["settings"]["task"].get("label_columns"),
        "split": {},
        "split_sha256": None,
        "file_sha256": {},
        "rows_sha256": {},
        "counts": {},
        "in_train": {},
        "in_earlier_training": {},
    }
    seed_results = [empty_entries | result for result in results["runs"]]
    return {"counts": {}, "interval": {}, **results, "runs": seed_results}


def upgrade_training_text(text: str) -> str:
    """A line of `train.smi` as it is written now. What RDKit cannot parse had been written with
    whatever stood in it, such as \\v."""
    return " ".join(text.split())


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
