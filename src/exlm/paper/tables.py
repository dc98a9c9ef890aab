"""The tables of the paper's experiments: the paper's tables with our numbers. Each is a list of
rows and a caption; display.yaml has its columns."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean, median

import pandas as pd

from exlm.paper.display import COLUMNS, ENTROPY, HELD_OUT, HOURS, METHODS, percent, texts, title
from exlm.paper.estimates import Number, Results, RowResults
from exlm.paper.finished_runs import Baseline, ScoredRun
from exlm.paper.groups import RunGroup
from exlm.paper.page import PAPER, Table, TableRow
from exlm.paper.paper_numbers import ABLATIONS, MAIN_TABLES, REPEATED, SWEEP, MainTable, PrintedRow
from exlm.paper.variants import EXLM, MLM, PLUS, Variant, describe, rank


def as_table(
    name: str,
    rows: list[TableRow],
    quantities: Sequence[str] = (),
    lacking: Sequence[str] = (),
    **phrases: str | int,
) -> Table:
    """A table with the title, caption and columns that it has in the YAML files. `phrases` fill in
    its title and caption, `quantities` its columns. Where a row lacks a column, the
    cell is empty. ValueError if a row has a key that is no column."""
    columns = list(COLUMNS[name])
    if "QUANTITIES" in columns:
        place = columns.index("QUANTITIES")
        columns[place : place + 1] = quantities
    heading, caption = texts("tables", name, **phrases)
    empty: TableRow = {"group": "", "source": "ours", **dict.fromkeys(columns, "")}
    unknown = {key for row in rows for key in row if key not in empty}
    if unknown:
        raise ValueError(f"the table {name} has no column {', '.join(sorted(unknown))}")
    titled_rows = [{title(key): entry for key, entry in (empty | row).items()} for row in rows]
    return Table(name, heading, caption, list(map(title, columns)), titled_rows, lacking)


def variant_row(
    name: str,
    group: RunGroup,
    variant: Variant,
    columns: Mapping[str, Sequence[str]],
    results: Results,
) -> TableRow:
    """The row of a variant of a group in the table `name`: what the table has of its settings,
    seeds (pre-training × fine-tuning) and runs, and in each of the `columns` the mean of some
    quantities."""
    runs = group.variants.get(variant, [])
    counts = _seed_counts(tuning for run in runs for tuning in group.finetunings_of(run))
    about: TableRow = {
        "model": variant.label,
        "p, %": 100 * variant.p,
        "r": variant.r,
        "pʳ, %": Number(100 * variant.p**variant.r, digits=2),
        "updates": runs[0].steps if runs else None,
        "seeds": f"{len(runs)} × {counts or 0}" if runs else "",
        "runs": " ".join(run.id for run in runs) or None,
    }
    row = {column: about[column] for column in COLUMNS[name] if column in about}
    for column, quantities in columns.items():
        row[column] = results.number(variant, *quantities)
    return row


def _seed_counts(scored_runs: Iterable[ScoredRun]) -> str:
    """The numbers of fine-tuning seeds, such as `3–5`."""
    counts = {len(run.seeds) for run in scored_runs}
    return "–".join(str(count) for count in sorted(counts))


def main_variants(group: RunGroup) -> list[Variant]:
    """The variants of a group that stand in the main tables."""
    variants = group.select(MLM, PLUS, EXLM)
    return [variant for variant in variants if variant.p == group.base_ratio]


def main_table(
    name: str, groups: Sequence[RunGroup], baselines: Sequence[Baseline], values: pd.DataFrame
) -> Table:
    """Other systems, then the paper's own, then ours by group, then baselines (of `values`)."""
    main = MAIN_TABLES[name]
    center = median if main.of_medians else fmean
    rows = _printed_rows(main)
    for group in groups:
        results = Results(group.values, center)
        for variant in main_variants(group):
            row = variant_row(name, group, variant, main.columns, results)
            rows.append(row | {"group": f"ours: {group.label}"})
    for model in dict.fromkeys(run.model for run in baselines):
        runs = [run for run in baselines if run.model == model]
        ids = {run.task: run.id for run in runs}
        # It is trained anew for each task; as one run, it has the mean of all of them.
        as_one_run = values[values["source"].isin(ids.values())].assign(run=model)
        results_of_baseline = RowResults(as_one_run, center)
        row = {
            "group": "ours: baselines on the same data",
            "model": model,
            "seeds": _seed_counts(runs),
            "runs": " ".join(run.id for run in runs),
        }
        for column, quantities in main.columns.items():
            row[column] = results_of_baseline.number(*quantities)
        rows.append(row)
    return as_table(name, rows, list(main.columns))


