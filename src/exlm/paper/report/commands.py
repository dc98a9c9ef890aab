"""The commands that make what a report lacks."""

from collections.abc import Iterable
from shlex import quote

from exlm.paper.report.cells import Family, Score, Setting
from exlm.paper.report.document import Missing
from exlm.paper.report.records import Pretraining


def start(experiment: str, families: list[Family]) -> str:
    """An experiment, continued where the largest family's runs lie, else from its beginning at that family's size."""
    return f"exlm analyze {experiment} " + (_recipe(families[0]) if families else "recipes/text/analysis-paper.yaml")


def analysis(experiment: str, family: Family, lacking: list[str]) -> list[Missing]:
    """One command for all cells that a family lacks."""
    return [Missing(f"{family.label}: {'; '.join(lacking)}", start(experiment, [family]))] if lacking else []


def incomplete(family: Family, cells: Iterable[Setting]) -> list[str]:
    """Cells that lack a task which others of the family have."""
    lacking = {cell: [s.title for s in family.scores if not family.estimate(cell, s)] for cell in cells}
    return [f"{place_of(cell)} ({', '.join(names)})" for cell, names in lacking.items() if names]


def place_of(cell: Setting) -> str:
    repeat = f", r = {cell.r}" if cell.r > 1 else ""
    return f"{cell.label}, p = {100 * cell.p:.4g}%{repeat}"


def finetunings(family: Family, cell: Setting, scores: Iterable[Score]) -> list[Missing]:
    """A loop per model over the tasks that it lacks (and per recipe, at the paper's size)."""
    found = []
    for run in family.cells[cell]:
        by_recipe: dict[str, list[str]] = {}
        for task in dict.fromkeys(score.task for score in scores):
            if (run.id, task) not in family.tunings:
                by_recipe.setdefault(_tuning_recipe(task, family.molecules, run), []).append(task)
        for recipe, tasks in by_recipe.items():
            model, target = quote(str(run.path)), quote(f"{run.path}-finetuned")
            tune = f"exlm finetune {recipe} --model {model} --task.dataset $task --output {target}/$task"
            command = f"for task in {' '.join(tasks)}; do {tune}; done"
            found.append(Missing(f"{cell.label}, seed {run.seed} ({family.label})", command))
    return found


def _tuning_recipe(task: str, molecules: bool, run: Pretraining) -> str:
    """The paper's grids for models of its size, else one setting."""
    if molecules:
        return "recipes/molecules/finetune.yaml"
    if run.recipe["model"]["hidden_size"] < 768:
        return "recipes/text/finetune.yaml"
    if task == "squad2":
        return "recipes/text/squad2.yaml"
    return f"recipes/text/glue-{'large' if task in ('mnli', 'qqp', 'qnli', 'sst-2') else 'small'}.yaml"


def _recipe(family: Family) -> str:
    """The recipe of the study that a family's runs belong to, else that of the experiments at its size."""
    written = (run.study / "recipe.yaml" for run in family.runs if run.study)
    if own := next((path for path in written if path.is_file()), None):
        return quote(str(own))
    if family.molecules:
        return "recipes/molecules/analysis-small.yaml"
    large = family.runs[0].recipe["model"]["hidden_size"] >= 768
    return f"recipes/text/analysis-{'paper' if large else 'small'}.yaml"
