"""The tables of the report that list what was found on disk: runs, what is in no other table, and
measurements of cost."""

from collections.abc import Iterable, Sequence

from exlm.paper.display import LISTED, METHODS, percent, title
from exlm.paper.estimates import Number
from exlm.paper.finished_runs import Cost, PretrainedRun, ScoredRun, StepCost
from exlm.paper.groups import RunGroup
from exlm.paper.page import Entry, Table, TableRow
from exlm.paper.paper_numbers import PAPER_COST
from exlm.paper.runs import Runs
from exlm.paper.tables import as_table
from exlm.paper.variants import MLM


def efficiency_table(costs: Iterable[Cost]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    rows: list[TableRow] = []
    for cost in costs:
        setting = f"p = {percent(cost.mask_ratio)}, {cost.pairs} pairs, {cost.device}"
        both: TableRow = {"group": f"ours: {cost.path}, {setting}", "clock": cost.clock}
        exlm = f"ExLM, k = {cost.num_states}, expanded layers: {cost.expanded_layers}"
        low, high = cost.quartiles
        rows.append(both | _step_cost(cost.mlm, 1.0) | {"model": METHODS[MLM]})
        row = both | _step_cost(cost.exlm, cost.ratio)
        rows.append(row | {"model": exlm, "quartiles": f"{low:.2f}–{high:.2f}"})
    of_paper: TableRow = {**PAPER_COST}
    return as_table("efficiency", [of_paper, *rows] if rows else [])


def _step_cost(step: StepCost, times: float) -> TableRow:
    return {
        "ms per step": 1000 * step.seconds_per_step,
        "tokens per second": round(step.tokens_per_second),
        "memory, GB": Number(step.peak_memory_bytes / 1e9, digits=2),
        "times MLM": Number(times, digits=2),
    }


def runs_table(groups: Sequence[RunGroup], runs: Runs) -> Table:
    """All pre-trainings, each followed by its compared fine-tunings; then all other runs."""
    rows = [row for group in groups for row in _rows_of_group(group)]
    others = "other fine-tunings: of other models, of random weights, or with rarer settings"
    for tuning in runs.finetunings:
        row = _scored_row(tuning, "fine-tuning", f"{title(tuning.task)} from {tuning.model}")
        rows.append(row | {"group": others if groups else "fine-tunings"})
    for baseline in sorted(runs.baselines, key=lambda run: (run.model, run.task)):
        row = _scored_row(baseline, "baseline", f"{title(baseline.task)}, {baseline.model}")
        rows.append(row | {"group": "baselines"})
    # A vanilla MLM may belong to several groups, but is listed once.
    by_id: dict[Entry, TableRow] = {}
    for row in rows:
        by_id.setdefault(row["run"], row)
    return as_table("runs", list(by_id.values()))


def _rows_of_group(group: RunGroup) -> list[TableRow]:
    rows = []
    for variant, runs in group.variants.items():
        for run in runs:
            rows.append(_pretraining_row(run, variant.label))
            for tuning in sorted(group.finetunings_of(run), key=lambda tuning: tuning.task):
                what = f"{title(tuning.task)} from {run.id}, {tuning.best}"
                rows.append(_scored_row(tuning, "fine-tuning", what))
    return [row | {"group": group.label} for row in rows]


def _pretraining_row(run: PretrainedRun, what: str) -> TableRow:
    values = {entry.quantity: entry.value for entry in run.values}
    listed = [f"{title(name)} {values[name]:.2f}" for name in LISTED if name in values]
    return {
        "run": run.id,
        "kind": "pre-training",
        "what": what,
        "p, %": 100 * run.variant.p,
        "r": run.variant.r,
        "updates": run.steps,
        "seeds": str(run.seed),
        "result": ", ".join(listed),
        "hours": Number(run.hours, digits=2),
        "device": run.device,
        "directory": str(run.path),
    }


def _scored_row(run: ScoredRun, kind: str, what: str) -> TableRow:
    return {
        "run": run.id,
        "kind": kind,
        "what": what,
        "seeds": " ".join(map(str, run.seeds)),
        "result": f"{run.metric} {run.mean:.2f}",
        "device": run.device,
        "directory": str(run.path),
    }


def left_out_table(runs: Runs, groups: Sequence[RunGroup]) -> Table:
    """Files and runs that are in no other table (`mine_table` has all scored runs), and why."""
    used = {run.id for group in groups for run in group.runs}
    rows: list[TableRow] = []
    for path in sorted(runs.damaged, key=lambda path: path.parent):
        rows.append({"file": str(path), "why": "damaged", "what": runs.damaged[path]})
    for path, run_id in runs.repeated.items():
        why = "a repetition with the same settings and seeds"
        rows.append({"file": str(path), "why": why, "what": f"run {run_id}"})
    for run in runs.pretrainings:
        if run.id not in used:
            what = f"{run.variant.description}, seed {run.seed}"
            rows.append({"file": str(run.path), "why": "another run has its seed", "what": what})
    return as_table("left-out", rows)
