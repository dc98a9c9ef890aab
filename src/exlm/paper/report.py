"""The command: tables and figures of the paper from whatever runs there are, each beside the paper's numbers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote

from exlm.errors import InputError
from exlm.paper import tables
from exlm.paper.cells import ENTROPY, METHODS, MLM, Score, Setting
from exlm.paper.claims import claims_table
from exlm.paper.families import Family, families
from exlm.paper.figures import Figure, entropy_bars, repeated_figures, sweep_curves
from exlm.paper.page import Section, Table, write_report
from exlm.paper.runs import Pretraining, Runs, find_runs
from exlm.paper.values import TEXTS, VANISHING, percent, texts

CASE_TEXT = "This is [MASK], and I'm very [MASK] to see this."
LARGEST_DRAWING = 200_000  # bytes
Contents = tuple[list[Table | Figure], list[str]]  # what a family has of an experiment, and the cells that it lacks


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
    found_words = summary(found, groups)
    write_report(Path(out), TEXTS["title"], [TEXTS["lead"], found_words], report_sections(found, groups))
    print(f"{found_words}\n{Path(out) / 'index.html'}")


def summary(runs: Runs, groups: Sequence[Family]) -> str:
    """How much was found, and how much could not be used."""
    counts = {
        "Pre-trainings": f"{len(runs.pretrainings)}, in families: {len(groups)}",
        "Fine-tunings": len(runs.finetunings),
        "Measurements of cost": len(runs.costs),
        "Damaged files, left out": len(runs.damaged),
        "Fine-tunings of models that are not among the runs": len(runs.unlinked),
        "Fine-tunings with other settings than most of their task, left out": sum(len(f.left_out) for f in groups),
    }
    return " ".join(f"{words}: {count}." for words, count in counts.items() if count)


def report_sections(runs: Runs, groups: Sequence[Family]) -> list[Section]:
    """The claims first, then the experiments with runs; those without at the end, as commands."""
    experiments = [
        _experiment("repeated-mlm", groups, _repeated),
        _main_section(groups, tables.TEXT),
        _main_section(groups, tables.MOLECULES),
        _experiment("ablations", groups, _ablations),
        _experiment("sweep", groups, _sweep),
        _experiment("entropy", groups, _entropy),
        _case_section(groups),
        _cost_section(groups, runs),
    ]
    claims, left_out = claims_table(groups, runs), tables.left_out_table(runs, groups)
    sections = [Section(*texts("sections", "claims"), blocks=[claims]), *experiments]
    sections.append(Section(*texts("sections", "runs"), blocks=[tables.runs_table(groups), left_out]))
    for section in sections:
        section.blocks = [block for block in section.blocks if not isinstance(block, Table) or block.values]
    absent = [(section.title, section.start) for section in experiments if not section.blocks]
    not_run = [Section(*texts("sections", "not-run"), missing=absent)] if absent else []
    return [section for section in sections if section.blocks] + not_run


def _experiment(name: str, groups: Sequence[Family], contents: Callable[[Family], Contents]) -> Section:
    """What every family has of an experiment of `exlm analyze`, and the commands that make what it lacks."""
    section = Section(*texts("sections", name, vanishing=percent(VANISHING)), _analyze(name, groups))
    for family in groups:
        blocks, lacking = contents(family)
        section.blocks += blocks
        if blocks and lacking:
            section.missing.append((f"{family.label}: {'; '.join(lacking)}", _analyze(name, [family])))
    return section


def _repeated(family: Family) -> Contents:
    if not family.repeats:
        return [], []
    figures = repeated_figures(family)
    lacking = [f"p = {percent(c.p)}, r = {c.r}" for c in family.full_grid if c not in family.cells]
    blocks: list[Table | Figure] = [figures[0], tables.repeated_table(family), *figures[1:]]
    return blocks, lacking + _lacking_tasks(family, family.grid)


def _ablations(family: Family) -> Contents:
    return _comparison("ablations", family, tables.ablation_rows(family))


def _sweep(family: Family) -> Contents:
    blocks, lacking = _comparison("sweep", family, tables.sweep_rows(family))
    return [*blocks, *(sweep_curves(family) if blocks else [])], lacking


def _comparison(name: str, family: Family, lines: tables.Lines) -> Contents:
    if not lines:
        return [], []
    lacking = [label for label, (cell, _) in lines.items() if not cell]
    lacking += _lacking_tasks(family, (cell for cell, _ in lines.values() if cell))
    return [tables.comparison_table(name, family, lines)], lacking


def _entropy(family: Family) -> Contents:
    cells = [cell for cell in family.compared() if family.estimate(cell, ENTROPY)]
    if not any(cell.method == "ExLM" for cell in cells):
        return [], []
    lacking = [_described(cell) for cell in family.compared() if cell not in cells]
    return [entropy_bars(family, cells), tables.entropy_table(family, cells)], lacking


def _described(cell: Setting) -> str:
    return f"{cell.label}, p = {percent(cell.p)}" + (f", r = {cell.r}" if cell.r > 1 else "")


def _lacking_tasks(family: Family, cells: Iterable[Setting]) -> list[str]:
    """Cells that lack a task which others of the family have."""
    lacking = {cell: [s.title for s in family.scores if not family.estimate(cell, s)] for cell in cells}
    return [f"{_described(cell)} ({', '.join(names)})" for cell, names in lacking.items() if names]


def _main_section(groups: Sequence[Family], layout: tables.Layout) -> Section:
    """One table of the families that were fine-tuned on any of its columns."""
    pretrain = f"exlm pretrain {layout.recipe}"
    models = [(f, cell) for f in groups for cell in f.select(["ExLM"]) if f.molecules == (layout is tables.MOLECULES)]
    start = _finetune(*models[0], layout.scores)[0][1] if models else pretrain
    section = Section(*texts("sections", layout.name), start)
    tasks = {score.task for score in layout.scores}
    chosen = [family for family in groups if tasks & {score.task for score in family.scores}]
    if chosen:
        section.blocks.append(tables.main_table(chosen, layout))
        for family in chosen:
            for cell in tables.main_cells(family):
                section.missing += _finetune(family, cell, layout.scores)
        if not any(family.select(["ExLM"]) for family in chosen):
            section.missing.append(("ExLM", pretrain))
    return section


def _case_section(groups: Sequence[Family]) -> Section:
    """The drawings beside ExLM's pre-trainings, and the commands for those of text that have none."""
    section = Section(*texts("sections", "cases"), _explore("RUN", "case.svg"))
    for family in groups:
        lacking = []
        for cell in family.select(METHODS[2:]):
            for run in (run for run in family.cells[cell] if run.model["objective"] == "exlm"):
                path = run.path / "case.svg"
                if not path.is_file():
                    lacking.append(_explore(quote(str(run.path)), quote(str(path))))
                elif path.stat().st_size <= LARGEST_DRAWING:
                    caption = f"{cell.label}, p = {percent(cell.p)}, seed {run.seed}, run {run.id} ({family.label})."
                    section.blocks.append(Figure(f"case-{run.id}", caption, path.read_bytes()))
        if lacking and not family.molecules:
            section.missing.append((family.label, "\n".join(lacking)))
    return section


