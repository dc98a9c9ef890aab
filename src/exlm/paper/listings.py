"""The tables of the report that list what was found on disk: scores on every data set, costs, runs,
and what is in no other table."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from exlm.paper.display import Row, title
from exlm.paper.groups import RunGroup, spread
from exlm.paper.models import PAPER_COST, model_of
from exlm.paper.page import SPREAD, Table
from exlm.paper.runs import Runs, records
from exlm.paper.tables import as_table
from exlm.tasks.labels.metrics import goodness


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning and baseline, under the heading of what was scored; the best come first."""
    scored = pd.concat([runs.finetunings, runs.baselines])
    checksums = scored["data"].map(lambda data: " ".join(checksum[:8] for checksum in data))
    data = ", data " + checksums + " (not compared with other files or formats)"
    # Where other data or other rows were scored under a heading, it names these, too.
    for ending in (data, ", rows scored: " + scored["rows_scored"]):
        is_ambiguous = ending.groupby(scored["heading"]).transform("nunique") > 1
        scored["heading"] += ending.where(is_ambiguous, "")
    rows: list[Row] = []
    for heading, same_rows in scored.groupby("heading"):
        different = pd.DataFrame(list(same_rows["options"])).nunique() > 1
        for run in sorted(records(same_rows), key=lambda run: -goodness(run.mean, run.metric)):
            options = []
            for name, value in run.options.items():
                if value and different[name]:
                    options.append(f"{name} = {value}")
            row: Row = {
                "group": heading,
                "model": run.model,
                "settings": ", ".join(options),
                "score": run.mean,
                "score" + SPREAD: spread(run.scores),
                "digits": run.digits,
                "interval": run.interval,
                "rows": run.rows,
                "seeds": len(run.scores),
                "runs": run.id,
            }
            rows.append(row)
    columns = ["model", "settings", "score", "interval", "rows", "seeds", "runs"]
    return as_table("mine", columns, rows)


def efficiency_table(costs: Iterable[Row]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    rows = [row for cost in costs for row in cost["rows"]]
    columns = ["model", "ms per step", "tokens per second", "memory, GB", "times MLM"]
    columns += ["quartiles", "clock"]
    return as_table("efficiency", columns, [PAPER_COST, *rows] if rows else [])


def runs_table(groups: Sequence[RunGroup], runs: Runs) -> Table:
    """All pre-trainings, each followed by its compared fine-tunings; then all other runs."""
    rows: list[Row] = []
    for group in groups:
        for run in records(group.runs):
            row = _run_row(run, "pre-training", model_of(run).label, [run.seed]) | {
                "p, %": 100 * run.p,
                "r": run.r,
                "updates": run.steps,
                "hours": run.hours,
            }
            rows.append(row | {"group": group.label})
            tunings = group.finetunings[group.finetunings["pretraining"] == run.id]
            for tuning in records(tunings.sort_values("task")):
                what = f"{title(tuning.task)} from {run.id}, {tuning.best}"
                rows.append(
                    _run_row(tuning, "fine-tuning", what, tuning.seeds) | {"group": group.label}
                )
    others = "other fine-tunings: of other models, of random weights, or with rarer settings"
    for tuning in records(runs.finetunings):
        what = f"{title(tuning.task)} from {tuning.model}"
        row = _run_row(tuning, "fine-tuning", what, tuning.seeds)
        rows.append(row | {"group": others if groups else "fine-tunings"})
    for baseline in records(runs.baselines.sort_values(["model", "task"])):
        what = f"{title(baseline.task)}, {baseline.model}"
        row = _run_row(baseline, "baseline", what, baseline.seeds)
        rows.append(row | {"group": "baselines"})
    # A vanilla MLM may belong to several groups, but is listed once.
    by_id: dict[str, Row] = {}
    for row in rows:
        by_id.setdefault(row["run"], row)
    columns = ["run", "kind", "what", "p, %", "r", "updates", "seeds", "result", "hours", "device"]
    return as_table("runs", [*columns, "directory"], by_id.values())


def _run_row(run: Any, kind: str, what: str, seeds: Iterable[int]) -> Row:
    return {
        "run": run.id,
        "kind": kind,
        "what": what,
        "seeds": " ".join(map(str, seeds)),
        "result": run.result,
        "device": run.device,
        "directory": str(run.path),
    }


def left_out_table(runs: Runs, groups: Sequence[RunGroup]) -> Table:
    """Files and runs that are in no other table (`mine_table` has all scored runs), and why."""
    used = {run_id for group in groups for run_id in group.runs["id"]}
    rows = list(runs.left_out)
    for run in records(runs.pretrainings):
        if run.id not in used:
            what = f"{model_of(run).description}, seed {run.seed}"
            rows.append({"file": str(run.path), "why": "another run has its seed", "what": what})
    return as_table("left-out", ["file", "why", "what"], rows)
