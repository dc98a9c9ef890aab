"""Puts runs that can be compared into groups, and takes means over their seeds.

An example: an MLM, an ExLM with an order prior of 4 and an ExLM with one of 10, and all else is
equal. There are two groups, one for each ExLM. The MLM is in both, since it has no order prior that
could differ. An ExLM of another size would be in a third group."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, mode, stdev
from typing import Any

import pandas as pd

from exlm.paper.analyze import Space
from exlm.paper.display import METHODS
from exlm.paper.finished_runs import EXLM_ONLY
from exlm.paper.models import EXLM, MLM, MODEL_COLUMNS, PLUS, Model, model_of, rank
from exlm.paper.runs import Runs, records
from exlm.tasks.rows.datasets import GLUE, MOLECULENET

_ABLATIONS = [method for method in METHODS if method not in (MLM, PLUS, EXLM)]
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order


Mean = tuple[float, float | None]  # with its spread, if there is one


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


class Means:
    """The means over seeds of a frame of numbers, which has the columns of a `Model`, pretraining,
    quantity, value, and error. `center` (mean or median) is taken over the fine-tuning seeds of a
    run.

    Attributes:
        by_run: a row for each model and run, a column for each quantity.
        spreads: by model and quantity, the standard deviation over all seeds; of a single number
            the standard error over tokens, if known."""

    def __init__(self, numbers: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        by_quantity = numbers.groupby([*MODEL_COLUMNS, "quantity"])
        spreads = by_quantity["value"].agg(spread).astype(float)
        self.spreads = spreads.fillna(by_quantity["error"].first())
        self.by_run = numbers.pivot_table(
            "value", [*MODEL_COLUMNS, "pretraining"], "quantity", center
        )

    def run_by_run(self, model: Model, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run of a model that has all of them."""
        if model not in self.by_run.index:
            return pd.Series(dtype=float)
        of_model: Any = self.by_run.xs(tuple(model))
        values = of_model.reindex(columns=list(quantities))
        return values.mean(axis=1, skipna=False).dropna()

    def mean(self, model: Model, *quantities: str) -> Mean | None:
        """A quantity, or the mean of several, over the runs that have all of them, and its spread:
        of several quantities, the standard deviation over pre-training seeds. None without such a
        run."""
        values = self.run_by_run(model, *quantities)
        if values.empty:
            return None
        if len(quantities) > 1:
            return fmean(values), spread(values)
        over_seeds = float(self.spreads[(*model, quantities[0])])
        return fmean(values), None if math.isnan(over_seeds) else over_seeds

    def by_model(self, models: Iterable[Model], quantity: str) -> dict[Model, Mean]:
        """The mean of a quantity of each of these models that has it."""
        means = {model: self.mean(model, quantity) for model in models}
        return {model: mean for model, mean in means.items() if mean}


