"""Puts runs that can be compared into groups, and takes means over their seeds.

An example: an MLM, an ExLM with an order prior of 4 and an ExLM with one of 10, and all else is
equal. There are two groups, one for each ExLM. The MLM is in both, since it has no order prior that
could differ. An ExLM of another size would be in a third group."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, mode, stdev

import pandas as pd

from exlm.paper.analyze import Space
from exlm.paper.display import METHODS, Model, Row
from exlm.paper.finished_runs import EXLM_ONLY, Number
from exlm.paper.runs import Runs
from exlm.tasks.rows.datasets import GLUE, MOLECULENET

_ABLATIONS = [method for method in METHODS if method not in ("mlm", "mlm-plus-plus", "exlm")]
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order
Mean = tuple[float, float | None]  # with its spread, if there is one


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


class Means:
    """The means over seeds of numbers, each with its model and the id of its pre-training. `center`
    (mean or median) is taken over the fine-tuning seeds of a pre-training."""

    def __init__(
        self,
        numbers: Iterable[tuple[Model, str, Number]],
        center: Callable[..., float] = fmean,
    ) -> None:
        self._numbers = defaultdict(list)  # run, value and error by model and quantity
        for model, run, (quantity, value, error) in numbers:
            self._numbers[model, quantity].append((run, value, error))
        self._center = center

    def run_by_run(self, model: Model, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run of a model that has all of them."""
        columns = {}
        for quantity in quantities:
            numbers = pd.DataFrame(
                self._numbers[model, quantity], columns=["run", "value", "error"]
            )
            columns[quantity] = numbers.groupby("run")["value"].agg(self._center)
        return pd.DataFrame(columns, dtype=float).dropna().mean(axis=1)

    def mean(self, model: Model, *quantities: str) -> Mean | None:
        """A quantity, or the mean of several, over the runs that have all of them, and its spread:
        of several quantities, the standard deviation over pre-training seeds; of one, that over all
        seeds, or for a single number its standard error over tokens, if known. None without such a
        run."""
        values = self.run_by_run(model, *quantities)
        if values.empty:
            return None
        if len(quantities) > 1:
            return fmean(values), spread(values)
        numbers = self._numbers[model, quantities[0]]
        over_seeds = spread(value for _, value, _ in numbers)
        _, _, error = numbers[0]
        return fmean(values), error if over_seeds is None else over_seeds

    def by_model(self, models: Iterable[Model], quantity: str) -> dict[Model, Mean]:
        """The mean of a quantity of each of these models that has it."""
        means = {model: self.mean(model, quantity) for model in models}
        return {model: mean for model, mean in means.items() if mean}


