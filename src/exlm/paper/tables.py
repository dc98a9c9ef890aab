"""The tables of the report: the paper's tables with our numbers, the cost of training, and all
runs. Each is a list of rows and a caption; values.yaml has its columns."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, median

import pandas as pd

from exlm.paper.estimates import Number, Results, RowResults
from exlm.paper.families import Family
from exlm.paper.page import PAPER, Table
from exlm.paper.records import Cost, PretrainedRun, TableRow, TunedRun
from exlm.paper.runs import Runs
from exlm.paper.values import (
    ABLATIONS,
    COLUMNS,
    ENTROPY,
    HELD_OUT,
    HOURS,
    MAIN_TABLES,
    METHODS,
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


def as_table(
    name: str,
    rows: list[TableRow],
    scores: Sequence[str] = (),
    tunings: Iterable[TunedRun] = (),
    lacking: Sequence[str] = (),
    **words: str | int,
) -> Table:
    """A table with the title, caption and columns that it has in the YAML files. `words` fill in
    its title and caption, `scores` its columns. The caption names the data of `tunings` that differ
    from the published ones. Where a row lacks a column, the cell is empty. ValueError if a row has
    a key that is no column."""
    columns = list(COLUMNS[name])
    if "SCORES" in columns:
        place = columns.index("SCORES")
        columns[place : place + 1] = scores
    heading, caption = texts("tables", name, **words)
    departures = {f"{title(tuning.task)}: {x}" for tuning in tunings for x in tuning.departures}
    if departures:
        caption += f" Not the published data: {'; '.join(sorted(departures))}."
    empty = {"group": "", "source": "ours", **dict.fromkeys(columns, "")}
    unknown = {key for row in rows for key in row if key not in empty}
    if unknown:
        raise ValueError(f"the table {name} has no column {', '.join(sorted(unknown))}")
    return Table(name, heading, caption, columns, [empty | row for row in rows], lacking)


def cell_row(
    name: str, family: Family, cell: Cell, scores: Mapping[str, Sequence[str]], results: Results
) -> TableRow:
    """The row of a cell of a family in the table `name`: of its place, seeds (pre-training ×
    fine-tuning) and runs what the table has, and by the title of each column of `scores` the mean
    of some scores."""
    runs = family.cells.get(cell, [])
    counts = _seed_counts(tuning for run in runs for tuning in family.tunings_of(run))
    place = {
        "model": cell.label,
        "p, %": 100 * cell.p,
        "r": cell.r,
        "pʳ, %": Number(100 * cell.p**cell.r, digits=2),
        "updates": runs[0].steps if runs else None,
        "seeds": f"{len(runs)} × {counts or 0}" if runs else "",
        "runs": " ".join(run.id for run in runs) or None,
    }
    columns_of_place = [column for column in COLUMNS[name] if column in place]
    row: TableRow = {column: place[column] for column in columns_of_place}
    return row | {column: results.number(cell, *names) for column, names in scores.items()}


def _seed_counts(tunings: Iterable[TunedRun]) -> str:
    """The numbers of fine-tuning seeds, such as `3–5`."""
    counts = {len(tuning.seeds) for tuning in tunings}
    return "–".join(str(count) for count in sorted(counts))


def main_cells(family: Family) -> list[Cell]:
    return [cell for cell in family.select(MLM, PLUS, "ExLM") if cell.p == family.base_ratio]


def main_table(
    name: str, groups: Sequence[Family], baselines: Sequence[TunedRun], scores: pd.DataFrame
) -> Table:
    """A main table: results of other systems, then the paper's own, then ours by family, then
    baselines, whose numbers are in `scores`."""
    main = MAIN_TABLES[name]
    columns = main["columns"]
    center = median if main["of_medians"] else fmean
    rows: list[TableRow] = []
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        for model, values in main[source].items():
            row = {"group": f"quoted from the paper: {whose}", "source": source, "model": model}
            rows.append(row | dict(zip(columns, values, strict=True)))
    for family in groups:
        results = Results(family.scores, center)
        for cell in main_cells(family):
            row = cell_row(name, family, cell, columns, results)
            rows.append(row | {"group": f"ours: {family.label}"})
    for baseline in dict.fromkeys(tuning.baseline for tuning in baselines):
        tuned = [tuning for tuning in baselines if tuning.baseline == baseline]
        ids = {tuning.task: tuning.id for tuning in tuned}
        its_scores = scores[scores["source"].isin(ids.values())]
        # It is trained anew for each task; as one run, it has the mean of all of them.
        of_baseline = RowResults(its_scores.assign(run=baseline), center)
        row = {
            "group": "ours: baselines on the same data",
            "model": title(str(baseline)),
            "seeds": _seed_counts(tuned),
            "runs": " ".join(tuning.id for tuning in tuned),
        }
        rows.append(row | {name: of_baseline.number(*tasks) for name, tasks in columns.items()})
    tunings = [tuning for family in groups for tuning in family.tunings]
    return as_table(name, rows, columns, [*tunings, *baselines])


def _experiment_table(
    name: str, family: Family, cells: Iterable[Cell], printed: Mapping[Cell, PrintedRow] = {}
) -> Table:
    """The table of an experiment: for each cell our tasks and their mean, scores on held-out data,
    and what the paper prints."""
    tasks = {title(task): [task] for task in family.tasks if "SCORES" in COLUMNS[name]}
    averages = {"avg.": family.percent_tasks} if len(tasks) > 1 else {}
    others = {column: [column] for column in COLUMNS[name] if column in (HOURS, *HELD_OUT)}
    columns_of_paper = [column for column in COLUMNS[name] if column.startswith(PAPER)]
    first = next(iter(others))
    rows = []
    lacking = []
    for cell in cells:
        row = cell_row(name, family, cell, tasks | averages | others, family.results)
        of_paper = dict(zip_longest(columns_of_paper, printed.get(cell, [])))
        # k and p stand in the title of the ablations
        model = {"model": cell.method} if name == "ablations" else {}
        rows.append(row | model | of_paper)
        is_made = cell.method in METHODS  # by `exlm analyze`
        if is_made and not all(row[column] for column in [first, *tasks]):
            lacking.append(cell.description)
    return as_table(
        name,
        rows,
        [*tasks, *averages],
        family.tunings,
        lacking,
        label=family.label,
        ratio=percent(family.base_ratio),
        states=family.base_states,
    )


def ablation_table(family: Family) -> Table:
    """ExLM without one of its parts, and the vanilla MLM, with hours of training. Empty if there is
    only one method."""
    k, p = family.base_states, family.base_ratio
    cells = {}
    for cell in family.cells:
        if cell in (Cell(cell.method, 1, p), Cell(cell.method, k, p)):
            cells[cell.method] = cell
    if len(cells) < 2:
        return _experiment_table("ablations", family, [])
    printed = {}
    for method, numbers in ABLATIONS.items():
        cell = cells.setdefault(method, Cell(method, 1 if method in (MLM, PLUS) else k, p))
        printed[cell] = numbers
    in_order = sorted(cells.values(), key=lambda cell: rank(cell.method))
    return _experiment_table("ablations", family, in_order, printed)


def sweep_table(family: Family) -> Table:
    """Rows for each p and k; k = 1 is the vanilla MLM. The table is empty unless there are two
    cells of ExLM."""
    cells = {*family.sweep(), *SWEEP} if len(family.select("ExLM")) > 1 else set()
    return _experiment_table("sweep", family, _by_ratio_and_states(cells), SWEEP)


def entropy_table(family: Family) -> Table:
    """The entropies of ExLM and the vanilla MLM. Empty unless the entropy of an ExLM was
    measured."""
    measured = family.results.numbers(family.select("ExLM"), ENTROPY)
    cells = family.sweep() if measured else []
    return _experiment_table("entropy", family, _by_ratio_and_states(cells))


def _by_ratio_and_states(cells: Iterable[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: (cell.p, cell.k))


def repeated_table(family: Family) -> Table:
    """The grid of p and r, with the numbers that the paper prints. Empty if no run repeated its
    tokens."""
    return _experiment_table("repeated-mlm", family, family.grid(), REPEATED)


def masks_table(groups: Sequence[Family]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none."""
    columns = {column: [column] for column in COLUMNS["masks"] if column in HELD_OUT}
    rows = []
    for family in groups:
        for cell in family.cells:
            row = cell_row("masks", family, cell, columns, family.results)
            if any(row[column] for column in columns):
                rows.append(row | {"group": family.label, "model": cell.description})
    return as_table("masks", rows)