def _cost_section(groups: Sequence[Family], runs: Runs) -> Section:
    section = Section(*texts("sections", "cost"), _analyze("efficiency", groups))
    chosen = [family for family in groups if {MLM, "ExLM"} <= set(family.named())]
    section.blocks += [tables.hours_table(chosen)] if chosen else []
    section.blocks += [tables.efficiency_table(runs)] if runs.costs else []
    if chosen and not runs.costs:
        section.missing.append(("steps measured side by side: seconds, memory and their ratio", section.start))
    return section


def _explore(model: str, output: str) -> str:
    return f'exlm explore {model} "{CASE_TEXT}" --output {output}'


def _analyze(experiment: str, groups: Sequence[Family]) -> str:
    """Continues an experiment where the largest family's runs lie, else begins it at that family's size."""
    if not groups:
        return f"exlm analyze {experiment} recipes/text/analysis-paper.yaml"
    first = groups[0]
    recipe = "recipes/text/analysis-" + ("paper" if first.runs[0].model["hidden_size"] >= 768 else "small") + ".yaml"
    recipe = "recipes/molecules/analysis-small.yaml" if first.molecules else recipe
    own = (run.study / "recipe.yaml" for run in first.runs if run.study)
    return f"exlm analyze {experiment} " + next((quote(str(path)) for path in own if path.is_file()), recipe)


def _finetune(family: Family, cell: Setting, scores: Iterable[Score]) -> list[tuple[str, str]]:
    """For each model a loop over the tasks that it lacks (and per recipe, at the paper's size)."""
    found = []
    for run in family.cells[cell]:
        by_recipe: dict[str, list[str]] = {}
        for task in dict.fromkeys(score.task for score in scores):
            if (run.id, task) not in family.finetunings:
                by_recipe.setdefault(_finetuning_recipe(task, family.molecules, run), []).append(task)
        for recipe, tasks in by_recipe.items():
            model, target = quote(str(run.path)), quote(f"{run.path}-finetuned")
            tune = f"exlm finetune {recipe} --model {model} --task.dataset $task --output {target}/$task"
            command = f"for task in {' '.join(tasks)}; do {tune}; done"
            found.append((f"{cell.label}, seed {run.seed} ({family.label})", command))
    return found


def _finetuning_recipe(task: str, molecules: bool, run: Pretraining) -> str:
    """The paper's grids for models of its size, else one setting."""
    if molecules:
        return "recipes/molecules/finetune.yaml"
    if run.model["hidden_size"] < 768:
        return "recipes/text/finetune.yaml"
    if task == "squad2":
        return "recipes/text/squad2.yaml"
    return f"recipes/text/glue-{'large' if task in ('mnli', 'qqp', 'qnli', 'sst-2') else 'small'}.yaml"