def _printed_rows(main: MainTable) -> list[TableRow]:
    """What the paper prints: results of other systems, then its own."""
    rows: list[TableRow] = []
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        printed = main.quoted if source == "quoted" else main.paper
        group = f"quoted from the paper: {whose}"
        for model, numbers in printed.items():
            row: TableRow = {"group": group, "source": source, "model": model}
            rows.append(row | dict(zip(main.columns, numbers, strict=True)))
    return rows


def _experiment_table(
    name: str,
    group: RunGroup,
    variants: Iterable[Variant],
    printed: Mapping[Variant, PrintedRow] = {},
) -> Table:
    """The table of an experiment: for each variant our tasks and their mean, quantities on held-out
    data, and what the paper prints."""
    tasks = {task: [task] for task in group.tasks if "QUANTITIES" in COLUMNS[name]}
    averages = {"avg.": group.percent_tasks} if len(tasks) > 1 else {}
    others = {column: [column] for column in COLUMNS[name] if column in (HOURS, *HELD_OUT)}
    columns_of_paper = [column for column in COLUMNS[name] if column.startswith(PAPER)]
    first = next(iter(others))
    rows = []
    lacking = []
    for variant in variants:
        row = variant_row(name, group, variant, tasks | averages | others, group.results)
        row |= zip_longest(columns_of_paper, printed.get(variant, []))
        if name == "ablations":  # k and p stand in the title
            row["model"] = describe(variant.method)
        rows.append(row)
        is_made = variant.method in METHODS  # by `exlm analyze`
        if is_made and not all(row[column] for column in [first, *tasks]):
            lacking.append(variant.description)
    return as_table(
        name,
        rows,
        [*tasks, *averages],
        lacking,
        label=group.label,
        ratio=percent(group.base_ratio),
        states=group.base_states,
    )


def ablation_table(group: RunGroup) -> Table:
    """ExLM with and without its parts, and the MLM. Empty if there is only one method."""
    k, p = group.base_states, group.base_ratio
    variants = {}
    for variant in group.variants:
        if variant in (Variant(variant.method, 1, p), Variant(variant.method, k, p)):
            variants[variant.method] = variant
    if len(variants) < 2:
        return _experiment_table("ablations", group, [])
    printed = {}
    for method, numbers in ABLATIONS.items():
        usual = Variant(method, 1 if method in (MLM, PLUS) else k, p)
        printed[variants.setdefault(method, usual)] = numbers
    in_order = sorted(variants.values(), key=lambda variant: rank(variant.method))
    return _experiment_table("ablations", group, in_order, printed)


def sweep_table(group: RunGroup) -> Table:
    """Rows for each p and k (1: the vanilla MLM). Empty unless two variants are of ExLM."""
    variants = {*group.sweep(), *SWEEP} if len(group.select(EXLM)) > 1 else set()
    return _experiment_table("sweep", group, _by_ratio_and_states(variants), SWEEP)


def entropy_table(group: RunGroup) -> Table:
    """The entropies of ExLM and the vanilla MLM. Empty unless there is the entropy of an ExLM."""
    entropies = group.results.numbers(group.select(EXLM), ENTROPY)
    variants = group.sweep() if entropies else []
    return _experiment_table("entropy", group, _by_ratio_and_states(variants))


def _by_ratio_and_states(variants: Iterable[Variant]) -> list[Variant]:
    return sorted(variants, key=lambda variant: (variant.p, variant.k))


def repeated_table(group: RunGroup) -> Table:
    """The grid of p and r, beside the paper's numbers. Empty if no run repeated its tokens."""
    return _experiment_table("repeated-mlm", group, group.grid(), REPEATED)


def masks_table(groups: Sequence[RunGroup]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none."""
    columns = {column: [column] for column in COLUMNS["masks"] if column in HELD_OUT}
    rows = []
    for group in groups:
        for variant in group.variants:
            row = variant_row("masks", group, variant, columns, group.results)
            if any(row[column] for column in columns):
                rows.append(row | {"group": group.label, "model": variant.description})
    return as_table("masks", rows)
