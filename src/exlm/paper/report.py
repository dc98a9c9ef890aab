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

from exlm.errors import InputError
from exlm.paper import missing_runs, tables
from exlm.paper.comparisons import claims_table, worth_table
from exlm.paper.display import MAIN_TABLES, wording
from exlm.paper.figures import cost_curves, entropy_bars, repeated_figures, sweep_curves
from exlm.paper.find_runs import DAMAGED, Runs, find_runs
from exlm.paper.groups import RunGroup, group_runs
from exlm.paper.page import ReportFigure, Section, Table, write_report
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
    ranking = _make_section("mine", [tables.ranking_table(all_runs)])
    lists = _make_section("runs", [tables.runs_table(groups, all_runs), left_out])
    experiments = _experiment_sections(all_runs, groups)
    if any(section.blocks for section in experiments):
        title, lead = wording("page", "experiments")
        commands = [(section.title, section.start) for section in experiments if not section.blocks]
        not_run = _make_section("not-run", [], missing=commands)
        worth = worth_table(groups)
        curves = [figure for group in groups for figure in cost_curves(group)] if worth.rows else []
        verdicts = [
            _make_section("worth", [worth, *curves, tables.masks_table(groups)]),
            _make_section("claims", [claims_table(groups)]),
        ]
        sections = [ranking, *verdicts, *experiments, lists, not_run]
    else:
        title, lead = wording("page", "mine")
        sections = [ranking, lists]
    filled = [section for section in sections if section.blocks or section.missing]
    summary = _summary(all_runs, groups, left_out)
    write_report(Path(output), title, [lead, summary], filled)
    print(f"{summary}\n{Path(output) / 'index.html'}")


def _experiment_sections(runs: Runs, groups: Sequence[RunGroup]) -> list[Section]:
    """The sections of the paper's experiments; a section without any run has no blocks."""
    cost_command = missing_runs.make_analyze_command("efficiency", groups)
    return [
        _experiment_section("repeated-mlm", groups, repeated_figures),
        _main_section("main-text", groups, runs),
        _main_section("main-molecules", groups, runs),
        _experiment_section("ablations", groups),
        _experiment_section("sweep", groups, sweep_curves),
        _experiment_section("entropy", groups, entropy_bars),
        _make_section("cases", _find_cases(groups), missing_runs.EXPLORE),
        _make_section("cost", [tables.cost_table(runs.costs)], cost_command),
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


def _make_section(
    name: str,
    blocks: Sequence[Table | ReportFigure],
    start: str = "",
    missing: Sequence[tuple[str, str]] = (),
) -> Section:
    """A section with its sentences and its blocks, without tables that are empty."""
    filled = [block for block in blocks if isinstance(block, ReportFigure) or block.rows]
    title, about = wording("sections", name)
    return Section(title, about, start, filled, missing)


def _experiment_section(
    name: str,
    groups: Sequence[RunGroup],
    draw: Callable[[RunGroup], list[ReportFigure]] | None = None,
) -> Section:
    """Of each group the table of an experiment, behind the first of its figures if it has some."""
    blocks: list[Table | ReportFigure] = []
    missing: list[tuple[str, str]] = []
    for group in groups:
        table = tables.experiment_table(name, group)
        if table.rows:
            figures = draw(group) if draw else []
            blocks += [*figures[:1], table, *figures[1:]]
            missing += missing_runs.find_missing_models(name, group)
    return _make_section(name, blocks, missing_runs.make_analyze_command(name, groups), missing)


def _main_section(name: str, groups: Sequence[RunGroup], runs: Runs) -> Section:
    """The section of a main table, with the groups that were fine-tuned on one of its tasks, and
    the baselines that were scored on the same data or rows."""
    tasks = MAIN_TABLES[name].tasks
    groups = [group for group in groups if set(tasks) & set(group.tasks)]
    finetune_commands = missing_runs.make_finetune_commands(name, tasks)
    start = f"exlm pretrain {MAIN_TABLES[name].pretrain}\n{finetune_commands}"
    scored = _find_scored(run for group in groups for run in group.finetunings)
    candidates = [run for run in runs.baselines if run.task in tasks]
    baselines = [run for run in candidates if scored & _find_scored([run])]
    blocks = [tables.main_table(name, groups, baselines)] if groups else []
    missing = [entry for group in groups for entry in missing_runs.find_missing_tasks(name, group)]
    return _make_section(name, blocks, start, missing)


def _find_scored(runs: Iterable[TaskTraining]) -> set[tuple[str, str | tuple[str, ...]]]:
    """What runs were scored on: each heading with the checksums of the data, and with the checksum
    of the scored rows. Two runs that share a pair can be compared."""
    scored = set[tuple[str, str | tuple[str, ...]]]()
    for run in runs:
        rows = run.scored_rows
        scored |= {(rows.heading, rows.data_sha256), (rows.heading, rows.rows_sha256)}
    return scored


def _find_cases(groups: Sequence[RunGroup]) -> list[ReportFigure]:
    """The drawings of states and transitions that were made of ExLM."""
    figures = []
    for group in groups:
        for run in group.runs:
            path = run.path / "case.svg"
            if path.is_file():
                model = f"{run.model.description}, seed {run.seed}"
                caption = f"{model}, run {run.id} ({group.label})."
                figures.append(ReportFigure(f"case-{run.id}", caption, svg=path.read_bytes()))
    return figures
