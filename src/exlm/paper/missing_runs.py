"""Which runs of the paper's experiments are missing, and the commands that make them."""

from collections.abc import Sequence
from shlex import quote

from exlm.paper.display import EXPERIMENT_TABLES, MAIN_TABLES, METHODS, Variant
from exlm.paper.groups import RunGroup
from exlm.paper.tables import EXPERIMENT_MODELS, main_models
from exlm.storage.files import RECIPE

Missing = tuple[str, str]  # in words what is missing, and the command that makes it
EXPLORE = (
    'exlm explore "RUN" "This is [MASK], and I\'m very [MASK] to see this." --output "RUN/case.svg"'
)


def make_analyze_command(experiment: str, groups: Sequence[RunGroup]) -> str:
    """The command of an experiment, with the recipe beside the largest group's runs, if any."""
    runs = groups[0].runs if groups else []
    recipes = [run.study_path / RECIPE for run in runs if run.study_path]
    recipe = next((quote(str(path)) for path in recipes if path.is_file()), "RECIPE")
    return f"exlm analyze {experiment} {recipe}"


def find_missing_models(experiment: str, group: RunGroup) -> list[Missing]:
    """The command for the models of an experiment that lack a task or the experiment's first
    quantity on held-out data; [] if no model does. Methods that the paper lacks are left out, and
    groups with a range of shares of masks, which an experiment cannot have."""
    if "data.mask_ratio" in dict(group.runs[0].settings):
        return []
    needed = EXPERIMENT_TABLES[experiment].quantities[:1]
    if EXPERIMENT_TABLES[experiment].tasks:
        needed = needed + group.tasks
    models = []
    for model in EXPERIMENT_MODELS[experiment](group):
        has_all = all(group.means.mean(model, quantity) for quantity in needed)
        if model.method in METHODS and not has_all:
            models.append(model)
    if not models:
        return []
    names = "; ".join(model.description for model in models)
    options = _make_options(experiment, group, models)
    command = f"{make_analyze_command(experiment, [group])} {options}"
    return [(f"{group.label}: {names}", command)]


def _make_options(experiment: str, group: RunGroup, models: Sequence[Variant]) -> str:
    """The options with which an experiment makes these models, whatever its recipe says."""
    if experiment == "ablations":
        return f"--model.num_states {group.base_states} --data.mask_ratio {group.base_ratio}"
    if experiment == "repeated-mlm":
        return f"--space.cells '{[[model.p, model.r] for model in models]}'"
    states = sorted({model.k for model in models if model.k > 1})
    ratios = sorted({model.p for model in models})
    return f"--space.states '{states}' --space.sweep_mask_ratios '{ratios}'"


def make_finetune_commands(name: str, tasks: Sequence[str]) -> str:
    """A command for each recipe of the main table `name` that has one of the tasks."""
    options = "--model RUN --task.dataset TASK --output RUN-finetuned/TASK"
    lines = []
    for recipe, its_tasks in MAIN_TABLES[name].finetune.items():
        names = ", ".join(task for task in its_tasks if task in tasks)
        if names:
            lines.append(f"exlm finetune {recipe} {options}  # TASK: {names}")
    return "\n".join(lines)


def find_missing_tasks(name: str, group: RunGroup) -> list[Missing]:
    """The commands for the tasks of a main table on which not every run of the table was
    fine-tuned; [] if every run was fine-tuned on every task."""
    finetunings = {(run.pretraining_id, run.task) for run in group.finetunings}
    ids = [run.training_id for model in main_models(group) for run in group.runs_of(model)]
    all_tasks = MAIN_TABLES[name].tasks
    tasks = [task for task in all_tasks if not finetunings >= {(run_id, task) for run_id in ids}]
    if not tasks:
        return []
    return [(f"{group.label}: {', '.join(tasks)}", make_finetune_commands(name, tasks))]
