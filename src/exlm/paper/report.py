"""The command: tables and figures of the paper from whatever runs there are, each beside the paper's numbers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote

from exlm.errors import InputError
from exlm.paper import tables
from exlm.paper.claims import claims_table
from exlm.paper.families import Family, families
from exlm.paper.figures import entropy_bars, repeated_figures, sweep_curves
from exlm.paper.page import Figure, Section, Table, write_report
from exlm.paper.runs import Runs, find_runs
from exlm.paper.values import MAIN_TABLES, MLM, TEXTS, VANISHING, Setting, percent, texts

CASE_TEXT = "This is [MASK], and I'm very [MASK] to see this."
LARGEST_DRAWING = 200_000  # bytes


def report(runs: list[str], out: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished runs.

    Args:
        runs: directories, searched for outputs of pretrain, finetune and analyze at any depth.
        out: directory to write into.
    """
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    if Path(out).is_file():
        raise InputError(f"{out} is a file; give a directory to write the report into")
    found = find_runs(runs)
    groups = families(found)
    counts = {
        "Pre-trainings": f"{len(found.pretrainings)}, in families: {len(groups)}",
        "Fine-tunings": sum(map(len, found.finetunings.values())),
        "Measurements of cost": len(found.costs),
        "Damaged files, left out": len(found.damaged),
        "Fine-tunings of models that are not among the runs": len(found.finetunings[None]),
        "Fine-tunings with other settings than most of their task, left out": sum(len(f.left_out) for f in groups),
    }
    summary = " ".join(f"{words}: {count}." for words, count in counts.items() if count)
    write_report(Path(out), TEXTS["title"], [TEXTS["lead"], summary], report_sections(found, groups))
    print(f"{summary}\n{Path(out) / 'index.html'}")


def report_sections(runs: Runs, groups: Sequence[Family]) -> list[Section]:
    """The claims first, then the experiments with runs; those without at the end, as commands."""
    claims, every_run = (Section(*texts("sections", name)) for name in ("claims", "runs"))
    claims.blocks = [claims_table(groups, runs)]
    every_run.blocks = [tables.runs_table(groups), tables.left_out_table(runs, groups)]
    experiments = [
        _experiment("repeated-mlm", groups, tables.repeated_table, repeated_figures),
        _main_section("main-text", groups),
        _main_section("main-molecules", groups),
        _experiment("ablations", groups, tables.ablation_table, lambda family: []),
        _experiment("sweep", groups, tables.sweep_table, sweep_curves),
        _experiment("entropy", groups, tables.entropy_table, entropy_bars),
        _case_section(groups),
        _cost_section(groups, runs),
    ]
    for section in (claims, every_run):
        section.blocks = [block for block in section.blocks if isinstance(block, Table) and block.rows]
    shown = [section for section in (claims, *experiments, every_run) if section.blocks]
    absent = [(section.title, section.start) for section in experiments if not section.blocks]
    return [*shown, Section(*texts("sections", "not-run"), missing=absent)] if absent else shown


def _experiment(
    name: str,
    groups: Sequence[Family],
    table_of: Callable[[Family], Table],
    figures_of: Callable[[Family], list[Figure]],
) -> Section:
    """What every family has of an experiment of `exlm analyze`, and the commands that make what it lacks."""
    section = Section(*texts("sections", name, vanishing=percent(VANISHING)), _analyze(name, groups))
    for family in groups:
        table = table_of(family)
        if table.rows:
            figures = figures_of(family)
            section.blocks += [*figures[:1], table, *figures[1:]]
            if lacking := [row["lacking"] for row in table.rows if row["lacking"]]:
                section.missing.append((f"{family.label}: {'; '.join(lacking)}", _analyze(name, [family])))
    return section


