"""What earlier versions wrote, as this version writes it.

Whoever reads such a file calls its function here, and knows the form of today alone from there on.

| file                            | what version 0.1 wrote               | function                |
| ------------------------------- | ------------------------------------ | ----------------------- |
| `recipe.yaml` of a fine-tuning  | `start_from: null`                   | `upgrade_recipe`        |
| `state.json` of a checkpoint    | no `seconds`, `infeasible_in_a_row`  | `upgrade_checkpoint`    |
| identities, in several files    | names of columns cut at their commas | `upgrade_identity`      |
| `manifest.json` of a corpus     | `check_molecules`, not `molecules`   | `upgrade_corpus`        |
| `results.json` of a fine-tuning | no checksums of files and rows       | `upgrade_grid_results`  |
| `train.smi` beside a model      | control characters inside of a line  | `upgrade_training_text` |

Two names of then are read beside those of now: `loss` in the log of a pre-training, which
fine-tunings still write (exlm/paper/figures.py), and `task_states` of a model
(exlm/model/modeling_exlm.py)."""

from collections.abc import Iterator
from typing import Any

# The values of the settings that an identity may lack, or have as null: settings of a model with
# IDENTITY_IF_CHANGED, and the weights that a run started from (of a fine-tuning `start_from`).
DEFAULTS: dict[str, Any] = {"model.state_share": 0.5, "start": None, "start_from": None}


def upgrade_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Takes out the setting `start_from: null`, which fine-tunings had."""
    return {
        name: value for name, value in recipe.items() if name != "start_from" or value is not None
    }


def upgrade_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Adds the `seconds` since the last entry of the log, and how many of the last updates had
    infeasible sequences (0: not recorded)."""
    return {"seconds": [0.0, 0.0], "infeasible_in_a_row": 0, **state}


def upgrade_corpus(manifest: dict[str, Any]) -> dict[str, Any]:
    """Adds the options `molecules` (None: not recorded) and `standardize`."""
    options = manifest.get("options", {})
    added = {"molecules": options.get("check_molecules"), "standardize": "none"}
    return {**manifest, "options": {**added, **options}}


def upgrade_grid_results(results: dict[str, Any]) -> dict[str, Any]:
    """Adds the entries about seeds that the report reads, as empty ones, where they were not
    recorded or the task type has none."""
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
    """A line of `train.smi` with spaces in place of control characters, such as \\v. Version 0.1
    kept them in texts that RDKit cannot parse."""
    return " ".join(text.split())


def upgrade_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as every version would record it: two runs are the same if their upgraded
    identities are equal. It has no dictionaries (`dataset` in `task` becomes `task.dataset`). A
    setting that is absent or null has the value that was `inferred`, or else its default in
    DEFAULTS. Names of columns are cut at their commas."""
    inferred = identity.get("inferred", {})
    named = {name: value for name, value in identity.items() if name != "inferred"}
    recorded = {name: value for name, value in _flatten(named) if value is not None}
    settings = {**inferred, **recorded}
    return DEFAULTS | {name: _cut_at_commas(value) for name, value in settings.items()}


def _flatten(identity: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All settings of an identity by name, also the settings in dictionaries."""
    for name, value in identity.items():
        if isinstance(value, dict):
            for inner_name, inner_value in _flatten(value):
                yield f"{name}.{inner_name}", inner_value
        else:
            yield name, value


def _cut_at_commas(value: Any) -> Any:
    """A list of names cut at their commas; any other value as it is."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    names = [name.strip() for name in ",".join(value).split(",")]
    return [name for name in names if name]