class RunGroup:
    """Runs that can be compared: they differ only in what the experiments vary.

    Attributes:
        label: what they have in common, as a phrase.
        runs: the pre-trainings, in the order of the tables.
        models: what these are.
        finetunings: their fine-tunings that are compared, one for each run and task.
        tasks: the tasks of these: first the paper's, in its order, then all others.
        percent_tasks: those of them that are scored in percent.
        numbers: all numbers, each with its model and the id of its pre-training.
        means: the means of these over seeds.
        base_ratio: the mask ratio p of the ablations.
        base_states: the k of the ablations."""

    def __init__(self, label: str, runs: list[Row], finetunings: list[Row]) -> None:
        self.label = label
        self.runs = runs
        self.models = list(dict.fromkeys(run["model"] for run in runs))
        self.finetunings = _compared_finetunings(runs, finetunings)
        tasks = {run["task"] for run in self.finetunings}
        self.tasks = [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))
        in_percent = {run["task"] for run in self.finetunings if run["in_percent"]}
        self.percent_tasks = [task for task in self.tasks if task in in_percent]
        models = {run["id"]: run["model"] for run in runs}
        self.numbers: list[tuple[Model, str, Number]] = []
        for row in (*runs, *self.finetunings):
            run_id = row["pretraining"]
            self.numbers += [(models[run_id], run_id, number) for number in row["numbers"]]
        self.means = Means(self.numbers)
        self.base_ratio = _base_ratio(self.models)
        self.base_states = _base_states(self.models)

    def runs_of(self, model: Model) -> list[Row]:
        """The pre-trainings of a model, one for each seed."""
        return [run for run in self.runs if run["model"] == model]

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
        ratios = {model.p for model in self.select("exlm")}
        return [model for model in self.select("mlm", "exlm") if model.p in ratios]

    def grid(self) -> list[Model]:
        """The models of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        models = {model for model in self.models if model.method == "mlm"}
        if all(model.r == 1 for model in models):
            return []
        ratios = [*Space().mask_ratios, *(model.p for model in models)]
        repeats = [*Space().repeats, *(model.r for model in models)]
        return sorted(models | {Model("mlm", 1, p, r) for p, r in Space(ratios, repeats).grid()})


def _base_ratio(models: Iterable[Model]) -> float:
    """15%, as in the paper, or else the most frequent mask ratio; of equal ones the lowest."""
    counts = Counter(model.p for model in models if model.r == 1)
    return max(sorted(counts), key=lambda p: (p == 0.15, counts[p]), default=0.15)


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
    runs = sorted(all_runs.pretrainings, key=lambda run: (run["steps"], run["seed"], run["id"]))
    kinds = Counter((run["settings"], run["steps"], run["exlm_only"]) for run in runs)
    groups: dict[frozenset[str], list[Row]] = {}  # by the ids of their runs
    for (settings, steps, exlm_only), _ in kinds.most_common():
        has_wider_group = any(
            (other_settings, other_steps) == (settings, steps) and exlm_only < other_exlm_only
            for other_settings, other_steps, other_exlm_only in kinds
        )
        if has_wider_group:
            continue  # such as MLMs: they are in the groups of the runs that use more settings
        similar = [run for run in runs if run["settings"] == settings]
        similar = [run for run in similar if run["exlm_only"] <= exlm_only]
        plus_updates = _plus_updates(similar, steps, all_runs.costs)
        by_seed: dict[tuple[Model, int], Row] = {}
        for run in similar:
            model = run["model"]
            is_elsewhere = any(run["id"] in ids for ids in groups)
            if model.method == "mlm" and model.r == 1 and run["steps"] == plus_updates.get(model.p):
                model = model._replace(method="mlm-plus-plus")
            elif run["steps"] != steps or (model.r > 1 and is_elsewhere):
                continue
            by_seed.setdefault((model, run["seed"]), run | {"model": model})
        group = sorted(by_seed.values(), key=lambda run: (run["model"].place, run["seed"]))
        groups[frozenset(run["id"] for run in group)] = group
    largest = [group for ids, group in groups.items() if not any(ids < other for other in groups)]
    labelled = []
    for label, group in zip(_labels(largest), largest, strict=True):
        labelled.append(RunGroup(label, group, all_runs.finetunings))
    return sorted(labelled, key=lambda group: (-len(group.runs), group.label))


def _plus_updates(runs: list[Row], steps: int, costs: Sequence[Row]) -> dict[float, int]:
    """The number of updates of MLM++, by mask ratio. MLM++ is the vanilla MLM with more updates
    than `steps`, those of its group, whose number is closest to `steps` times the cost ratio that
    was measured in these runs, or else the ratio of the hours that an update took."""
    mlms = [run for run in runs if run["model"].method == "mlm" and run["model"].r == 1]
    longer = [run for run in mlms if run["steps"] > steps]
    # a method that the paper does not have has costs of its own
    methods = METHODS.keys() - {"mlm"}
    exlms = [run for run in runs if run["model"].method in methods and run["steps"] == steps]
    if not (longer and exlms):
        return {}
    ratio_by_study = {cost["study"]: cost["ratio"] for cost in costs}
    ratios = [ratio_by_study[run["study"]] for run in runs if run["study"] in ratio_by_study]
    ratio = ratios[0] if ratios else _mean_hours(exlms) / _mean_hours(longer)
    # the closest is the last one; of two that are as close, the longer
    longer.sort(key=lambda run: (-abs(run["steps"] - steps * ratio), run["steps"]))
    return {run["model"].p: run["steps"] for run in longer}


def _mean_hours(runs: Iterable[Row]) -> float:
    """The hours of an update."""
    return fmean(run["hours"] / run["steps"] for run in runs)


def _compared_finetunings(runs: list[Row], finetunings: list[Row]) -> list[Row]:
    """One fine-tuning of each run and task, of those with the task's most frequent settings."""
    ids = {run["id"] for run in runs}
    by_task = defaultdict(list)
    for tuning in finetunings:
        if tuning["pretraining"] in ids:
            by_task[tuning["task"]].append(tuning)
    compared: dict[tuple[str, str], Row] = {}
    for task, tunings in by_task.items():
        usual = mode(tuning["compared"] for tuning in tunings)
        for tuning in tunings:
            if tuning["compared"] == usual:
                compared.setdefault((tuning["pretraining"], task), tuning)
    return list(compared.values())


def _labels(groups: list[list[Row]]) -> list[str]:
    """The labels of groups. Equal ones get the settings that differ; hashes are shortened."""
    settings_by_label = defaultdict(list)
    for runs in groups:
        settings_by_label[_label(runs)].append(runs[0]["settings"])
    labels = []
    for runs in groups:
        label = _label(runs)
        shared = frozenset.intersection(*settings_by_label[label])
        different = sorted(runs[0]["settings"] - shared)
        settings = [f"{name} = {value[:16]}" for name, value in different]
        labels.append(" · ".join([label, *settings]))
    return labels


def _label(runs: list[Row]) -> str:
    """The label of a group: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    # Of all its runs, this one has the most settings and the fewest updates.
    run = max(runs, key=lambda run: (-run["steps"], len(run["exlm_only"])))
    millions = sorted({f"{run['parameters'] / 1e6:.1f}" for run in runs}, key=float)
    sizes = millions if len(millions) == 1 else [millions[0], millions[-1]]
    phrases = [
        run["corpus"],
        run["size"],
        f"{'–'.join(sizes)}M parameters",
        f"{run['steps']:,} updates of {run['tokens_per_batch']:,} tokens",
    ]
    phrases += [f"{name} = {value}" for name, value in run["settings"] if name == "data.mask_ratio"]
    for name, value in sorted(run["exlm_only"], key=str):
        if value != EXLM_ONLY[name]:
            phrases.append(f"{name} = {value}")
    return " · ".join(phrases)
