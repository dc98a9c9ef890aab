"""Puts runs that can be compared into groups.

An example: an MLM, an ExLM with an order prior of 4 and an ExLM with one of 10, and all else is
equal. There are two groups, one for each ExLM. The MLM is in both, since it has no order prior that
could differ. An ExLM of another size would be in a third group.

In a group, runs are sorted by `Variant`, that is by what the experiments vary."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

import pandas as pd

from exlm.paper.analyze import Space
from exlm.paper.display import METHODS
from exlm.paper.estimates import Results
from exlm.paper.finished_runs import EXLM_ONLY, FineTuning, PretrainedRun
from exlm.paper.runs import Runs
from exlm.paper.variants import EXLM, MLM, PLUS, Variant, rank
from exlm.tasks.rows.datasets import GLUE, MOLECULENET

RunsOfVariants = dict[Variant, list[PretrainedRun]]
_ABLATIONS = [method for method in METHODS if method not in (MLM, PLUS, EXLM)]
TASKS = (*GLUE, "squad2", *MOLECULENET)  # in the paper's order


class RunGroup:
    """Runs that can be compared: they differ only in what the experiments vary.

    Attributes:
        label: what they have in common, as a phrase.
        variants: the runs by variant, in the order of the tables, one for each pre-training seed.
        runs: the same runs as a list.
        finetunings: their fine-tunings that are compared, one for each run and task.
        tasks: the tasks of these: first the paper's, in its order, then all others.
        percent_tasks: those of them that are scored in percent.
        values: all numbers, with a row for each variant, run, quantity and seed.
        results: the same numbers as means over seeds.
        base_ratio: the mask ratio p of the ablations.
        base_states: the k of the ablations."""

    def __init__(self, label: str, variants: RunsOfVariants, runs: Runs) -> None:
        self.label = label
        self.variants = variants
        self.runs = _all_runs(variants)
        self.finetunings = _compared_finetunings(self.runs, runs.finetunings)
        tasks = {tuning.task for tuning in self.finetunings}
        self.tasks = [task for task in TASKS if task in tasks] + sorted(tasks.difference(TASKS))
        other_units = {tuning.task for tuning in self.finetunings if not tuning.in_percent}
        self.percent_tasks = [task for task in self.tasks if task not in other_units]
        rows = [(run.id, *variant) for variant in variants for run in variants[variant]]
        sources = {run.id for run in self.runs} | {tuning.id for tuning in self.finetunings}
        values = runs.values[runs.values["source"].isin(sources)]
        self.values = pd.DataFrame(rows, columns=["run", *Variant._fields]).merge(values, on="run")
        self.results = Results(self.values)
        self.base_ratio = _base_ratio(variants)
        self.base_states = _base_states(variants)

    def finetunings_of(self, run: PretrainedRun) -> list[FineTuning]:
        """Those that started from this run."""
        return [tuning for tuning in self.finetunings if tuning.model_id == run.id]

    def shared_tasks(self, variants: Sequence[Variant]) -> list[str]:
        """The tasks scored in percent that all these variants have."""
        shared = []
        for task in self.percent_tasks:
            if all(self.results.number(variant, task) for variant in variants):
                shared.append(task)
        return shared

    def select(self, *methods: str) -> list[Variant]:
        """The variants with these methods and without repeated tokens."""
        return [
            variant for variant in self.variants if variant.method in methods and variant.r == 1
        ]

    def sweep(self) -> list[Variant]:
        """The variants of ExLM, and those of the vanilla MLM at the same mask ratios."""
        ratios = {variant.p for variant in self.select(EXLM)}
        return [variant for variant in self.select(MLM, EXLM) if variant.p in ratios]

    def grid(self) -> list[Variant]:
        """The variants of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        variants = {variant for variant in self.variants if variant.method == MLM}
        if all(variant.r == 1 for variant in variants):
            return []
        ratios = [*Space().mask_ratios, *(variant.p for variant in variants)]
        repeats = [*Space().repeats, *(variant.r for variant in variants)]
        return sorted(variants | {Variant(MLM, 1, p, r) for p, r in Space(ratios, repeats).grid()})


