"""The tables of the paper's experiments: the paper's tables with our numbers. Each is a list of
rows and a caption."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from statistics import fmean, median

from exlm.paper.display import ENTROPY, EXPERIMENTS, HELD_OUT, METHODS, Row, percent, title, wording
from exlm.paper.groups import Means, RunGroup
from exlm.paper.models import (
    ABLATIONS,
    EXLM,
    MAIN_TABLES,
    MLM,
    PLUS,
    PRINTED,
    SWEEP,
    Model,
)
from exlm.paper.page import SPREAD, Table

MASKS = [quantity for quantity in HELD_OUT if quantity.startswith("evaluation/nll_by_masks")]


def as_table(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Row],
    scored: Iterable[Row] = (),
    lacking: Sequence[Model] = (),
    **phrases: str | int,
) -> Table:
    """A table with its title and caption, in which `phrases` are filled in. The caption names the
    data of `scored` runs that differ from the published ones. Where a row lacks a column, the cell
    is empty."""
    heading, caption = wording("tables", name, **phrases)
    departures: set[str] = set()
    for run in scored:
        departures.update(f"{title(run['task'])}: {text}" for text in run["departures"])
    if departures:
        caption += f" Not the published data: {'; '.join(sorted(departures))}."
    empty = {"group": "", "source": "ours", **dict.fromkeys(columns, "")}
    return Table(name, heading, caption, columns, [empty | row for row in rows], lacking)


def model_row(
    group: RunGroup, model: Model, columns: Mapping[str, Sequence[str]], means: Means
) -> Row:
    """The row of a model of a group: its settings, seeds (of pre-training × of fine-tuning) and
    runs, and in each of the `columns` the mean of some quantities."""
    runs = group.runs_of(model)
    ids = [run["id"] for run in runs]
    finetunings = [tuning for tuning in group.finetunings if tuning["pretraining"] in ids]
    return {
        "model": model.label,
        "p, %": 100 * model.p,
        "r": model.r,
        "pʳ, %": 100 * model.p**model.r,
        "updates": runs[0]["steps"] if runs else None,
        "seeds": f"{len(runs)} × {_seed_counts(finetunings) or 0}" if runs else "",
        "runs": " ".join(ids) or None,
        **mean_entries(model, columns, means),
    }


def mean_entries(model: Model, columns: Mapping[str, Sequence[str]], means: Means) -> Row:
    """In each of the `columns`, the mean of some quantities of a model, with its spread."""
    row: Row = {}
    for column, quantities in columns.items():
        row[column], row[column + SPREAD] = means.mean(model, *quantities) or (None, None)
    return row


def _seed_counts(scored: Iterable[Row]) -> str:
    """The numbers of fine-tuning seeds, such as `3–5`."""
    return "–".join(map(str, sorted({len(run["seeds"]) for run in scored})))


def main_models(group: RunGroup) -> list[Model]:
    """The models of a group that stand in the main tables."""
    return [model for model in group.select(MLM, PLUS, EXLM) if model.p == group.base_ratio]


def main_table(name: str, groups: Sequence[RunGroup], baselines: Sequence[Row]) -> Table:
    """Other systems, then the paper's own, then ours by group, then baselines."""
    main = MAIN_TABLES[name]
    center = median if main["of_medians"] else fmean
    rows: list[Row] = []
    for source, whose in (("quoted", "other systems"), ("paper", "its own models")):
        for model_name, printed in main[source].items():
            heading = {"group": f"quoted from the paper: {whose}", "source": source}
            row = heading | {"model": model_name}
            rows.append(row | dict(zip(main["columns"], printed, strict=True)))
    for group in groups:
        means = Means(group.numbers, center)
        for model in main_models(group):
            row = model_row(group, model, main["columns"], means)
            rows.append(row | {"group": f"ours: {group.label}"})
    for baseline in dict.fromkeys(run["model"] for run in baselines):
        runs = [run for run in baselines if run["model"] == baseline]
        # It is trained anew for each task; as one run, it has the mean of all of them.
        as_model = Model(baseline, 1, 0.0)
        by_task = {run["task"]: run for run in runs}
        numbers = [number for run in by_task.values() for number in run["numbers"]]
        means = Means([(as_model, baseline, number) for number in numbers], center)
        row = {
            "group": "ours: baselines on the same data",
            "model": baseline,
            "seeds": _seed_counts(runs),
            "runs": " ".join(run["id"] for run in runs),
        }
        rows.append(row | mean_entries(as_model, main["columns"], means))
    columns = ["model", "updates", *main["columns"], "seeds", "runs"]
    scored = [run for group in groups for run in group.finetunings]
    return as_table(name, columns, rows, [*scored, *baselines])


