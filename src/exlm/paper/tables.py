"""The tables of the report: the paper's tables with our numbers, and lists of what was found on
disk. Each is a list of rows and a caption."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, repeat
from statistics import fmean, median

import pandas as pd

from exlm.paper.cost import StepCost
from exlm.paper.display import (
    EXPERIMENT_TABLES,
    HELD_OUT,
    MAIN_TABLES,
    MLMS,
    PAPER_ABLATIONS,
    PAPER_COST,
    PAPER_SCORES,
    PAPER_SWEEP,
    MainTable,
    Row,
    Variant,
    percent,
    title,
    wording,
)
from exlm.paper.find_runs import Runs
from exlm.paper.groups import RunGroup, SeedMeans, spread
from exlm.paper.page import SPREAD_ENDING, Table
from exlm.paper.pretrainings import Pretraining
from exlm.paper.task_trainings import TaskTraining


def make_table(
    name: str,
    rows: Sequence[Row],
    columns: Sequence[str] = (),
    trainings: Iterable[TaskTraining] = (),
    **phrases: str | int,
) -> Table:
    """A table with its title and caption, in which `phrases` are filled in. The caption also says
    how the data of `trainings` differ from the published data. Without `columns`, the first row has
    all of them. Where a row lacks a column, the cell is empty."""
    heading, caption = wording("tables", name, **phrases)
    departures = {f"{title(run.task)}: {text}" for run in trainings for text in run.departures}
    if departures:
        caption += f" Not the published data: {'; '.join(sorted(departures))}."
    if rows and not columns:
        names = [column for column in rows[0] if not column.endswith(SPREAD_ENDING)]
        columns = [column for column in names if column not in ("group", "source", "digits")]
    empty = {"group": "", "source": "ours", **dict.fromkeys(columns, "")}
    return Table(name, heading, caption, columns, [empty | row for row in rows])


def model_row(
    group: RunGroup, model: Variant, columns: Mapping[str, Sequence[str]], means: SeedMeans
) -> Row:
    """The row of a model of a group: its settings, in each of the `columns` the mean of some
    quantities, and the seeds and runs that have at least one of these numbers. Columns with fewer
    runs are named behind the seeds."""
    runs = group.runs_of(model)
    ids_by_column = {
        column: set(means.run_by_run(model, *quantities).index)
        for column, quantities in columns.items()
    }
    ids = set[str]().union(*ids_by_column.values())
    seeds = [describe_seeds(group, ids, chain.from_iterable(columns.values()))] if ids else []
    for column, ids_of_column in ids_by_column.items():
        if ids_of_column and ids_of_column != ids:
            seeds.append(f"{column}: {describe_seeds(group, ids_of_column, columns[column])}")
    return {
        "model": model.label,
        "p, %": 100 * model.p,
        "r": model.r,
        "pʳ, %": 100 * model.p**model.r,
        "updates": runs[0].steps if runs else None,
        **mean_entries(model, columns, means),
        "seeds": "; ".join(seeds),
        "runs": " ".join(run.id for run in runs if run.id in ids) or None,
    }


def mean_entries(model: Variant, columns: Mapping[str, Sequence[str]], means: SeedMeans) -> Row:
    """In each of the `columns`, the mean of some quantities of a model, with its spread."""
    row: Row = {}
    for column, quantities in columns.items():
        row[column], row[column + SPREAD_ENDING] = means.mean(model, *quantities) or (None, None)
    return row


def describe_seeds(group: RunGroup, ids: Collection[str], quantities: Iterable[str]) -> str:
    """The seeds behind some quantities of these runs, of pre-training × of fine-tuning."""
    names = set(quantities)
    training_ids = {run.training_id for run in group.runs if run.id in ids}
    finetunings = [run for run in group.finetunings if run.pretraining_id in training_ids]
    return f"{len(ids)} × {_describe_seed_counts(finetunings, names) or 0}"


def _describe_seed_counts(trainings: Iterable[TaskTraining], names: Collection[str]) -> str:
    """The numbers of fine-tuning seeds that have the quantities `names`, such as `3–5`."""
    all_numbers = [run.scores.numbers for run in trainings]
    counts = {len(numbers[name]) for numbers in all_numbers for name in names & numbers.keys()}
    return "–".join(map(str, sorted(counts)))


def main_models(group: RunGroup) -> list[Variant]:
    """The models of a group that stand in the main tables."""
    models = group.select("mlm", "mlm-plus-plus", "exlm")
    return [model for model in models if model.p == group.base_ratio]


def main_table(name: str, groups: Sequence[RunGroup], baselines: Sequence[TaskTraining]) -> Table:
    """Other systems, then the paper's own, then ours by group, then baselines."""
    main = MAIN_TABLES[name]
    center = median if main.of_medians else fmean
    rows: list[Row] = []
    other_systems = {"group": "quoted from the paper: other systems", "source": "quoted"}
    own_models = {"group": "quoted from the paper: its own models", "source": "paper"}
    for origin, printed_rows in ((other_systems, main.quoted), (own_models, main.paper)):
        for model_name, printed in printed_rows.items():
            numbers = dict(zip(main.columns, printed, strict=True))
            rows.append({**origin, "model": model_name, **numbers})
    for group in groups:
        means = SeedMeans(group.numbers, center)
        for model in main_models(group):
            row = model_row(group, model, main.columns, means)
            rows.append(row | {"group": f"ours: {group.label}"})
    for learner in dict.fromkeys(run.learner for run in baselines):
        runs_by_task = {run.task: run for run in baselines if run.learner == learner}
        rows.append(_baseline_row(main, learner, list(runs_by_task.values()), center))
    columns = ["model", "updates", *main.columns, "seeds", "runs"]
    trainings = [run for group in groups for run in group.finetunings]
    return make_table(name, rows, columns, [*trainings, *baselines])