def _main_section(name: str, groups: Sequence[Family]) -> Section:
    """One table of the families that were fine-tuned on any of its columns, and loops over the tasks that they lack."""
    scores = [score for score in MAIN_TABLES[name].columns.values() if score]
    tasks = list(dict.fromkeys(score.split()[0] for score in scores))
    section = Section(*texts("sections", name), f"exlm pretrain {MAIN_TABLES[name].recipe}")
    if chosen := [family for family in groups if not set(tasks).isdisjoint(family.tasks)]:
        section.blocks.append(tables.main_table(name, chosen))
        section.missing = [c for f in chosen for cell in tables.main_cells(f) for c in _finetune(f, cell, tasks)]
        if not any(family.select(["ExLM"]) for family in chosen):
            section.missing.append(("ExLM", section.start))
    elif exlm := [(f, c) for f in groups for c in f.select(["ExLM"]) if f.molecules == (name == "main-molecules")]:
        section.start = _finetune(*exlm[0], tasks)[0][1]
    return section


def _case_section(groups: Sequence[Family]) -> Section:
    """The drawings beside ExLM's pre-trainings, and the commands for those of text that have none."""
    explore = f'exlm explore {{}} "{CASE_TEXT}" --output {{}}'
    section = Section(*texts("sections", "cases"), explore.format("RUN", "case.svg"))
    for family in groups:
        lacking = []
        for cell, run in family.runs_by_cell:
            path = run.path / "case.svg"
            if run.result["recipe"]["model"]["objective"] != "exlm":
                continue
            if not path.is_file():
                lacking.append(explore.format(quote(str(run.path)), quote(str(path))))
            elif path.stat().st_size <= LARGEST_DRAWING:
                caption = f"{cell.description}, seed {run.seed}, run {run.id} ({family.label})."
                section.blocks.append(Figure(f"case-{run.id}", caption, path.read_bytes()))
        if lacking and not family.molecules:
            section.missing.append((family.label, "\n".join(lacking)))
    return section


def _cost_section(groups: Sequence[Family], runs: Runs) -> Section:
    section = Section(*texts("sections", "cost"), _analyze("efficiency", groups))
    chosen = [family for family in groups if {MLM, "ExLM"} <= family.named().keys()]
    section.blocks += [tables.hours_table(chosen)] if chosen else []
    section.blocks += [tables.efficiency_table(runs)] if runs.costs else []
    if chosen and not runs.costs:
        section.missing.append(("steps measured side by side: seconds, memory and their ratio", section.start))
    return section


def _analyze(experiment: str, groups: Sequence[Family]) -> str:
    """Continues an experiment where the largest family's runs lie, else begins it at that family's size."""
    recipe = "recipes/text/analysis-paper.yaml"
    for family in groups[:1]:
        if family.molecules or not family.of_the_papers_size:
            recipe = f"recipes/{'molecules' if family.molecules else 'text'}/analysis-small.yaml"
        own = [run.study / "recipe.yaml" for run in family.runs if run.study]
        recipe = next((quote(str(path)) for path in own if path.is_file()), recipe)
    return f"exlm analyze {experiment} {recipe}"


def _finetune(family: Family, cell: Setting, tasks: Iterable[str]) -> list[tuple[str, str]]:
    """For each model a loop over the tasks that it lacks (and per recipe, at the paper's size)."""
    found = []
    for run in family.cells[cell]:
        by_recipe: dict[str, list[str]] = {}
        for task in tasks:
            if (run.id, task) not in family.finetunings:
                by_recipe.setdefault(_finetuning_recipe(family, task), []).append(task)
        for recipe, lacking in by_recipe.items():
            model, target = quote(str(run.path)), quote(f"{run.path}-finetuned")
            tune = f"exlm finetune {recipe} --model {model} --task.dataset $task --output {target}/$task"
            command = f"for task in {' '.join(lacking)}; do {tune}; done"
            found.append((f"{cell.label}, seed {run.seed} ({family.label})", command))
    return found


def _finetuning_recipe(family: Family, task: str) -> str:
    """The paper's grids for models of its size, else one setting."""
    if family.molecules or not family.of_the_papers_size:
        return f"recipes/{'molecules' if family.molecules else 'text'}/finetune.yaml"
    if task == "squad2":
        return "recipes/text/squad2.yaml"
    return f"recipes/text/glue-{'large' if task in ('mnli', 'qqp', 'qnli', 'sst-2') else 'small'}.yaml"
