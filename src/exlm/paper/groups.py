"""Puts runs that can be compared into groups.

An example: an MLM, an ExLM with an order prior of 4 and an ExLM with one of 10, and all else is
equal. There are two groups, one for each ExLM. The MLM is in both, since it has no order prior that
could differ. An ExLM of another size would be in a third group."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, mode, stdev

import pandas as pd

from exlm.paper.analyze import Space
from exlm.paper.cost import StepCost
from exlm.paper.display import HELD_OUT, METHODS, MLMS, Variant
from exlm.paper.find_runs import Runs
from exlm.paper.pretrainings import USUAL_VALUES, Numbers, Pretraining
from exlm.paper.task_trainings import TaskTraining
from exlm.tasks.rows.datasets import GLUE, MOLECULENET

Mean = tuple[float, float | None]  # with its spread, if there is one
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


@dataclass(frozen=True)
class SeedMeans:
    """The means of the numbers of models over their seeds.

    An example: a model with two pre-training seeds, each fine-tuned with three seeds, has six
    numbers of a task. `center` makes one number of each three, and their mean is the mean."""

    numbers: Mapping[Variant, Mapping[str, Numbers]]  # by model and the id of the pre-training
    center: Callable[..., float] = fmean  # over the fine-tuning seeds of a run; or the median

    def run_by_run(self, model: Variant, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run of a model that has all of them."""
        means: dict[str, dict[str, float]] = {quantity: {} for quantity in quantities}
        for run, numbers in self.numbers.get(model, {}).items():
            for quantity in numbers.keys() & means.keys():
                means[quantity][run] = self.center(numbers[quantity])
        return pd.DataFrame(means, dtype=float).sort_index().dropna().mean(axis=1)

    def mean(self, model: Variant, *quantities: str) -> Mean | None:
        """The mean of a quantity, or of several, over the runs that have all of them, and its
        spread; None if there is no such run. The spread is

        - of several quantities, the standard deviation over pre-training seeds;
        - of one quantity, the standard deviation over all seeds;
        - of a single number, its standard error over tokens, or None if it is not known."""
        values = self.run_by_run(model, *quantities)
        if values.empty:
            return None
        if len(quantities) > 1:
            return fmean(values), spread(values)
        [quantity] = quantities
        numbers = self._list_numbers(model, quantity)
        if len(numbers) > 1:
            return fmean(values), stdev(numbers)
        errors = self._list_numbers(model, HELD_OUT[quantity].error) if quantity in HELD_OUT else []
        return fmean(values), errors[0] if errors else None

    def _list_numbers(self, model: Variant, quantity: str) -> list[float]:
        """The numbers of all seeds of all runs."""
        runs = self.numbers[model].values()
        return [number for numbers in runs for number in numbers.get(quantity, [])]

    def by_model(self, models: Iterable[Variant], quantity: str) -> dict[Variant, Mean]:
        """The mean of a quantity of each of these models that has it."""
        means = {model: self.mean(model, quantity) for model in models}
        return {model: mean for model, mean in means.items() if mean}


