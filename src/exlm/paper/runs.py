"""Finds finished runs on disk, as data frames."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from exlm.errors import InputError
from exlm.paper.display import Row
from exlm.paper.finished_runs import (
    Json,
    cost_row,
    held_out_numbers,
    pretraining_row,
    scored_row,
)
from exlm.paper.measurements import MEASUREMENTS
from exlm.storage.files import GRID_REPORT, RUN_RESULT
from exlm.storage.manifest import MANIFEST

DAMAGED = "damaged"
# Frames have these columns even if they are empty.
PRETRAINING_COLUMNS = (
    "id pretraining path first_path study weights device seed steps hours parameters corpus size "
    "tokens_per_batch method k p r settings exlm_only result"
)
SCORED_COLUMNS = (
    "id pretraining path device task metric in_percent digits scores mean result interval rows "
    "seeds departures options heading data rows_scored is_baseline model from_scratch best compared"
)


@dataclass(frozen=True)
class Runs:
    """Everything that was found on disk.

    Attributes:
        pretrainings: pre-trained models, one a row.
        finetunings: models fine-tuned on a task with several seeds, one a row.
        baselines: baselines trained on a task, with the same columns.
        numbers: all numbers of these runs, one a row: `id`, that of the run; `pretraining`, the id
            of the pre-training that it began with, if this was found; and the parts of a `Number`.
        costs: measurements of what a step costs.
        left_out: the files that are damaged, and the directories of runs that are left out because
            another run has their settings and seeds; as rows of the table of what is left out."""

    pretrainings: pd.DataFrame
    finetunings: pd.DataFrame
    baselines: pd.DataFrame
    numbers: pd.DataFrame
    costs: list[Row]
    left_out: list[Row]


def records(frame: pd.DataFrame) -> list[Any]:
    """The rows of a frame, with its columns as attributes."""
    return list(frame.itertuples())


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is found twice counts once. InputError
    if a root is not a directory, or if there is no finished run at all."""
    for root in roots:
        if not Path(root).is_dir():
            raise InputError(f"{root} is not a directory; give directories with runs")
    pretrained: list[Row] = []
    scored: list[Row] = []
    costs: list[Row] = []
    left_out: list[Row] = []
    for folder in sorted({Path(folder) for root in roots for folder, _, _ in os.walk(root)}):
        row = _read(folder / RUN_RESULT, pretraining_row, left_out)
        if row:
            measured = _read(folder / MEASUREMENTS, held_out_numbers, left_out)
            row["numbers"] += measured or []
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
            f"there is no finished run in {', '.join(roots)} ({len(left_out)} damaged); "
            "give outputs of exlm pretrain, finetune or analyze"
        )
    pretrained = _without_repeated(pretrained, left_out)
    scored = _without_repeated(scored, left_out)
    for row in scored:
        row["pretraining"] = None if row["is_baseline"] else _pretraining_of(row, pretrained)
    runs = pd.DataFrame(scored, columns=SCORED_COLUMNS.split())
    is_baseline = runs["is_baseline"].astype(bool)
    numbers = []
    for row in [*pretrained, *scored]:
        numbers += [(row["id"], row["pretraining"], *number) for number in row["numbers"]]
    columns = ["id", "pretraining", "quantity", "seed", "value", "error"]
    return Runs(
        pretrainings=pd.DataFrame(pretrained, columns=PRETRAINING_COLUMNS.split()),
        finetunings=runs[~is_baseline],
        baselines=runs[is_baseline],
        numbers=pd.DataFrame(numbers, columns=columns).astype({"error": float}),
        costs=costs,
        left_out=left_out,
    )


def _read(path: Path, parse: Callable[[Path, Json], Any], left_out: list[Row]) -> Any:
    """What `parse` makes of the folder and the content of a JSON file; None if there is no such
    file, or if it cannot be used, which is then `left_out`."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_finite)
        return parse(path.parent, content)
    # A damaged file, or one of another program, may raise anything.
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        left_out.append({"file": str(path), "why": DAMAGED, "what": what})
        return None


def _not_finite(name: str) -> None:
    raise ValueError(f"a number is {name}")


def _weight_hash(_: Path, manifest: Json) -> str | None:
    """The SHA-256 of the weights, as `exlm.storage.models.weight_hash` computes it."""
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    return hashlib.sha256(sums.encode()).hexdigest() if sums else None


def _without_repeated(rows: list[Row], left_out: list[Row]) -> list[Row]:
    """The first row of each id. The others are `left_out`, unless theirs is the directory of a
    first one under another name."""
    by_id: dict[str, Row] = {}
    for row in rows:
        by_id.setdefault(row["id"], row)
    directories = {row["path"].resolve() for row in by_id.values()}
    for row in rows:
        if row["path"].resolve() not in directories:
            why = "a repetition with the same settings and seeds"
            left_out.append({"file": str(row["path"]), "why": why, "what": f"run {row['id']}"})
    return list(by_id.values())


def _pretraining_of(finetuning: Row, pretrained: list[Row]) -> str | None:
    """The id of the pre-training that a fine-tuning started from: that with the same weights or, if
    weights are not known, at the same path."""
    same_path = None
    for row in pretrained:
        if finetuning["model_sha256"] and row["weights"]:
            if finetuning["model_sha256"] == row["weights"]:
                return row["id"]
        elif same_path is None and finetuning["model_path"] in (row["path"], row["first_path"]):
            same_path = row["id"]
    return same_path