def _base_ratio(variants: Iterable[Variant]) -> float:
    """15%, as in the paper, or else the most frequent mask ratio; of equal ones the lowest."""
    counts = Counter(variant.p for variant in variants if variant.r == 1)
    if not counts or 0.15 in counts:
        return 0.15
    return max(sorted(counts), key=lambda p: counts[p])


def _base_states(variants: Iterable[Variant]) -> int:
    """The k of most ablations; without any 4, as in the paper, or else the largest."""
    counts = Counter(variant.k for variant in variants if variant.method in _ABLATIONS)
    states = {variant.k for variant in variants if variant.k > 1}
    return max(states, key=lambda k: (counts[k], k == 4, k), default=4)


def group_runs(runs: Runs) -> list[RunGroup]:
    """The groups of all pre-trainings, the largest first.

    Runs of a group have the same settings and updates; only MLM++ has more updates. Of EXLM_ONLY,
    an MLM uses few settings: it is in every group that agrees in those that it uses. Only MLMs on
    repeated tokens, with which no ExLM is compared, are in a single group. If runs of a variant
    share a seed, the lowest id is used."""
    all_runs = sorted(runs.pretrainings, key=lambda run: (run.steps, run.seed, run.id))
    counts = Counter((run.settings, run.steps, run.exlm_only) for run in all_runs)
    groups: list[RunsOfVariants] = []
    for (settings, steps, exlm_only), _ in counts.most_common():
        same_settings = [run for run in all_runs if run.settings == settings]
        as_long = [run for run in same_settings if run.steps == steps]
        if any(exlm_only < run.exlm_only for run in as_long):
            continue  # such as MLMs: they are in the groups of the runs that use more settings
        agreeing = [run for run in same_settings if run.exlm_only.issubset(exlm_only)]
        in_earlier_groups = [run for group in groups for run in _all_runs(group)]
        groups.append(_by_variant(steps, agreeing, in_earlier_groups, runs))
    groups = _without_smaller(groups)
    labels = _labels([_all_runs(group) for group in groups])
    labelled = [RunGroup(label, group, runs) for label, group in zip(labels, groups, strict=True)]
    return sorted(labelled, key=lambda group: (-len(group.runs), group.label))


def _without_smaller(groups: list[RunsOfVariants]) -> list[RunsOfVariants]:
    """Without those groups all of whose runs are in a larger one, too."""
    run_sets = [set(_all_runs(group)) for group in groups]
    remaining = []
    for group, its_runs in zip(groups, run_sets, strict=True):
        if not any(its_runs < others for others in run_sets):
            remaining.append(group)
    return remaining


def _all_runs(variants: RunsOfVariants) -> list[PretrainedRun]:
    return [run for runs in variants.values() for run in runs]


def _by_variant(
    steps: int, agreeing: list[PretrainedRun], in_earlier_groups: list[PretrainedRun], runs: Runs
) -> RunsOfVariants:
    """The runs of a group by variant, of all those that agree with it."""
    plus_steps = _plus_steps(steps, agreeing, runs)
    by_seed: dict[tuple[Variant, int], PretrainedRun] = {}
    for run in agreeing:
        variant = run.variant
        if _is_vanilla(run) and run.steps == plus_steps.get(variant.p):
            by_seed.setdefault((Variant(PLUS, 1, variant.p), run.seed), run)
        elif run.steps == steps and (variant.r == 1 or run not in in_earlier_groups):
            by_seed.setdefault((variant, run.seed), run)
    variants: RunsOfVariants = {}
    for variant, seed in sorted(by_seed, key=lambda key: (rank(key[0].method), key[0].p, key)):
        variants.setdefault(variant, []).append(by_seed[variant, seed])
    return variants


