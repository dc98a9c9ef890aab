"""The command `exlm report`: the paper's tables and figures from all finished runs, beside the
paper's numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from exlm.errors import InputError
from exlm.paper import tables
from exlm.paper.families import Family, families
from exlm.paper.figures import cost_curves, entropy_bars, repeated_figures, sweep_curves
from exlm.paper.page import Figure, Section, Table, write_report
from exlm.paper.runs import Finetuning, find_runs
from exlm.paper.values import MAIN_TABLES, TEXTS, texts

CASE_TEXT = "This is [MASK], and I'm very [MASK] to see this."


def report(runs: list[str], output: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished
    runs.

    Args:
        runs: directories; outputs of pretrain, finetune, baseline and analyze are found in them at
            any depth.
        output: the directory of the report."""
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    if Path(output).is_file():
        raise InputError(f"{output} is a file; give a directory to write the report into")
    found = find_runs(runs)
    groups = families(found)
    left_out = tables.left_out_table(found, groups)
    counts = {
        "Pre-trainings": f"{len(found.pretrainings)}, in groups of equal settings: {len(groups)}",
        "Fine-tunings": sum(map(len, found.finetunings.values())),
        "Baselines": len(found.baselines),
        "Measurements of cost": len(found.costs),
        "Left out": len(left_out.rows),
        "Of these, damaged": len(found.damaged),
    }
    summary = " ".join(f"{words}: {count}." for words, count in counts.items() if count)
    cases = Section(
        *texts("sections", "cases"), f'exlm explore "RUN" "{CASE_TEXT}" --output "RUN/case.svg"'
    )
    for label, run in ((family.label, run) for family in groups for run in family.runs):
        if (drawing := run.path / "case.svg").is_file():
            caption = f"{run.cell.description}, seed {run.seed}, run {run.id} ({label})."
            cases.blocks.append(Figure(f"case-{run.id}", caption, drawing.read_bytes()))
    cost = Section(*texts("sections", "cost"), _analyze("efficiency", groups))
    cost.blocks = [tables.efficiency_table(found)] if found.costs else []
    experiments = [
        _experiment("repeated-mlm", groups, tables.repeated_table, repeated_figures),
        _main_section("main-text", groups, found.baselines),
        _main_section("main-molecules", groups, found.baselines),
        _experiment("ablations", groups, tables.ablation_table),
        _experiment("sweep", groups, tables.sweep_table, sweep_curves),
        _experiment("entropy", groups, tables.entropy_table, entropy_bars),
        cases,
        cost,
    ]
    named = ("worth", "claims", "runs", "not-run")
    worth, claims, every_run, not_run = (Section(*texts("sections", name)) for name in named)
    if (table := tables.worth_table(groups)).rows:
        worth.blocks = [table, *(figure for family in groups for figure in cost_curves(family))]
    worth.blocks += [table for table in (tables.masks_table(groups),) if table.rows]
    claims.blocks = [table for table in (tables.claims_table(groups),) if table.rows]
    every_run.blocks = [
        table for table in (tables.runs_table(groups, found.baselines), left_out) if table.rows
    ]
    shown = [section for section in (worth, claims, *experiments, every_run) if section.blocks]
    not_run.missing = [
        (section.title, section.start) for section in experiments if not section.blocks
    ]
    shown += [not_run] if not_run.missing else []
    write_report(Path(output), TEXTS["title"], [TEXTS["lead"], summary], shown)
    print(f"{summary}\n{Path(output) / 'index.html'}")


def _experiment(
    name: str,
    groups: Sequence[Family],
    table_of: Callable[[Family], Table],
    figures_of: Callable[[Family], list[Figure]] = lambda family: [],
) -> Section:
    """The section of one experiment: each family's table and figures, and commands that make the
    missing runs."""
    section = Section(*texts("sections", name), _analyze(name, groups))
    for family in groups:
        table = table_of(family)
        if table.rows:
            figures = figures_of(family)
            section.blocks += [*figures[:1], table, *figures[1:]]
            if table.lacking:
                section.missing.append(
                    (f"{family.label}: {'; '.join(table.lacking)}", _analyze(name, [family]))
                )
    return section


def _main_section(name: str, groups: Sequence[Family], baselines: Sequence[Finetuning]) -> Section:
    """The section of a main table, for the families fine-tuned on one of its tasks, and for the
    baselines that had the same data (any data, if there is no such family). The command for missing
    tasks is for any run."""
    main = MAIN_TABLES[name]
    tasks = list(dict.fromkeys(score.split()[0] for score in main["columns"].values() if score))
    tune = f"exlm finetune {main['finetune']} --model RUN --task.dataset TASK --output RUN-finetuned/TASK"
    section = Section(*texts("sections", name), f"exlm pretrain {main['pretrain']}\n{tune}")
    tuned = [family for family in groups if not set(tasks).isdisjoint(family.tasks)]
    data = {tuning.data for family in tuned for tuning in family.tunings}
    same = [
        tuning
        for tuning in baselines
        if tuning.task in tasks and (not tuned or tuning.data in data)
    ]
    if tuned or same:
        section.blocks = [tables.main_table(name, tuned, same)]
    for family in tuned:
        runs = [run for cell in tables.main_cells(family) for run in family.cells[cell]]
        if lacking := [task for task in tasks if any(task not in run.tunings for run in runs)]:
            section.missing.append((f"{family.label}: {', '.join(lacking)}", tune))
    return section


def _analyze(experiment: str, groups: Sequence[Family]) -> str:
    """The command of an experiment, with the recipe saved beside the largest family's runs, if
    there is one."""
    own = [run.study / "recipe.yaml" for family in groups[:1] for run in family.runs if run.study]
    return f"exlm analyze {experiment} {next((quote(str(path)) for path in own if path.is_file()), 'RECIPE')}"
