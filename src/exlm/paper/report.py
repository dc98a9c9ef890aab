"""The command `exlm report`: all fine-tunings beside their baselines; and if there are runs of the
paper's experiments, its tables and figures, beside the paper's numbers.

1. `find_runs` (find_runs.py) reads all runs: a `Pretraining` (pretrainings.py) of each pre-trained
   model, and a `TaskTraining` (task_trainings.py) of each fine-tuning or baseline.
2. `group_runs` (groups.py) puts runs that can be compared into groups. In a group, runs with the
   same `Variant` (display.py) differ in their seeds alone; `SeedMeans` has the means over these.
3. tables.py makes tables of these, comparisons.py the tables that decide, figures.py figures, and
   missing_runs.py commands for what is missing.
4. Here they are put into sections, which `write_report` (page.py) writes."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from exlm.errors import InputError
from exlm.paper import missing_runs, tables
from exlm.paper.comparisons import claims_table, worth_table
from exlm.paper.display import MAIN_TABLES, wording
from exlm.paper.figures import cost_curves, entropy_bars, repeated_figures, sweep_curves
from exlm.paper.find_runs import DAMAGED, Runs, find_runs
from exlm.paper.groups import RunGroup, group_runs
from exlm.paper.page import Drawing, Section, Table, write_report
from exlm.paper.task_trainings import TaskTraining


def report(runs: list[str], output: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished
    runs. Evaluations (`exlm evaluate`) are not in it.

    Args:
        runs: directories; outputs of pretrain, finetune, baseline and analyze are found in them at
            any depth.
        output: the directory of the report."""
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    if Path(output).is_file():
        raise InputError(f"{output} is a file; give a directory to write the report into")
    all_runs = find_runs(runs)
    groups = group_runs(all_runs)
    left_out = tables.left_out_table(all_runs, groups)
    mine = _section("mine", [tables.ranking_table(all_runs)])
    lists = _section("runs", [tables.runs_table(groups, all_runs), left_out])
    experiments = _sections(all_runs, groups)
    if any(section.blocks for section in experiments):
        title, lead = wording("page", "experiments")
        not_run = [(section.title, section.start) for section in experiments if not section.blocks]
        others = _section("not-run", [], missing=not_run)
        worth = worth_table(groups)
        curves = [figure for group in groups for figure in cost_curves(group)] if worth.rows else []
        verdicts = [
            _section("worth", [worth, *curves, tables.masks_table(groups)]),
            _section("claims", [claims_table(groups)]),
        ]
        sections = [mine, *verdicts, *experiments, lists, others]
    else:
        title, lead = wording("page", "mine")
        sections = [mine, lists]
    filled = [section for section in sections if section.blocks or section.missing]
    summary = _summary(all_runs, groups, left_out)
    write_report(Path(output), title, [lead, summary], filled)
    print(f"{summary}\n{Path(output) / 'index.html'}")


def _sections(runs: Runs, groups: Sequence[RunGroup]) -> list[Section]:
    """The sections of the paper's experiments; a section without any run has no blocks."""
    return [
        _experiment_section("repeated-mlm", groups, repeated_figures),
        _main_section("main-text", groups, runs),
        _main_section("main-molecules", groups, runs),
        _experiment_section("ablations", groups),
        _experiment_section("sweep", groups, sweep_curves),
        _experiment_section("entropy", groups, entropy_bars),
        _section("cases", _cases(groups), missing_runs.EXPLORE),
        _section(
            "cost", [tables.cost_table(runs.costs)], missing_runs.analyze("efficiency", groups)
        ),
    ]


def _summary(runs: Runs, groups: Sequence[RunGroup], left_out: Table) -> str:
    pretrainings = f"{len(runs.pretrainings)}, in groups of equal settings: {len(groups)}"
    counts = {
        "Pre-trainings": pretrainings if groups else 0,
        "Fine-tunings": len(runs.finetunings),
        "Baselines": len(runs.baselines),
        "Measurements of cost": len(runs.costs),
        "Left out": len(left_out.rows),
        "Of these, damaged": sum(row["why"] == DAMAGED for row in runs.left_out),
    }
    return " ".join(f"{phrase}: {count}." for phrase, count in counts.items() if count)


def _section(
    name: str,
    blocks: Sequence[Table | Drawing],
    start: str = "",
    missing: Sequence[tuple[str, str]] = (),
) -> Section:
    """A section with its sentences and its blocks, without tables that are empty."""
    filled = [block for block in blocks if isinstance(block, Drawing) or block.rows]
    title, about = wording("sections", name)
    return Section(title, about, start, filled, missing)


def _experiment_section(
    name: str,
    groups: Sequence[RunGroup],
    draw: Callable[[RunGroup], list[Drawing]] | None = None,
) -> Section:
    """Of each group the table of an experiment, behind the first of its figures if it has some."""
    blocks: list[Table | Drawing] = []
    missing: list[tuple[str, str]] = []
    for group in groups:
        table = tables.experiment_table(name, group)
        if table.rows:
            figures = draw(group) if draw else []
            blocks += [*figures[:1], table, *figures[1:]]
            missing += missing_runs.for_missing_models(name, group)
    return _section(name, blocks, missing_runs.analyze(name, groups), missing)


def _main_section(name: str, groups: Sequence[RunGroup], runs: Runs) -> Section:
    """A main table: the groups that were fine-tuned on one of its tasks, and the baselines that
    scored the same data or rows."""
    tasks = MAIN_TABLES[name].tasks
    groups = [group for group in groups if set(tasks) & set(group.tasks)]
    start = f"exlm pretrain {MAIN_TABLES[name].pretrain}\n{missing_runs.finetune(name, tasks)}"
    rows_of_groups = _data_and_rows(run for group in groups for run in group.finetunings)
    baselines = []
    for run in runs.baselines:
        if run.task in tasks and rows_of_groups & _data_and_rows([run]):
            baselines.append(run)
    blocks = [tables.main_table(name, groups, baselines)] if groups else []
    missing = [entry for group in groups for entry in missing_runs.for_missing_tasks(name, group)]
    return _section(name, blocks, start, missing)


def _data_and_rows(runs: Iterable[TaskTraining]) -> set[tuple[str, Any]]:
    """What runs scored: their headings with the data, and their headings with the rows scored."""
    scored = set[tuple[str, Any]]()
    for rows in [run.scored_rows for run in runs]:
        scored |= {(rows.heading, rows.data_sha256), (rows.heading, rows.rows_sha256)}
    return scored


def _cases(groups: Sequence[RunGroup]) -> list[Drawing]:
    """The drawings of states and transitions that were made of ExLM."""
    figures = []
    for group in groups:
        for run in group.runs:
            drawing = run.path / "case.svg"
            if drawing.is_file():
                model = f"{run.model.description}, seed {run.seed}"
                caption = f"{model}, run {run.id} ({group.label})."
                figures.append(Drawing(f"case-{run.id}", caption, drawing.read_bytes()))
    return figures