def _is_vanilla(run: PretrainedRun) -> bool:
    """Whether it is an MLM without repeated tokens."""
    return run.variant.method == MLM and run.variant.r == 1


def _plus_steps(steps: int, agreeing: list[PretrainedRun], runs: Runs) -> dict[float, int]:
    """The number of updates of MLM++ for each mask ratio. MLM++ is a vanilla MLM with more updates
    than its group: the one whose number is closest to the group's times the cost ratio that was
    measured in these runs, or else the ratio of the hours that an update took."""
    longer = [run for run in agreeing if run.steps > steps and _is_vanilla(run)]
    # a method that the paper does not have has costs of its own
    of_paper = [run for run in agreeing if run.steps == steps and run.variant.method in METHODS]
    exlm = [run for run in of_paper if run.variant.method != MLM]
    if not (longer and exlm):
        return {}
    ratios = [runs.costs[run.study].ratio for run in agreeing if run.study in runs.costs]
    ratio = ratios[0] if ratios else _hours_per_step(exlm) / _hours_per_step(longer)
    best = steps * ratio
    closest: dict[float, int] = {}
    # of two that are as close, the longer one
    for mlm in sorted(longer, key=lambda mlm: (abs(mlm.steps - best), -mlm.steps)):
        closest.setdefault(mlm.variant.p, mlm.steps)
    return closest


def _hours_per_step(runs: list[PretrainedRun]) -> float:
    return fmean(run.hours / run.steps for run in runs)


def _compared_finetunings(
    runs: list[PretrainedRun], finetunings: Iterable[FineTuning]
) -> list[FineTuning]:
    """One fine-tuning of each run and task, of those with the task's most frequent settings."""
    ids = {run.id for run in runs}
    candidates = [
        tuning for tuning in finetunings if tuning.model_id in ids and not tuning.from_scratch
    ]
    frequent: dict[str, str] = {}
    counts = Counter((tuning.task, tuning.compared) for tuning in candidates)
    for (task, compared), _ in counts.most_common():
        frequent.setdefault(task, compared)
    first: dict[tuple[str | None, str], FineTuning] = {}
    for tuning in candidates:
        if tuning.compared == frequent[tuning.task]:
            first.setdefault((tuning.model_id, tuning.task), tuning)
    return list(first.values())


def _labels(groups: list[list[PretrainedRun]]) -> list[str]:
    """The labels of groups. Equal ones get the settings that differ; hashes are shortened."""
    settings_by_label = defaultdict(list)
    for runs in groups:
        settings_by_label[_label(runs)].append(runs[0].settings)
    labels = []
    for runs in groups:
        label = _label(runs)
        shared = frozenset.intersection(*settings_by_label[label])
        different = sorted(runs[0].settings.difference(shared))
        labels.append(" · ".join([label, *(f"{name} = {value[:16]}" for name, value in different)]))
    return labels


def _label(runs: list[PretrainedRun]) -> str:
    """The label of a group: corpus, model size, number of updates, and settings of EXLM_ONLY that
    are not the usual ones."""
    # Of all its runs, this one has the most settings and the fewest updates.
    run = max(runs, key=lambda run: (-run.steps, len(run.exlm_only)))
    millions = sorted({f"{run.parameters / 1e6:.1f}" for run in runs}, key=float)
    phrases = [
        run.corpus,
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{'–'.join(dict.fromkeys([millions[0], millions[-1]]))}M parameters",
        f"{run.steps:,} updates of {run.tokens_per_batch:,} tokens",
    ]
    phrases += [f"{name} = {value}" for name, value in run.settings if name == "data.mask_ratio"]
    for name, value in sorted(run.exlm_only, key=str):
        if value != EXLM_ONLY[name]:
            phrases.append(f"{name} = {value}")
    return " · ".join(phrases)