def _baseline_row(
    main: MainTable, learner: str, runs: Sequence[TaskTraining], center: Callable[..., float]
) -> Row:
    """The row of a baseline, which was trained anew for each task. All tasks together are taken for
    one run of a model, so that there is a mean over tasks."""
    model = Variant(learner, 1, 0.0)
    numbers = dict(chain.from_iterable(run.scores.numbers.items() for run in runs))
    means = SeedMeans({model: {learner: numbers}}, center)
    return {
        "group": "ours: baselines on the same data",
        "model": learner,
        **mean_entries(model, main.columns, means),
        "seeds": _describe_seed_counts(runs, numbers.keys()),
        "runs": " ".join(run.id for run in runs),
    }


def experiment_table(name: str, group: RunGroup) -> Table:
    """The table of an experiment: for each model our tasks and their mean, quantities on held-out
    data, and what the paper prints. Empty if the group has no runs of the experiment."""
    experiment = EXPERIMENT_TABLES[name]
    tasks = group.tasks if experiment.tasks else []
    means = {title(task): [task] for task in tasks}
    if len(tasks) > 1:
        means["avg."] = group.percent_tasks
    means |= {title(quantity): [quantity] for quantity in experiment.quantities}
    rows = []
    for model in EXPERIMENT_MODELS[name](group):
        row = model_row(group, model, means, group.means)
        printed = PAPER_SCORES.get(model, [])
        if name == "ablations":
            row["model"] = model.title  # k and p stand in the title of the table
            printed = PAPER_ABLATIONS.get(model.method, [])
        row |= zip(experiment.paper, chain(printed, repeat(None)), strict=False)
        rows.append(row)
    return make_table(
        name,
        rows,
        [*experiment.settings, *means, *experiment.paper, "seeds", "runs"],
        group.finetunings,
        label=group.label,
        ratio=percent(group.base_ratio),
        states=group.base_states,
    )


def _ablation_models(group: RunGroup) -> list[Variant]:
    """ExLM with and without its parts, and the MLM; none if there is only one method."""
    k, p = group.base_states, group.base_ratio
    ours = {model for model in group.models if model.p == p and model.r == 1 and model.k in (1, k)}
    if len(ours) < 2:
        return []
    papers = {Variant(method, 1 if method in MLMS else k, p) for method in PAPER_ABLATIONS}
    return sorted(ours | papers, key=lambda model: model.place)


def _sweep_models(group: RunGroup) -> list[Variant]:
    """Each p and k (1: the vanilla MLM); none unless two models are of ExLM."""
    return _in_order({*group.sweep(), *PAPER_SWEEP}) if len(group.select("exlm")) > 1 else []


def _entropy_models(group: RunGroup) -> list[Variant]:
    """ExLM and the vanilla MLM; none unless there is the entropy of an ExLM."""
    entropies = group.means.by_model(group.select("exlm"), "entropy/mean")
    return _in_order(group.sweep()) if entropies else []


def _in_order(models: Iterable[Variant]) -> list[Variant]:
    return sorted(models, key=lambda model: (model.p, model.k, model.place))


# By experiment, the models that stand in its table
EXPERIMENT_MODELS: dict[str, Callable[[RunGroup], list[Variant]]] = {
    "repeated-mlm": RunGroup.repeated_mlms,
    "ablations": _ablation_models,
    "sweep": _sweep_models,
    "entropy": _entropy_models,
}