class RunGroup:
    """Runs that can be compared: they differ only in what the experiments vary.

    Attributes:
        label: what they have in common, as a phrase.
        runs: the pre-trainings, in the order of the tables, with the columns of a `Model`.
        models: what these are.
        finetunings: their fine-tunings that are compared, one for each run and task.
        tasks: the tasks of these: first the paper's, in its order, then all others.
        percent_tasks: those of them that are scored in percent.
        numbers: all numbers, one a row, with the columns of a `Model`.
        means: the means of these over seeds.
        base_ratio: the mask ratio p of the ablations.
        base_states: the k of the ablations."""

    def __init__(self, label: str, runs: pd.DataFrame, all_runs: Runs) -> None:
        self.label = label
        self.runs = runs
        self.models = list(dict.fromkeys(_models(runs)))
        self.finetunings = _compared_finetunings(runs, all_runs.finetunings)
        tasks = set(self.finetunings["task"])
        self.tasks = [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))
        in_percent = self.finetunings.groupby("task")["in_percent"].all()
        self.percent_tasks = [task for task in self.tasks if in_percent[task]]
        numbers = all_runs.numbers
        numbers = numbers[numbers["id"].isin([*runs["id"], *self.finetunings["id"]])]
        self.numbers = runs[["pretraining", *MODEL_COLUMNS]].merge(numbers, on="pretraining")
        self.means = Means(self.numbers)
        self.base_ratio = _base_ratio(self.models)
        self.base_states = _base_states(self.models)

    def runs_of(self, model: Model) -> pd.DataFrame:
        """The pre-trainings of a model, one for each seed."""
        return self.runs[[other == model for other in _models(self.runs)]]

    def shared_tasks(self, models: Sequence[Model]) -> list[str]:
        """The tasks scored in percent that all these models have."""
        shared = []
        for task in self.percent_tasks:
            if all(self.means.mean(model, task) for model in models):
                shared.append(task)
        return shared

    def select(self, *methods: str) -> list[Model]:
        """The models with these methods and without repeated tokens."""
        return [model for model in self.models if model.method in methods and model.r == 1]

    def sweep(self) -> list[Model]:
        """The models of ExLM, and those of the vanilla MLM at the same mask ratios."""
        ratios = {model.p for model in self.select(EXLM)}
        return [model for model in self.select(MLM, EXLM) if model.p in ratios]

    def grid(self) -> list[Model]:
        """The models of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        models = {model for model in self.models if model.method == MLM}
        if all(model.r == 1 for model in models):
            return []
        ratios = [*Space().mask_ratios, *(model.p for model in models)]
        repeats = [*Space().repeats, *(model.r for model in models)]
        return sorted(models | {Model(MLM, 1, p, r) for p, r in Space(ratios, repeats).grid()})


def _models(runs: pd.DataFrame) -> list[Model]:
    return [model_of(run) for run in records(runs)]


def _base_ratio(models: Iterable[Model]) -> float:
    """15%, as in the paper, or else the most frequent mask ratio; of equal ones the lowest."""
    counts = Counter(model.p for model in models if model.r == 1)
    if not counts or 0.15 in counts:
        return 0.15
    return max(sorted(counts), key=lambda p: counts[p])


def _base_states(models: Iterable[Model]) -> int:
    """The k of most ablations; without any 4, as in the paper, or else the largest."""
    counts = Counter(model.k for model in models if model.method in _ABLATIONS)
    states = {model.k for model in models if model.k > 1}
    return max(states, key=lambda k: (counts[k], k == 4, k), default=4)


def group_runs(all_runs: Runs) -> list[RunGroup]:
    """The groups of all pre-trainings, the largest first.

    Runs of a group have the same settings and updates; only MLM++ has more updates. Of EXLM_ONLY,
    an MLM uses few settings: it is in every group that agrees in those that it uses. Only MLMs on
    repeated tokens, with which no ExLM is compared, are in a single group. If runs of a model
    share a seed, the lowest id is used."""
    pretrainings = all_runs.pretrainings.sort_values(["steps", "seed", "id"])
    groups: list[pd.DataFrame] = []
    ids_before: set[str] = set()  # of all groups so far
    kinds = Counter((run.settings, run.steps, run.exlm_only) for run in records(pretrainings))
    for (settings, steps, exlm_only), _ in kinds.most_common():
        runs = pretrainings[pretrainings["settings"] == settings]
        if any(exlm_only < larger for larger in runs.loc[runs["steps"] == steps, "exlm_only"]):
            continue  # such as MLMs: they are in the groups of the runs that use more settings
        runs = runs[[used <= exlm_only for used in runs["exlm_only"]]]
        runs = _with_plus(runs, steps, all_runs.costs)
        is_comparable = (runs["steps"] == steps) | (runs["method"] == PLUS)
        runs = runs[is_comparable & ((runs["r"] == 1) | ~runs["id"].isin(ids_before))]
        runs = runs.drop_duplicates([*MODEL_COLUMNS, "seed"])
        runs = runs.assign(rank=runs["method"].map(rank))
        groups.append(runs.sort_values(["rank", "method", "p", "k", "r", "seed"]))
        ids_before.update(runs["id"])
    groups = [runs for runs in groups if not any(_is_smaller(runs, other) for other in groups)]
    labelled = []
    for label, runs in zip(_labels(groups), groups, strict=True):
        labelled.append(RunGroup(label, runs, all_runs))
    return sorted(labelled, key=lambda group: (-len(group.runs), group.label))


def _is_smaller(runs: pd.DataFrame, others: pd.DataFrame) -> bool:
    """Whether all runs are among the others, and are not all of them."""
    return set(runs["id"]) < set(others["id"])


def _with_plus(runs: pd.DataFrame, steps: int, costs: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The runs with the method MLM++ where it is one. For each mask ratio, MLM++ is the vanilla MLM
    with more updates than its group whose number is closest to the group's times the cost ratio
    that was measured in these runs, or else the ratio of the hours that an update took."""
    is_longer = (runs["method"] == MLM) & (runs["r"] == 1) & (runs["steps"] > steps)
    # a method that the paper does not have has costs of its own
    is_exlm = (runs["steps"] == steps) & runs["method"].isin(METHODS) & (runs["method"] != MLM)
    if not (is_longer.any() and is_exlm.any()):
        return runs
    hours = runs["hours"] / runs["steps"]
    ratio_by_study = {cost["study"]: cost["ratio"] for cost in costs}
    ratios = [ratio_by_study[study] for study in runs["study"] if study in ratio_by_study]
    ratio = ratios[0] if ratios else fmean(hours[is_exlm]) / fmean(hours[is_longer])
    longer = runs[is_longer].assign(distance=(runs["steps"] - steps * ratio).abs())
    # of two that are as close, the longer one
    longer = longer.sort_values(["distance", "steps"], ascending=[True, False])
    closest = longer.groupby("p")["steps"].first()
    is_plus = is_longer & (runs["steps"] == runs["p"].map(closest))
    return runs.assign(method=runs["method"].mask(is_plus, PLUS))