class RunGroup:
    """Runs that can be compared: they differ only in what the experiments vary."""

    def __init__(
        self, label: str, runs: Sequence[Pretraining], finetunings: Iterable[TaskTraining]
    ) -> None:
        self.label = label  # what they have in common, as a phrase
        self.runs = runs  # the pre-trainings in the order of tables, one for each model and seed
        self.models = list(dict.fromkeys(run.model for run in runs))
        # one for each run and task
        self.finetunings = _choose_finetunings(runs, finetunings)
        # first the paper's tasks, in its order, then all others
        tasks = {tuning.task for tuning in self.finetunings}
        self.tasks = [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))
        in_percent = {tuning.task for tuning in self.finetunings if tuning.scores.in_percent}
        self.percent_tasks = [task for task in self.tasks if task in in_percent]
        # by model and the id of its pre-training
        self.numbers: dict[Variant, dict[str, Numbers]] = {model: {} for model in self.models}
        for run in runs:
            numbers = dict(run.numbers)
            for tuning in self.finetunings:
                if tuning.pretraining_id == run.training_id:
                    numbers |= tuning.scores.numbers
            self.numbers[run.model][run.id] = numbers
        self.means = SeedMeans(self.numbers)
        # the p and the k of the ablations
        self.base_ratio = _find_base_ratio(self.models)
        self.base_states = _find_base_states(self.models)

    def runs_of(self, model: Variant) -> list[Pretraining]:
        """The pre-trainings of a model, one for each seed."""
        return [run for run in self.runs if run.model == model]

    def split_by_sequences(self) -> list["RunGroup"]:
        """The group, divided by the sequences that `nll_by_masks` is of."""
        runs_by_sequences = defaultdict(list)
        for run in self.runs:
            runs_by_sequences[run.by_masks_sequences].append(run)
        if len(runs_by_sequences) == 1:
            return [self]
        return [
            RunGroup(f"{self.label} · {sequences or 'not recorded'}", runs, self.finetunings)
            for sequences, runs in runs_by_sequences.items()
        ]

    def shared_tasks(self, models: Sequence[Variant]) -> list[str]:
        """The tasks scored in percent that all these models have."""
        shared = []
        for task in self.percent_tasks:
            if all(self.means.mean(model, task) for model in models):
                shared.append(task)
        return shared

    def select(self, *methods: str) -> list[Variant]:
        """The models with these methods and without repeated tokens."""
        return [model for model in self.models if model.method in methods and model.r == 1]

    def sweep(self) -> list[Variant]:
        """The models of ExLM, and the vanilla MLMs at the same mask ratios."""
        ratios = {model.p for model in self.select("exlm")}
        return [model for model in self.select("mlm", "exlm") if model.p in ratios]

    def repeated_mlms(self) -> list[Variant]:
        """The models of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        models = {model for model in self.models if model.method == "mlm"}
        if all(model.r == 1 for model in models):
            return []
        ratios = [*Space().mask_ratios, *(model.p for model in models)]
        repeats = [*Space().repeats, *(model.r for model in models)]
        pairs = Space(ratios, repeats).repeated_pairs()
        return sorted(models | {Variant("mlm", 1, p, r) for p, r in pairs})


def _find_base_ratio(models: Iterable[Variant]) -> float:
    """15%, as in the paper, or else the most frequent mask ratio; of equal ones the lowest."""
    counts = Counter(model.p for model in models if model.r == 1)
    return max(sorted(counts), key=lambda p: (p == 0.15, counts[p]), default=0.15)


def _find_base_states(models: Iterable[Variant]) -> int:
    """The k of most ablations; without any 4, as in the paper, or else the largest."""
    methods = METHODS.keys() - {*MLMS, "exlm"}
    counts = Counter(model.k for model in models if model.method in methods)
    states = {model.k for model in models if model.k > 1}
    return max(states, key=lambda k: (counts[k], k == 4, k), default=4)


def _choose_finetunings(
    runs: Iterable[Pretraining], finetunings: Iterable[TaskTraining]
) -> list[TaskTraining]:
    """One fine-tuning of each run and task. Of the fine-tunings on a task, only the ones with the
    most frequent settings are compared."""
    ids = {run.training_id for run in runs}
    by_task = defaultdict(list)
    for tuning in finetunings:
        if tuning.pretraining_id in ids:
            by_task[tuning.task].append(tuning)
    compared: dict[tuple[str | None, str], TaskTraining] = {}
    for task, tunings in by_task.items():
        usual_key = mode(tuning.comparison_key for tuning in tunings)
        for tuning in tunings:
            if tuning.comparison_key == usual_key:
                compared.setdefault((tuning.pretraining_id, task), tuning)
    return list(compared.values())


def group_runs(all_runs: Runs) -> list[RunGroup]:
    """The groups of all pre-trainings, the largest first. Equal labels get the settings that
    differ; hashes are shortened."""
    runs_by_label = defaultdict(list)
    for runs in _divide_into_groups(all_runs):
        runs_by_label[_label(runs)].append(runs)
    groups = []
    for label, same_label in runs_by_label.items():
        shared = frozenset.intersection(*(runs[0].settings for runs in same_label))
        for runs in same_label:
            different = sorted(runs[0].settings - shared)
            phrases = [label, *(f"{name} = {value[:16]}" for name, value in different)]
            groups.append(RunGroup(" · ".join(phrases), runs, all_runs.finetunings))
    return sorted(groups, key=lambda group: (-len(group.runs), group.label))


def _divide_into_groups(all_runs: Runs) -> list[list[Pretraining]]:
    """The runs of each group.

    Runs of a group have the same settings and updates; only MLM++ has more updates. An MLM uses few
    of the settings EXLM_ONLY, and is in every group that agrees in the settings that it uses. An
    MLM on repeated tokens, with which no ExLM is compared, is in one group. If runs of a model
    share a seed, the lowest id is used."""
    runs = sorted(all_runs.pretrainings, key=lambda run: (run.steps, run.seed, run.id))
    # the settings that runs share, and how many runs have them
    shared_settings = Counter((run.settings, run.steps, run.exlm_only) for run in runs)
    groups: dict[frozenset[str], list[Pretraining]] = {}  # by the ids of their runs
    for (settings, steps, exlm_only), _ in shared_settings.most_common():
        comparable = [used for *key, used in shared_settings if key == [settings, steps]]
        if any(exlm_only < used for used in comparable):
            continue  # such as MLMs: they are in the groups of the runs that use more settings
        similar_runs = [
            run for run in runs if run.settings == settings and run.exlm_only <= exlm_only
        ]
        earlier_ids = set[str]().union(*groups)
        group = _choose_members(similar_runs, steps, all_runs.costs, earlier_ids)
        groups[frozenset(run.id for run in group)] = group
    return [group for ids, group in groups.items() if not any(ids < other for other in groups)]


def _choose_members(
    runs: Sequence[Pretraining], steps: int, costs: Iterable[StepCost], earlier_ids: set[str]
) -> list[Pretraining]:
    """The runs with `steps` updates, and MLM++. A run on repeated tokens is left out if it is in an
    earlier group, which has `earlier_ids`."""
    plus_updates = _find_plus_updates(runs, steps, costs)
    by_seed: dict[tuple[Variant, int], Pretraining] = {}
    for run in runs:
        model = run.model
        if model.method == "mlm" and model.r == 1 and run.steps == plus_updates.get(model.p):
            run = replace(run, model=model._replace(method="mlm-plus-plus"))
        elif run.steps != steps or (model.r > 1 and run.id in earlier_ids):
            continue
        by_seed.setdefault((run.model, run.seed), run)
    return sorted(by_seed.values(), key=lambda run: (run.model.place, run.seed))


def _find_plus_updates(
    runs: Sequence[Pretraining], steps: int, costs: Iterable[StepCost]
) -> dict[float, int]:
    """The number of updates of MLM++, by mask ratio. `steps` is the number of updates of the group.
    MLM++ is a vanilla MLM with more updates: the one whose number is closest to `steps` times the
    cost ratio that was measured in these runs, or else the ratio of the hours of an update."""
    mlms = [run for run in runs if run.model.method == "mlm" and run.model.r == 1]
    longer = [run for run in mlms if run.steps > steps]
    # a method that the paper does not have has costs of its own
    methods = METHODS.keys() - {"mlm"}
    exlms = [run for run in runs if run.model.method in methods and run.steps == steps]
    if not (longer and exlms):
        return {}
    ratio_by_study = {cost.study_path: cost.ratio for cost in costs}
    ratios = [ratio_by_study[run.study_path] for run in runs if run.study_path in ratio_by_study]
    ratio = ratios[0] if ratios else _mean_hours(exlms) / _mean_hours(longer)
    # the closest is the last one; of two that are as close, the longer
    longer.sort(key=lambda run: (-abs(run.steps - steps * ratio), run.steps))
    return {run.model.p: run.steps for run in longer}


def _mean_hours(runs: Iterable[Pretraining]) -> float:
    """The hours of an update."""
    return fmean(run.hours / run.steps for run in runs)


def _label(runs: Sequence[Pretraining]) -> str:
    """The label of a group: corpus, model size, number of updates, what else a reader of its scores
    must know, and the settings EXLM_ONLY whose values are not the usual ones."""
    # Of all its runs, this one has the most settings and the fewest updates.
    run = max(runs, key=lambda run: (-run.steps, len(run.exlm_only)))
    millions = sorted({f"{run.parameters / 1e6:.1f}" for run in runs}, key=float)
    sizes = millions if len(millions) == 1 else [millions[0], millions[-1]]
    phrases = [
        run.corpus_and_size,
        f"{'–'.join(sizes)}M parameters",
        f"{run.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    scored = {run.held_out_sequences for run in runs if run.held_out_sequences}
    phrases += [f"{count:,} held-out sequences scored" for count in scored]
    phrases += [f"{name} = {value}" for name, value in run.settings if name == "data.mask_ratio"]
    if start := dict(run.settings).get("start"):
        phrases.append(f"started from the model {json.loads(start)[:8]}")
    if run.held_out_in_training:
        phrases.append(f"{run.held_out_in_training} held-out sequences were trained on")
    for name, value in sorted(run.exlm_only, key=str):
        if value != USUAL_VALUES[name]:
            phrases.append(f"{name} = {value}")
    return " · ".join(phrases)