def masks_table(groups: Sequence[RunGroup]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none. Runs of a group stand apart if other sequences were scored."""
    quantities = [name for name in HELD_OUT if name.startswith("evaluation/nll_by_masks")]
    columns = {title(quantity): [quantity] for quantity in quantities}
    rows = []
    for group in chain.from_iterable(group.split_by_sequences() for group in groups):
        for model in group.models:
            row = model_row(group, model, columns, group.means)
            if any(row[column] is not None for column in columns):
                rows.append(row | {"group": group.label, "model": model.description})
    return make_table("masks", rows, ["model", *columns, "seeds", "runs"])


def ranking_table(runs: Runs) -> Table:
    """Every fine-tuning and baseline, under the heading of what was scored; the best come first."""
    rows: list[Row] = []
    for heading, trainings in _group_by_rows([*runs.finetunings, *runs.baselines]):
        differs = pd.DataFrame([run.options for run in trainings]).nunique() > 1
        for run in sorted(trainings, key=lambda run: -run.scores.goodness):
            options = [name for name, value in run.options.items() if value and differs[name]]
            row = {
                "group": heading,
                "digits": run.scores.digits,
                "model": run.learner,
                "settings": ", ".join(f"{name} = {run.options[name]}" for name in options),
                "score": run.scores.mean,
                "score" + SPREAD_ENDING: spread(run.scores.values),
                "interval": run.scores.interval,
                "rows": run.scored_rows.count_with_seen,
                "seeds": len(run.scores.values),
                "runs": run.id,
            }
            rows.append(row)
    return make_table("mine", rows)


def _group_by_rows(trainings: Sequence[TaskTraining]) -> list[tuple[str, list[TaskTraining]]]:
    """The runs that were scored on the same rows, each list behind a heading for these rows. The
    heading names data and number of rows only where it would stand for several without them."""
    if not trainings:
        return []
    scored = pd.DataFrame([vars(run.scored_rows) for run in trainings])
    headings = scored["heading"]
    short_sums = scored["data_sha256"].map(lambda sums: " ".join(checksum[:8] for checksum in sums))
    # Runs with the same scored rows are compared, also if their files differ in other rows: all of
    # them get the same checksum.
    shared_sums = short_sums.groupby([headings, scored["rows_sha256"]]).transform("min")
    data = ", data " + shared_sums + " (not compared with other files or formats)"
    for endings in (data, ", rows scored: " + scored["count"]):
        is_ambiguous = endings.groupby(headings).transform("nunique") > 1
        headings = headings + endings.where(is_ambiguous, "")
    by_heading = sorted(headings.groupby(headings).indices.items())
    return [(str(heading), [trainings[i] for i in places]) for heading, places in by_heading]


def cost_table(costs: Iterable[StepCost]) -> Table:
    """The cost of a step: the ratio stated in the paper's text, and all of our measurements."""
    rows = [row for cost in costs for row in cost.rows]
    return make_table("cost", [PAPER_COST, *rows] if rows else [])


def runs_table(groups: Sequence[RunGroup], runs: Runs) -> Table:
    """All pre-trainings, each followed by its compared fine-tunings; then all other runs."""
    rows: dict[str, Row] = {}  # by the id of a run; a vanilla MLM may belong to several groups
    for group in groups:
        for run in group.runs:
            row = _run_row(group.label, "pre-training", run.model.label, run)
            rows.setdefault(run.id, row)
            finetunings = [
                tuning for tuning in group.finetunings if tuning.pretraining_id == run.training_id
            ]
            for tuning in sorted(finetunings, key=lambda tuning: tuning.task):
                what = f"{title(tuning.task)} from {run.id}, {tuning.grid_cell}"
                rows.setdefault(tuning.id, _run_row(group.label, "fine-tuning", what, tuning))
    for tuning in sorted(runs.finetunings, key=lambda tuning: tuning.pretraining_id not in rows):
        heading = "other fine-tunings: of other models or of random weights"
        source = tuning.learner
        if tuning.pretraining_id in rows:
            heading = "other fine-tunings of these models: other labels or rows, or rarer settings"
            source = tuning.pretraining_id
        what = f"{title(tuning.task)} from {source}"
        row = _run_row(heading if groups else "fine-tunings", "fine-tuning", what, tuning)
        rows.setdefault(tuning.id, row)
    for baseline in sorted(runs.baselines, key=lambda run: (run.learner, run.task)):
        what = f"{title(baseline.task)}, {baseline.learner}"
        rows.setdefault(baseline.id, _run_row("baselines", "baseline", what, baseline))
    return make_table("runs", list(rows.values()))


def _run_row(heading: str, kind: str, what: str, run: Pretraining | TaskTraining) -> Row:
    """The row of any run."""
    row = {
        "group": heading,
        "run": run.id,
        "kind": kind,
        "what": what,
        "p, %": "",
        "r": "",
        "updates": "",
        "seeds": " ".join(map(str, run.seeds)),
        "result": run.result,
        "hours": run.hours,
        "device": run.device,
        "directory": str(run.path),
        "rows": "",
        "SHA-256 of the data": "",
    }
    if isinstance(run, Pretraining):
        return row | {"p, %": 100 * run.model.p, "r": run.model.r, "updates": run.steps}
    return row | {"rows": run.split, "SHA-256 of the data": run.files}


def left_out_table(runs: Runs, groups: Sequence[RunGroup]) -> Table:
    """Files and runs that are in no other table (`ranking_table` has all scored runs), and why."""
    grouped = {run.id for group in groups for run in group.runs}
    rows = list(runs.left_out)
    for run in runs.pretrainings:
        if run.id not in grouped:
            what = f"{run.model.description}, seed {run.seed}"
            rows.append({"file": str(run.path), "why": "another run has its seed", "what": what})
    return make_table("left-out", rows)
