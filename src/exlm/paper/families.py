"""Groups comparable runs into families, and averages their seeds for each cell of the paper's
tables."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, stdev, variance
from typing import Any

from exlm.data.corpus import corpus_name
from exlm.paper.analyze import Space
from exlm.paper.page import Number
from exlm.paper.runs import Finetuning, Pretraining, Runs
from exlm.paper.values import CHOICES, DIGITS, MLM, PLUS, HeldOut, Setting, order
from exlm.tasks.datasets import GLUE, MOLECULENET

Scores = dict[str, list[float]]  # a number per fine-tuning seed


@dataclass
class Family:
    """Runs with equal settings and updates and the same CHOICES of ExLM. They differ only in what
    experiments vary."""

    shared: frozenset[tuple[str, str]]
    steps: int
    choices: frozenset[tuple[str, Any]]
    runs: list[Pretraining]  # one per cell and seed, sorted by cells
    label: str = ""

    @cached_property
    def cells(self) -> dict[Setting, list[Pretraining]]:
        return {
            run.cell: [other for other in self.runs if other.cell == run.cell] for run in self.runs
        }

    @property
    def tunings(self) -> list[Finetuning]:
        return [tuning for run in self.runs for tuning in run.tunings.values()]

    @property
    def tasks(self) -> list[str]:
        """The tasks on which a run was fine-tuned; the paper's tasks come first."""
        known = [*GLUE, "squad2", *MOLECULENET]
        found = {tuning.task for tuning in self.tunings}
        return sorted(
            found, key=lambda task: (known.index(task) if task in known else len(known), task)
        )

    @property
    def shares(self) -> list[str]:
        """The tasks that are scored in percent."""
        others = {tuning.task for tuning in self.tunings if not tuning.in_percent}
        return [task for task in self.tasks if task not in others]

    @property
    def base_ratio(self) -> float:
        """The mask ratio of the ablations: 15% if there is such a run, else the most frequent
        one."""
        counts = Counter(cell.p for cell in self.cells if cell.r == 1)
        return max(counts, key=lambda p: (p == 0.15, counts[p], -p), default=0.15)

    @property
    def base_states(self) -> int:
        """The k of most ablation cells. Without any, it is 4, as in the paper, or else the largest
        k."""
        ablated = Counter(cell.k for cell in self.cells if cell.method.startswith("ExLM w/"))
        states = {cell.k for cell in self.cells if cell.k > 1}
        return max(states, key=lambda k: (ablated[k], k == 4, k), default=4)

    def select(self, *methods: str) -> list[Setting]:
        """The cells with these methods and without repeated tokens."""
        return [cell for cell in self.cells if cell.method in methods and cell.r == 1]

    def named(self) -> dict[str, Setting]:
        """All cells by name. A name may leave out `base_states`; at `base_ratio` and r = 1 the
        method is enough."""
        usual = [cell for cell in self.cells if cell.k in (1, self.base_states)]
        names = {cell.description: cell for cell in self.cells}
        names |= {cell.description.replace(f", k = {cell.k}", ""): cell for cell in usual}
        return names | {
            cell.method: cell for cell in usual if (cell.p, cell.r) == (self.base_ratio, 1)
        }

    def compared(self) -> list[Setting]:
        """The cells of ExLM, and those of the vanilla MLM at the same mask ratios."""
        ratios = {cell.p for cell in self.select("ExLM")}
        return [cell for cell in self.select(MLM, "ExLM") if cell.p in ratios]

    @property
    def grid(self) -> list[Setting]:
        """The cells of Repeated MLM, for the paper's p and r and ours. It is empty if no run
        repeated its tokens."""
        found, usual = [cell for cell in self.cells if cell.method == MLM], Space()
        if all(cell.r == 1 for cell in found):
            return []
        ratios, repeats = (
            [*usual.mask_ratios, *(c.p for c in found)],
            [*usual.repeats, *(c.r for c in found)],
        )
        return sorted({*found, *(Setting(MLM, 1, p, r) for p, r in Space(ratios, repeats).grid())})

    def estimate(self, cell: Setting, *scores: str, of_medians: bool = False) -> Number | None:
        """A score of a cell, or the mean of several scores; see `mean_and_spread`."""
        return mean_and_spread(
            [run.every_score for run in self.cells.get(cell, ())], scores, of_medians
        )

    def estimates(self, cells: Iterable[Setting], *scores: str) -> dict[Setting, Number]:
        """The estimate of each of these cells that has one."""
        return {cell: estimate for cell in cells if (estimate := self.estimate(cell, *scores))}


def mean_and_spread(runs: list[Scores], scores: Collection[str], of_medians: bool) -> Number | None:
    """The mean of `scores` over those `runs` that have all of them; None if there is none. The mean
    (or median) over fine-tuning seeds is taken first, then the mean over runs. The spread is the
    standard deviation over all seeds; if there is only one number, it is the standard error over
    tokens, if known."""
    found = [
        [run[score] for score in scores] for run in runs if scores and run.keys() >= set(scores)
    ]
    if not found:
        return None
    first, *others = scores
    centers = [
        fmean((median if of_medians else fmean)(values) for values in of_run) for of_run in found
    ]
    everything = centers if others else [value for (values,) in found for value in values]
    (error,) = next(run for run in runs if first in run).get(f"{first} error", [None])
    spread = stdev(everything) if len(everything) > 1 else error
    return Number(fmean(centers), spread, DIGITS.get(first, 1), centers)


