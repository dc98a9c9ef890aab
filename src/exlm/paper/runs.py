"""Finds finished runs on disk."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlm.errors import InputError
from exlm.paper.display import Row
from exlm.paper.finished_runs import Json, cost_row, held_out_numbers, pretraining_row, scored_row
from exlm.paper.measurements import MEASUREMENTS
from exlm.storage.files import GRID_REPORT, RUN_RESULT
from exlm.storage.manifest import MANIFEST

DAMAGED = "damaged"


@dataclass(frozen=True)
class Runs:
    """Everything that was found on disk, as rows of finished_runs.py.

    Attributes:
        pretrainings: pre-trained models.
        finetunings: models fine-tuned on a task with several seeds. `pretraining` is the id of the
            pre-training that each began with, or None if this was not found.
        baselines: baselines trained on a task.
        costs: measurements of what a step costs.
        left_out: the files that cannot be used, and the directories of runs that are left out
            because another run has their settings and seeds; as rows of the table of what is left
            out."""

    pretrainings: list[Row]
    finetunings: list[Row]
    baselines: list[Row]
    costs: list[Row]
    left_out: list[Row]


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    folders: dict[Path, Path] = {}  # by what they are without symbolic links
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
        for path, _, _ in os.walk(root):
            folders.setdefault(Path(path).resolve(), Path(path))
    pretrained: list[Row] = []
    scored: list[Row] = []
    costs: list[Row] = []
    left_out: list[Row] = []
    for folder in sorted(folders.values()):
        row = _read(folder / RUN_RESULT, pretraining_row, left_out)
        if row:
            row["numbers"] += _read(folder / MEASUREMENTS, held_out_numbers, left_out) or []
            row["weights"] = _read(folder / MANIFEST, _weight_hash, left_out)
            pretrained.append(row)
        row = _read(folder / GRID_REPORT, scored_row, left_out)
        if row:
            scored.append(row)
        row = _read(folder / "efficiency.json", cost_row, left_out)
        if row:
            costs.append(row)
    if not (pretrained or scored or costs):
        raise InputError(
            f"there is no finished run in {', '.join(roots)} ({len(left_out)} left out); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    pretrained = _without_repeated(pretrained, left_out)
    scored = _without_repeated(scored, left_out)
    for row in scored:
        row["pretraining"] = _pretraining_of(row, pretrained)
    finetunings = [row for row in scored if not row["is_baseline"]]
    baselines = [row for row in scored if row["is_baseline"]]
    return Runs(pretrained, finetunings, baselines, costs, left_out)


def _read(path: Path, parse: Callable[[Path, Json], Any], left_out: list[Row]) -> Any:
    """What `parse` makes of the folder and the content of a JSON file; None if there is no such
    file, or if it cannot be used, which is then `left_out`."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
        return parse(path.parent, content)
    except InputError as error:
        why, what = "a setting is unknown", str(error)
    # A damaged file, or one of another program, may raise anything.
    except Exception as error:
        why, what = DAMAGED, f"{type(error).__name__}: {error}"
    left_out.append({"file": str(path), "why": why, "what": what})
    return None


def _not_finite(name: str) -> None:
    raise ValueError(f"a number is {name}")


def _weight_hash(_: Path, manifest: Json) -> str | None:
    """The SHA-256 of the weights, as `exlm.storage.models.weight_hash` computes it."""
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def _without_repeated(rows: list[Row], left_out: list[Row]) -> list[Row]:
    """The first row of each id. The others are `left_out`."""
    by_id: dict[str, Row] = {}
    for row in rows:
        if by_id.setdefault(row["id"], row) is not row:
            why = "a repetition with the same settings and seeds"
            left_out.append({"file": str(row["path"]), "why": why, "what": f"run {row['id']}"})
    return list(by_id.values())


def _pretraining_of(scored: Row, pretrained: list[Row]) -> str | None:
    """The id of the pre-training that a fine-tuning started from: that with the same weights or, if
    weights are not known, at the same path. None of random weights."""
    if scored["from_scratch"]:
        return None
    checksum = scored["model_sha256"]
    same_weights = [row["id"] for row in pretrained if checksum and row["weights"] == checksum]
    same_path = []
    for row in pretrained:
        are_recorded = checksum and row["weights"]
        if not are_recorded and scored["model_path"] in (row["path"], row["first_path"]):
            same_path.append(row["id"])
    return next(iter(same_weights + same_path), None)
