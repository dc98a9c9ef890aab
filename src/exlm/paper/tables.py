"""The tables of the report: the paper's tables with our numbers, the cost of training, and all
runs."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median

import pandas as pd

from exlm.paper.estimates import Number, average, in_cells, pivot
from exlm.paper.families import Family
from exlm.paper.page import PAPER, Row, Table
from exlm.paper.runs import Finetuning, Json, Pretraining, Runs
from exlm.paper.values import (
    ABLATIONS,
    COLUMNS,
    ENTROPY,
    MAIN_TABLES,
    MLM,
    PLUS,
    REPEATED,
    SWEEP,
    VALUES,
    Cell,
    PrintedRow,
    percent,
    rank,
    texts,
    title,
)

# the columns of the paper's numbers
PAPER_TITLES = [*map(title, VALUES["ablation_tasks"]), "avg.", "GPU hours"]


def sources(family: Family, cell: Cell) -> Row:
    """The last two columns of most tables: seeds (pre-training × fine-tuning) and runs."""
    runs = family.cells.get(cell, [])
    if not runs:
        return {"seeds": "", "runs": None}
    counts = _seed_counts(tuning for run in runs for tuning in family.tunings_of(run))
    return {"seeds": f"{len(runs)} × {counts or 0}", "runs": " ".join(run.id for run in runs)}


def _seed_counts(tunings: Iterable[Finetuning]) -> str:
    """The numbers of fine-tuning seeds, such as `3–5`."""
    counts = {len(tuning.result["seeds"]) for tuning in tunings}
    return "–".join(str(count) for count in sorted(counts))


def _departures(tunings: Iterable[Finetuning]) -> str:
    """A sentence that names the data sets of ours that differ from the published ones."""
    departures = set()
    for tuning in tunings:
        for departure in tuning.result["settings"].get("departures") or ():
            departures.add(f"{title(tuning.task)}: {departure}")
    return f" Not the published data: {'; '.join(sorted(departures))}." if departures else ""


def main_cells(family: Family) -> list[Cell]:
    return [cell for cell in family.select(MLM, PLUS, "ExLM") if cell.p == family.base_ratio]


def main_table(
    name: str, groups: Sequence[Family], baselines: Sequence[Finetuning], scores: pd.DataFrame
) -> Table:
    """A main table: results of other systems, then the paper's own, then ours by family, then
    baselines, whose numbers are in `scores`."""
    main = MAIN_TABLES[name]
    center = median if main["of_medians"] else fmean
    rows: list[Row] = []
    for model, values in main["paper"].items():
        whose = "its own models" if model in VALUES["of_the_paper"] else "other systems"
        source = "paper" if model in VALUES["of_the_paper"] else "quoted"
        row = {"group": f"quoted from the paper: {whose}", "source": source, "model": model}
        rows.append(row | dict(zip(main["columns"], values, strict=True)))

    for family in groups:
        numbers = pivot(family.scores, center)
        for cell in main_cells(family):
            row = {"group": f"ours: {family.label}", "model": cell.label}
            row["updates"] = family.updates(cell)
            rows.append(row | _main_scores(name, numbers[cell]) | sources(family, cell))
    for baseline in dict.fromkeys(str(tuning.baseline) for tuning in baselines):
        tuned = [tuning for tuning in baselines if tuning.baseline == baseline]
        # a baseline has no states, masks or repetitions, and is trained anew for each task
        place = Cell(title(baseline), 1, 0.0)
        places = {tuning.task: (tuning.id, place, baseline) for tuning in tuned}
        numbers = pivot(in_cells(scores, places.values()), center)
        row = {"group": "ours: baselines on the same data", "model": place.method, "updates": ""}
        row |= _main_scores(name, numbers[place])
        row |= {"seeds": _seed_counts(tuned), "runs": " ".join(tuning.id for tuning in tuned)}
        rows.append(row)
    heading, caption = texts("tables", name)
    tunings = [tuning for family in groups for tuning in family.tunings.values()]
    return Table(name, heading, caption + _departures([*tunings, *baselines]), rows)


def _main_scores(name: str, numbers: dict[str, Number]) -> Row:
    """Our numbers for the columns of a main table."""
    main = MAIN_TABLES[name]
    return {
        column: average(numbers, [score] if score else main["averaged"])
        for column, score in main["columns"].items()
    }


def _experiment_table(
    name: str,
    family: Family,
    starts: Mapping[Cell, Row],
    printed: Mapping[Cell, PrintedRow] = {},
) -> Table:
    """The table of an experiment: for each cell the first columns, our tasks and their mean, scores
    on held-out data, and what the paper prints."""
    tasks = family.tasks if name != "entropy" else []
    paper_titles = PAPER_TITLES[: max(map(len, printed.values()), default=0)]
    rows: list[Row] = []
    lacking = []
    for cell, start in starts.items():
        row = start | {title(task): family.estimate(cell, task) for task in tasks}
        if len(tasks) > 1:
            row["avg."] = family.estimate(cell, *family.percent_tasks)
        row |= {score: family.estimate(cell, score) for score in COLUMNS[name]}
        for heading, number in zip_longest(paper_titles, printed.get(cell, [])):
            row[PAPER + heading] = number
        rows.append(row | sources(family, cell))
        if not all(family.estimate(cell, score) for score in (COLUMNS[name][0], *tasks)):
            lacking.append(cell.description)
    ratio, states = percent(family.base_ratio), family.base_states
    heading, caption = texts("tables", name, label=family.label, ratio=ratio, states=states)
    return Table(name, heading, caption + _departures(family.tunings.values()), rows, lacking)


def ablation_table(family: Family) -> Table:
    """ExLM without one of its parts, and the vanilla MLM, with hours of training. Empty if there is
    only one method."""
    names = family.cells_by_name()
    methods = {name for name, cell in names.items() if name == cell.method}
    starts = {}
    printed = {}
    for method in sorted(methods | ABLATIONS.keys(), key=rank) if len(methods) > 1 else []:
        k = 1 if method in (MLM, PLUS) else family.base_states
        cell = names.get(method, Cell(method, k, family.base_ratio))
        starts[cell] = {"model": method, "updates": family.updates(cell)}
        printed[cell] = ABLATIONS.get(method, [])
    return _experiment_table("ablations", family, starts, printed)


def sweep_table(family: Family) -> Table:
    """Rows for each p and k; k = 1 is the vanilla MLM. The table is empty unless there are two
    cells of ExLM."""
    cells = {*family.sweep(), *SWEEP} if len(family.select("ExLM")) > 1 else set()
    return _experiment_table("sweep", family, _by_ratio_and_states(cells), SWEEP)


def entropy_table(family: Family) -> Table:
    """The entropies of ExLM and the vanilla MLM. Empty unless the entropy of an ExLM was
    measured."""
    is_measured = family.estimates(family.select("ExLM"), ENTROPY)
    cells = family.sweep() if is_measured else []
    return _experiment_table("entropy", family, _by_ratio_and_states(cells))


def _by_ratio_and_states(cells: Iterable[Cell]) -> dict[Cell, Row]:
    in_order = sorted(cells, key=lambda cell: (cell.p, cell.k))
    return {cell: {"p, %": 100 * cell.p, "model": cell.label} for cell in in_order}


def repeated_table(family: Family) -> Table:
    """The grid of p and r, with the numbers that the paper prints. Empty if no run repeated its
    tokens."""
    starts = {}
    for cell in family.grid():
        share = Number(100 * cell.p**cell.r, digits=2)
        starts[cell] = {"p, %": 100 * cell.p, "r": cell.r, "pʳ, %": share}
    return _experiment_table("repeated-mlm", family, starts, REPEATED)


def masks_table(groups: Sequence[Family]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none."""
    rows: list[Row] = []
    for family in groups:
        for cell in family.cells:
            scores = {score: family.estimate(cell, score) for score in COLUMNS["masks"]}
            if any(scores.values()):
                row: Row = {"group": family.label, "model": cell.description}
                rows.append(row | scores | sources(family, cell))
    return Table("masks", *texts("tables", "masks"), rows)