def standard_error(terms: Sequence[tuple[float, Number]]) -> float | None:
    """The standard error of a sum of weighted cells, pooled over their pre-training seeds; None if
    a cell has one."""
    seeds = [estimate.centers for _, estimate in terms]
    if min(map(len, seeds)) < 2:
        return None
    pooled = sum((len(values) - 1) * variance(values) for values in seeds) / sum(
        len(values) - 1 for values in seeds
    )
    return math.sqrt(pooled * sum(weight**2 / len(estimate.centers) for weight, estimate in terms))


def verdict(difference: float, error: float | None) -> str:
    """The verdict on a claim. It is decided if the sum is farther from 0 than two standard
    errors."""
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    return "shows" if difference > 0 else "does not show"


def families(runs: Runs) -> list[Family]:
    """Groups comparable runs; the largest family comes first. A family has the same settings,
    number of updates and choices of ExLM. An MLM has of these only its positions, so it joins every
    family that agrees in these and in the rest. MLMs on repeated tokens are compared with no ExLM,
    so they join only one family. MLM++ is a vanilla MLM with more updates: for each p the one whose
    number of updates is closest to the family's times the cost ratio that was measured in these
    runs, or else the one whose training took the most similar time. If runs of a cell share a seed,
    the lowest id is used."""
    found: list[Family] = []
    everything = sorted(runs.pretrainings.values(), key=lambda run: (run.steps, run.seed, run.id))
    kinds = Counter((run.shared, run.steps, run.choices) for run in everything)
    for (shared, steps, choices), _ in kinds.most_common():
        if any(kind[:2] == (shared, steps) and choices < kind[2] for kind in kinds):
            continue
        known = {run.id for other in found for run in other.runs}
        alike = [run for run in everything if run.shared == shared and run.choices <= choices]
        ours = [run for run in alike if run.cell.method != MLM and run.steps == steps]
        ratio = next(
            (runs.costs[run.study]["ratio"] for run in alike if run.study in runs.costs), None
        )
        plain = [
            run
            for run in alike
            if ours and (run.cell.method, run.cell.r) == (MLM, 1) and run.steps > steps
        ]
        nearest_last = sorted(plain, key=lambda run: _cost_apart(run, ours, ratio), reverse=True)
        plus_steps = {run.cell.p: run.steps for run in nearest_last}
        chosen: dict[tuple[Setting, int], Pretraining] = {}  # by cell and seed
        for run in alike:
            plus = run.steps == plus_steps.get(run.cell.p) and (run.cell.method, run.cell.r) == (
                MLM,
                1,
            )
            if plus or (run.steps == steps and (run.cell.r == 1 or run.id not in known)):
                cell = run.cell._replace(method=PLUS) if plus else run.cell
                chosen.setdefault((cell, run.seed), replace(run, cell=cell, tunings={}))
        found.append(
            Family(shared, steps, choices, sorted(chosen.values(), key=lambda run: order(run.cell)))
        )
    ids = [{run.id for run in family.runs} for family in found]
    found = [
        family
        for family, own in zip(found, ids, strict=True)
        if not any(own < other for other in ids)
    ]
    for family in found:
        made = ((run, tuning) for run in family.runs for tuning in runs.finetunings.get(run.id, []))
        tuned = [
            (run, tuning)
            for run, tuning in made
            if not tuning.result["settings"].get("from_scratch")
        ]
        times = Counter((tuning.task, tuning.shared) for _, tuning in tuned)
        usual = {task: shared for (task, shared), _ in reversed(times.most_common())}
        for run, tuning in tuned:  # of each task only those with the most frequent settings count
            if tuning.shared == usual[tuning.task]:
                run.tunings.setdefault(tuning.task, tuning)
        family.label = _label(family)
    for label in {family.label for family in found}:
        same = [family for family in found if family.label == label]
        common = frozenset.intersection(*(family.shared for family in same))
        # if labels are equal, adds the settings that differ; hashes are shortened
        for family in same:
            family.label += "".join(
                f" · {name} = {value[:16]}" for name, value in sorted(family.shared - common)
            )
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _cost_apart(mlm: Pretraining, ours: list[Pretraining], ratio: float | None) -> float:
    """How far an MLM is from the cost of ExLM: in updates if the ratio of costs was measured, else
    in logged hours."""
    if ratio is not None:
        return abs(mlm.steps - ratio * ours[0].steps)
    hours = [run.scores[HeldOut.HOURS] for run in ours if run.cell.p == mlm.cell.p]
    return abs(mlm.scores[HeldOut.HOURS] - fmean(hours)) if hours else 0.0


def _label(family: Family) -> str:
    """The name of a family: corpus, model size, number of updates, and choices of ExLM that are not
    the usual ones."""
    run = family.runs[0]
    data = run.result["recipe"]["data"]
    sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
    words = [
        corpus_name(data["corpus"]),
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{'–'.join(dict.fromkeys([sizes[0], sizes[-1]]))}M parameters",
        f"{family.steps:,} updates of {data['tokens_per_batch']:,} tokens",
        *(f"{name} = {value}" for name, value in family.shared if name == "data.mask_ratio"),
        *(
            f"{name} = {value}"
            for name, value in sorted(family.choices, key=str)
            if value != CHOICES[name]
        ),
    ]
    return " · ".join(words)
