"""The tables of the report that list what was found on disk: scores on every data set, costs, runs,
and what is in no other table."""

from collections.abc import Iterable, Sequence

import pandas as pd

from exlm.paper.display import Row, title
from exlm.paper.groups import RunGroup, spread
from exlm.paper.models import PAPER_COST
from exlm.paper.page import SPREAD, Table
from exlm.paper.runs import Runs
from exlm.paper.tables import as_table
from exlm.tasks.labels.metrics import goodness


def mine_table(runs: Runs) -> Table:
    """Every fine-tuning and baseline, under the heading of what was scored; the best come first."""
    rows: list[Row] = []
    for heading, same_rows in _by_heading([*runs.finetunings, *runs.baselines]):
        different = pd.DataFrame([run["options"] for run in same_rows]).nunique() > 1
        for run in sorted(same_rows, key=lambda run: -goodness(run["mean"], run["metric"])):
            options = []
            for name, value in run["options"].items():
                if value and different[name]:
                    options.append(f"{name} = {value}")
            row = {name: run[name] for name in ("model", "digits", "interval", "rows")}
            row |= {
                "group": heading,
                "settings": ", ".join(options),
                "score": run["mean"],
                "score" + SPREAD: spread(run["scores"]),
                "seeds": len(run["scores"]),
                "runs": run["id"],
            }
            rows.append(row)
    columns = ["model", "settings", "score", "interval", "rows", "seeds", "runs"]
    return as_table("mine", columns, rows)


def _by_heading(scored: list[Row]) -> list[tuple[str, list[Row]]]:
    """The runs that scored the same rows, by a heading that says what these are."""
    if not scored:
        return []
    runs = pd.DataFrame(scored)
    data = runs["data"].map(lambda data: " ".join(checksum[:8] for checksum in data))
    # Files with other rows elsewhere are compared, too, if the same rows were scored.
    data = data.groupby([runs["heading"], runs["rows_sha256"]]).transform("min")
    data = ", data " + data + " (not compared with other files or formats)"
    # Where other data or other rows were scored under a heading, it names these, too.
    for ending in (data, ", rows scored: " + runs["rows_scored"]):
        is_ambiguous = ending.groupby(runs["heading"]).transform("nunique") > 1
        runs["heading"] += ending.where(is_ambiguous, "")
    by_heading = sorted(runs.groupby("heading").indices.items())
    return [(str(heading), [scored[i] for i in places]) for heading, places in by_heading]


def cost_table(costs: Iterable[Row]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    rows = [row for cost in costs for row in cost["rows"]]
    columns = ["model", "ms per step", "tokens per second", "memory, GB", "times MLM"]
    columns += ["quartiles", "clock"]
    return as_table("cost", columns, [PAPER_COST, *rows] if rows else [])


def runs_table(groups: Sequence[RunGroup], runs: Runs) -> Table:
    """All pre-trainings, each followed by its compared fine-tunings; then all other runs."""
    rows: list[Row] = []
    for group in groups:
        for run in group.runs:
            model = run["model"]
            row = _run_row(group.label, "pre-training", model.label, run)
            row |= {"p, %": 100 * model.p, "r": model.r, "updates": run["steps"]}
            rows.append(row | {"hours": run["hours"]})
            tunings = [other for other in group.finetunings if other["pretraining"] == run["id"]]
            for tuning in sorted(tunings, key=lambda tuning: tuning["task"]):
                what = f"{title(tuning['task'])} from {run['id']}, {tuning['best']}"
                rows.append(_run_row(group.label, "fine-tuning", what, tuning))
    listed = {row["run"] for row in rows}
    for tuning in sorted(runs.finetunings, key=lambda tuning: tuning["pretraining"] not in listed):
        heading = "other fine-tunings: of other models or of random weights"
        source = tuning["model"]
        if tuning["pretraining"] in listed:
            heading = "other fine-tunings of these models: other labels or rows, or rarer settings"
            source = tuning["pretraining"]
        what = f"{title(tuning['task'])} from {source}"
        rows.append(_run_row(heading if groups else "fine-tunings", "fine-tuning", what, tuning))
    for baseline in sorted(runs.baselines, key=lambda run: (run["model"], run["task"])):
        what = f"{title(baseline['task'])}, {baseline['model']}"
        rows.append(_run_row("baselines", "baseline", what, baseline))
    # A vanilla MLM may belong to several groups, but is listed once.
    by_id: dict[str, Row] = {}
    for row in rows:
        by_id.setdefault(row["run"], row)
    columns = ["run", "kind", "what", "p, %", "r", "updates", "seeds", "result", "hours", "device"]
    return as_table("runs", [*columns, "directory"], by_id.values())


def _run_row(group: str, kind: str, what: str, run: Row) -> Row:
    return {
        "group": group,
        "run": run["id"],
        "kind": kind,
        "what": what,
        "seeds": " ".join(map(str, run["seeds"])),
        "result": run["result"],
        "device": run["device"],
        "directory": str(run["path"]),
    }


def left_out_table(runs: Runs, groups: Sequence[RunGroup]) -> Table:
    """Files and runs that are in no other table (`mine_table` has all scored runs), and why."""
    used = {run["id"] for group in groups for run in group.runs}
    rows = list(runs.left_out)
    for run in runs.pretrainings:
        if run["id"] not in used:
            what = f"{run['model'].description}, seed {run['seed']}"
            rows.append({"file": str(run["path"]), "why": "another run has its seed", "what": what})
    return as_table("left-out", ["file", "why", "what"], rows)