def _compared_finetunings(runs: pd.DataFrame, finetunings: pd.DataFrame) -> pd.DataFrame:
    """One fine-tuning of each run and task, of those with the task's most frequent settings."""
    of_runs = finetunings[finetunings["pretraining"].isin(runs["id"])]
    candidates = of_runs[~of_runs["from_scratch"].astype(bool)]
    usual = candidates.groupby("task")["compared"].transform(mode)
    return candidates[candidates["compared"] == usual].drop_duplicates(["pretraining", "task"])


def _labels(groups: list[pd.DataFrame]) -> list[str]:
    """The labels of groups. Equal ones get the settings that differ; hashes are shortened."""
    settings_by_label = defaultdict(list)
    for runs in groups:
        settings_by_label[_label(runs)].append(runs["settings"].iloc[0])
    labels = []
    for runs in groups:
        label = _label(runs)
        shared = frozenset.intersection(*settings_by_label[label])
        different = sorted(runs["settings"].iloc[0].difference(shared))
        settings = [f"{name} = {value[:16]}" for name, value in different]
        labels.append(" · ".join([label, *settings]))
    return labels


def _label(runs: pd.DataFrame) -> str:
    """The label of a group: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    # Of all its runs, this one has the most settings and the fewest updates.
    run = max(records(runs), key=lambda run: (-run.steps, len(run.exlm_only)))
    millions = sorted({f"{parameters / 1e6:.1f}" for parameters in runs["parameters"]}, key=float)
    phrases = [
        run.corpus,
        run.size,
        f"{'–'.join(dict.fromkeys([millions[0], millions[-1]]))}M parameters",
        f"{run.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    phrases += [f"{name} = {value}" for name, value in run.settings if name == "data.mask_ratio"]
    for name, value in sorted(run.exlm_only, key=str):
        if value != EXLM_ONLY[name]:
            phrases.append(f"{name} = {value}")
    return " · ".join(phrases)
