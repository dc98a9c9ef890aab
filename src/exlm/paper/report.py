"""The command `exlm report`: the paper's tables and figures from all finished runs, beside the paper's numbers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote

from exlm.errors import InputError
from exlm.paper import tables
from exlm.paper.families import Family, families
from exlm.paper.figures import entropy_bars, repeated_figures, sweep_curves
from exlm.paper.page import Figure, Section, Table, write_report
from exlm.paper.runs import Finetuning, Pretraining, find_runs
from exlm.paper.values import MAIN_TABLES, TEXTS, texts

CASE_TEXT = "This is [MASK], and I'm very [MASK] to see this."


def report(runs: list[str], output: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished runs.

    Args:
        runs: directories; outputs of pretrain, finetune, baseline and analyze are found in them at any depth.
        output: the directory of the report.
    """
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    if Path(output).is_file():
        raise InputError(f"{output} is a file; give a directory to write the report into")
    found = find_runs(runs)
    groups = families(found)
    left_out = tables.left_out_table(found, groups)
    counts = {
        "Pre-trainings": f"{len(found.pretrainings)}, in families: {len(groups)}",
        "Fine-tunings": sum(map(len, found.finetunings.values())),
        "Baselines": len(found.baselines),
        "Measurements of cost": len(found.costs),
        "Left out": len(left_out.rows),
        "Of these, damaged": len(found.damaged),
    }
    summary = " ".join(f"{words}: {count}." for words, count in counts.items() if count)
    cost = Section(*texts("sections", "cost"), _analyze("efficiency", groups))
    cost.blocks = [tables.efficiency_table(found)] if found.costs else []
    experiments = [
        _experiment("repeated-mlm", groups, tables.repeated_table, repeated_figures),
        _main_section("main-text", groups, found.baselines),
        _main_section("main-molecules", groups, found.baselines),
        _experiment("ablations", groups, tables.ablation_table),
        _experiment("sweep", groups, tables.sweep_table, sweep_curves),
        _experiment("entropy", groups, tables.entropy_table, entropy_bars),
        _case_section(groups),
        cost,
    ]
    claims, every_run, not_run = (Section(*texts("sections", name)) for name in ("claims", "runs", "not-run"))
    claims.blocks = [table for table in (tables.claims_table(groups),) if table.rows]
    every_run.blocks = [table for table in (tables.runs_table(groups, found.baselines), left_out) if table.rows]
    shown = [section for section in (claims, *experiments, every_run) if section.blocks]
    not_run.missing = [(section.title, section.start) for section in experiments if not section.blocks]
    shown += [not_run] if not_run.missing else []
    write_report(Path(output), TEXTS["title"], [TEXTS["lead"], summary], shown)
    print(f"{summary}\n{Path(output) / 'index.html'}")


def _experiment(
    name: str,
    groups: Sequence[Family],
    table_of: Callable[[Family], Table],
    figures_of: Callable[[Family], list[Figure]] = lambda family: [],
) -> Section:
    """The section of one experiment: each family's table and figures, and commands that make the missing runs."""
    section = Section(*texts("sections", name), _analyze(name, groups))
    for family in groups:
        table = table_of(family)
        if table.rows:
            figures = figures_of(family)
            section.blocks += [*figures[:1], table, *figures[1:]]
            if table.lacking:
                section.missing.append((f"{family.label}: {'; '.join(table.lacking)}", _analyze(name, [family])))
    return section


def _main_section(name: str, groups: Sequence[Family], baselines: Sequence[Finetuning]) -> Section:
    """The section of a main table, for the families fine-tuned on one of its tasks, and for the baselines that had the
    same data (any data, if there is no such family). Missing tasks have a command."""
    main = MAIN_TABLES[name]
    tasks = list(dict.fromkeys(score.split()[0] for score in main["columns"].values() if score))
    section = Section(*texts("sections", name), f"exlm pretrain {main['pretrain']}")
    tuned = [family for family in groups if not set(tasks).isdisjoint(family.tasks)]
    chosen = tuned or [family for family in groups if family.domain in name]
    runs = [(family, run) for family in chosen for cell in tables.main_cells(family) for run in family.cells[cell]]
    for task in tasks:
        tune = f'exlm finetune {main["finetune"]} --model "$run" --task.dataset {task} --output "$run-finetuned/{task}"'
        if lacking := [run for family, run in runs if task not in family.finetunings.get(run.id, {})]:
            section.missing.append((task, _for_each(lacking, tune)))
    data = {tuning.data for family in tuned for tuning in family.tunings}
    same = [tuning for tuning in baselines if tuning.task in tasks and (not tuned or tuning.data in data)]
    if tuned or same:
        section.blocks.append(tables.main_table(name, tuned, same))
    elif section.missing:
        section.start = "\n".join(command for _, command in section.missing)
    return section


def _case_section(groups: Sequence[Family]) -> Section:
    """The case drawings of all ExLMs, and commands that draw the missing ones of models of text."""
    command = f'exlm explore "$run" "{CASE_TEXT}" --output "$run/case.svg"'
    section = Section(*texts("sections", "cases"), command.replace('"$run', '"RUN'))
    for family in groups:
        runs = [run for run in family.runs if run.model.has_links]
        drawn = [run for run in runs if (run.path / "case.svg").is_file()]
        for run in drawn:
            caption = f"{run.cell.description}, seed {run.seed}, run {run.id} ({family.label})."
            section.blocks.append(Figure(f"case-{run.id}", caption, (run.path / "case.svg").read_bytes()))
        if len(drawn) < len(runs) and family.domain == "text":
            section.missing.append((family.label, _for_each((run for run in runs if run not in drawn), command)))
    return section


def _analyze(experiment: str, groups: Sequence[Family]) -> str:
    """The command of an experiment, with the recipe saved beside the largest family's runs, else a bundled recipe."""
    recipe = f"recipes/{groups[0].domain if groups else 'text'}/analysis-small.yaml"
    own = [run.study / "recipe.yaml" for family in groups[:1] for run in family.runs if run.study]
    return f"exlm analyze {experiment} {next((quote(str(path)) for path in own if path.is_file()), recipe)}"


def _for_each(runs: Iterable[Pretraining], command: str) -> str:
    return f"for run in {' '.join(dict.fromkeys(quote(str(run.path)) for run in runs))}; do {command}; done"