def efficiency_table(costs: Iterable[Cost]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    rows = [row for cost in costs for row in cost.rows]
    return as_table("efficiency", [VALUES["cost"], *rows] if rows else [])


def runs_table(groups: Sequence[Family], runs: Runs) -> Table:
    """All pre-trainings, each followed by its fine-tunings that the experiments compare; then all
    other fine-tunings and all baselines."""
    # By id, as a vanilla MLM may belong to several families but is listed once.
    rows: dict[str, TableRow] = {}

    def add(run: PretrainedRun | TunedRun, group: str, what: str) -> None:
        rows.setdefault(run.id, run.row() | {"group": group, "what": what})

    for family in groups:
        for cell, members in family.cells.items():
            for run in members:
                add(run, family.label, cell.label)
                for tuning in sorted(family.tunings_of(run), key=lambda tuning: tuning.task):
                    what = f"{title(tuning.task)} from {run.id}, {tuning.best}"
                    add(tuning, family.label, what)
    for tuning in runs.finetunings:
        add(tuning, "other fine-tunings", tuning.name)
    for tuning in sorted(runs.baselines, key=lambda tuning: (str(tuning.baseline), tuning.task)):
        what = f"{title(tuning.task)}, {title(str(tuning.baseline))}"
        add(tuning, "baselines", what)
    return as_table("runs", list(rows.values()))


def left_out_table(runs: Runs, groups: Sequence[Family]) -> Table:
    """Files and runs that were found but are used in no table, with the reason."""
    tunings_used = [tuning for family in groups for tuning in family.tunings]
    settings_used = {(tuning.task, tuning.compared) for tuning in tunings_used}
    ids_used = {run.id for family in groups for run in family.runs}
    ids_used |= {tuning.id for tuning in tunings_used}
    damaged = sorted(runs.damaged, key=lambda path: path.parent)
    left_out = [(path, "damaged", runs.damaged[path]) for path in damaged]
    for path, run_id in runs.repeated.items():
        left_out.append((path, "a repetition with the same settings and seeds", f"run {run_id}"))
    for run in runs.pretrainings:
        if run.id not in ids_used:
            what = f"{run.cell.description}, seed {run.seed}"
            left_out.append((run.path, "another run has its seed", what))
    for tuning in runs.finetunings:
        if tuning.id in ids_used:
            continue
        if not tuning.model_id:
            reason = "its model is not among the runs"
        elif tuning.from_scratch:
            reason = "from scratch"
        elif (tuning.task, tuning.compared) not in settings_used:
            reason = "other settings than most of its task"
        else:
            reason = "a repetition of another run"
        left_out.append((tuning.path, reason, tuning.name))
    rows = [{"file": str(path), "why": reason, "what": what} for path, reason, what in left_out]
    return as_table("left-out", rows)