def experiment_table(name: str, group: RunGroup) -> Table:
    """The table of an experiment: for each model our tasks and their mean, quantities on held-out
    data, and what the paper prints. Empty if the group has no runs of the experiment."""
    experiment = EXPERIMENTS[name]
    tasks = group.tasks if experiment["tasks"] else []
    means = {title(name): [name] for name in tasks}
    if len(tasks) > 1:
        means["avg."] = group.percent_tasks
    means |= {title(name): [name] for name in experiment["quantities"]}
    needed = [title(name) for name in (experiment["quantities"][0], *tasks)]
    rows = []
    lacking = []
    for model in MODELS[name](group):
        row = model_row(group, model, means, group.means)
        printed = PRINTED.get(model, [])
        if name == "ablations":
            row["model"] = model.title  # k and p stand in the title of the table
            printed = ABLATIONS.get(model.method, [])
        row |= zip(experiment["paper"], chain(printed, repeat(None)), strict=False)
        rows.append(row)
        is_made = model.method in METHODS  # by `exlm analyze`
        if is_made and any(row[column] is None for column in needed):
            lacking.append(model)
    return as_table(
        name,
        [*experiment["settings"], *means, *experiment["paper"], "seeds", "runs"],
        rows,
        group.finetunings,
        lacking,
        label=group.label,
        ratio=percent(group.base_ratio),
        states=group.base_states,
    )


def _ablations(group: RunGroup) -> list[Model]:
    """ExLM with and without its parts, and the MLM; none if there is only one method."""
    k, p = group.base_states, group.base_ratio
    models = {}
    for model in group.models:
        if model in (Model(model.method, 1, p), Model(model.method, k, p)):
            models[model.method] = model
    if len(models) < 2:
        return []
    for method in ABLATIONS:
        models.setdefault(method, Model(method, 1 if method in (MLM, PLUS) else k, p))
    return sorted(models.values(), key=lambda model: model.place)


def _sweep(group: RunGroup) -> list[Model]:
    """Each p and k (1: the vanilla MLM); none unless two models are of ExLM."""
    return _in_order({*group.sweep(), *SWEEP}) if len(group.select(EXLM)) > 1 else []


def _with_entropy(group: RunGroup) -> list[Model]:
    """ExLM and the vanilla MLM; none unless there is the entropy of an ExLM."""
    entropies = group.means.by_model(group.select(EXLM), ENTROPY)
    return _in_order(group.sweep()) if entropies else []


def _in_order(models: Iterable[Model]) -> list[Model]:
    return sorted(models, key=lambda model: (model.p, model.k, model.place))


# By experiment, the models that stand in its table
MODELS = {
    "repeated-mlm": RunGroup.grid,
    "ablations": _ablations,
    "sweep": _sweep,
    "entropy": _with_entropy,
}


def masks_table(groups: Sequence[RunGroup]) -> Table:
    """Marginal nll by the number of masks: a model should be good with few masks, of which a task
    has none."""
    columns = {title(quantity): [quantity] for quantity in MASKS}
    rows = []
    for group in groups:
        for model in group.models:
            row = model_row(group, model, columns, group.means)
            if any(row[column] is not None for column in columns):
                rows.append(row | {"group": group.label, "model": model.description})
    return as_table("masks", ["model", *columns, "seeds", "runs"], rows)