def efficiency_table(costs: Mapping[Path, Json]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements, by
    directory."""
    quoted: Row = {"group": "quoted from the paper", "source": "paper", "model": "ExLM, k = 4"}
    rows = [quoted | {"times MLM": VALUES["cost_ratio"], "clock": "A100 GPU time"}]
    for path, content in costs.items():
        ratio, pairs = percent(content["mask_ratio"]), content["pairs"]
        layers = content.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
        exlm = f"ExLM, k = {content['num_states']}, expanded layers: {layers}"
        low, high = content["ratio_quartiles"]
        for model, objective, times, quartiles in (
            (MLM, "mlm", 1.0, ""),
            (exlm, "exlm", content["ratio"], f"{low:.2f}–{high:.2f}"),
        ):
            measured = content["models"][objective]
            row = {
                "group": f"ours: {path}, p = {ratio}, {pairs} pairs, {_device(content)}",
                "model": model,
                "ms per step": 1000 * measured["seconds_per_step"],
                "tokens per second": round(measured["tokens_per_second"]),
                "memory, GB": Number(measured["peak_memory_bytes"] / 1e9, digits=2),
                "times MLM": Number(times, digits=2),
                "quartiles": quartiles,
                "clock": content["clock"],
            }
            rows.append(row)
    return Table("efficiency", *texts("tables", "efficiency"), rows if costs else [])


def runs_table(groups: Sequence[Family], runs: Runs) -> Table:
    """All pre-trainings, each followed by its fine-tunings that the experiments compare; then all
    other fine-tunings and all baselines."""
    # By id, as a vanilla MLM may belong to several families but is listed once.
    rows: dict[str, Row] = {}
    for family in groups:
        for cell, run in family.members:
            if run.id in rows:
                continue
            values = {row.score: row.value for row in run.scores}
            results = [f"{name} {values[name]:.2f}" for name in COLUMNS["runs"] if name in values]
            rows[run.id] = _run_row(run, family.label, "pre-training", cell.label) | {
                "p, %": 100 * cell.p,
                "r": cell.r,
                "updates": run.steps,
                "seeds": str(run.seed),
                "result": ", ".join(results),
                "hours": Number(run.hours, digits=2),
            }
            for tuning in sorted(family.tunings_of(run), key=lambda tuning: tuning.task):
                setting = tuning.result["best"] or "one setting"
                what = f"{title(tuning.task)} from {run.id}, {setting}"
                rows[tuning.id] = _tuning_row(tuning, family.label, "fine-tuning", what)
    for tunings in runs.finetunings.values():
        for tuning in tunings:
            if tuning.id not in rows:
                row = _tuning_row(tuning, "other fine-tunings", "fine-tuning", tuning.name)
                rows[tuning.id] = row
    for tuning in sorted(runs.baselines, key=lambda tuning: (str(tuning.baseline), tuning.task)):
        what = f"{title(tuning.task)}, {title(str(tuning.baseline))}"
        rows[tuning.id] = _tuning_row(tuning, "baselines", "baseline", what)
    return Table("runs", *texts("tables", "runs"), list(rows.values()))


def _tuning_row(tuning: Finetuning, group: str, kind: str, what: str) -> Row:
    seeds = " ".join(str(seed) for seed in tuning.result["seeds"])
    result = f"{tuning.metric} {tuning.mean:.2f}"
    return _run_row(tuning, group, kind, what) | {"seeds": seeds, "result": result}


def _run_row(run: Pretraining | Finetuning, group: str, kind: str, what: str) -> Row:
    """A row with what both kinds of runs have; the other columns are empty."""
    columns = ("p, %", "r", "updates", "seeds", "result", "hours")
    row = {"group": group, "run": run.id, "kind": kind, "what": what, **dict.fromkeys(columns, "")}
    return row | {"device": _device(run.result), "directory": str(run.path)}


def _device(result: Json) -> str:
    """The GPU or processor that a result was computed on, if the result names it."""
    machine = result.get("machine") or {}
    device = machine.get("device") or "cpu"
    return str((machine.get("processor") if device == "cpu" else device) or "not recorded")


def left_out_table(runs: Runs, groups: Sequence[Family]) -> Table:
    """Files and runs that were found but are used in no table, with the reason."""
    tunings_used = [tuning for family in groups for tuning in family.tunings.values()]
    settings_used = {(tuning.task, tuning.compared) for tuning in tunings_used}
    ids_used = {run.id for family in groups for run in family.runs}
    ids_used |= {tuning.id for tuning in tunings_used}
    left_out = [(path, "damaged", problem) for path, problem in runs.damaged.items()]
    for run in runs.pretrainings.values():
        if run.id not in ids_used:
            what = f"{run.cell.description}, seed {run.seed}"
            left_out.append((run.path, "another run has its seed", what))
    for model, tunings in runs.finetunings.items():
        for tuning in tunings:
            if tuning.id in ids_used:
                continue
            if not model:
                reason = "its model is not among the runs"
            elif tuning.from_scratch:
                reason = "from scratch"
            elif (tuning.task, tuning.compared) not in settings_used:
                reason = "other settings than most of its task"
            else:
                reason = "a repetition of another run"
            left_out.append((tuning.path, reason, tuning.name))
    rows = [{"file": str(path), "why": reason, "what": what} for path, reason, what in left_out]
    return Table("left-out", *texts("tables", "left-out"), rows)
