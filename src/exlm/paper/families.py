"""Families of comparable runs, and what the seeds of each say in the cells of the paper's tables."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from exlm.paper import values as paper
from exlm.paper.page import Number
from exlm.paper.runs import Finetuning, Pretraining, Runs
from exlm.paper.values import MLM, PLUS, Setting, rank
from exlm.paper.variants import Space
from exlm.tasks.datasets import GLUE, MOLECULENET


@dataclass
class Family:
    """Runs that share settings, number of updates and choices of ExLM: they differ in what the experiments vary."""

    shared: frozenset[tuple[str, str]]
    steps: int
    choices: frozenset[tuple[str, Any]]
    label: str = ""
    cells: dict[Setting, list[Pretraining]] = field(default_factory=dict)  # one run per seed
    finetunings: dict[str, dict[str, Finetuning]] = field(default_factory=dict)  # by run id, then task

    @property
    def runs(self) -> list[Pretraining]:
        return [run for cell in self.select(r=None) for run in self.cells[cell]]

    @property
    def tunings(self) -> list[Finetuning]:
        return [tuning for of_run in self.finetunings.values() for tuning in of_run.values()]

    @property
    def tasks(self) -> list[str]:
        """Those with a fine-tuning, the paper's first."""
        known = [*GLUE, "squad2", *MOLECULENET]
        found = {tuning.task for tuning in self.tunings}
        return sorted(found, key=lambda task: (known.index(task) if task in known else len(known), task))

    @property
    def shares(self) -> list[str]:
        """The tasks that are scored in percent."""
        others = {tuning.task for tuning in self.tunings if not tuning.in_percent}
        return [task for task in self.tasks if task not in others]

    @property
    def domain(self) -> str:
        """`molecules` or `text`, as the folders of recipes are called."""
        corpus = Path(self.runs[0].result["recipe"]["data"]["corpus"]).name.lower()
        found = not MOLECULENET.keys().isdisjoint(self.tasks) or "mol" in corpus or "smiles" in corpus
        return "molecules" if found else "text"

    @property
    def base_ratio(self) -> float:
        """15% if there is such a run, else the most frequent mask ratio."""
        counts = Counter(cell.p for cell in self.cells if cell.r == 1)
        return max(counts, key=lambda p: (p == 0.15, counts[p], -p), default=0.15)

    @property
    def base_states(self) -> int:
        """The k of most ablations, else the paper's 4, else the largest of ExLM."""
        ablated = Counter(cell.k for cell in self.cells if cell.method.startswith("ExLM w/"))
        states = {cell.k for cell in self.cells if cell.k > 1}
        return max(states, key=lambda k: (ablated[k], k == 4, k), default=4)

    def select(self, methods: Iterable[str] = (), p: float | None = None, r: int | None = 1) -> list[Setting]:
        """Cells of some methods (else of all), in the order of METHODS, then p, k and r; None selects every p or r."""
        wanted = set(methods) or {cell.method for cell in self.cells}
        found = [c for c in self.cells if c.method in wanted and p in (None, c.p) and r in (None, c.r)]
        return sorted(found, key=lambda c: (rank(c.method), c.p, c.k, c.r))

    def named(self) -> dict[str, Setting]:
        """All cells by description, the family's k also without it, and at the family's mask ratio also by method."""
        cells = self.select(r=None)
        usual = [cell for cell in cells if cell.k in (1, self.base_states)]
        names = {cell.description: cell for cell in cells}
        names |= {cell.description.replace(f", k = {cell.k}", ""): cell for cell in usual}
        return names | {cell.method: cell for cell in usual if (cell.p, cell.r) == (self.base_ratio, 1)}

    def compared(self) -> list[Setting]:
        """ExLM, and the vanilla MLM at the mask ratios at which there is an ExLM."""
        ratios = {cell.p for cell in self.select(["ExLM"])}
        return [cell for cell in self.select([MLM, "ExLM"]) if cell.p in ratios]

    @property
    def grid(self) -> list[Setting]:
        """The cells of the Repeated MLM experiment at our and the paper's p and r; none without repeated tokens."""
        found, usual = self.select([MLM], r=None), Space()
        if all(cell.r == 1 for cell in found):
            return []
        ratios, repeats = [*usual.mask_ratios, *(c.p for c in found)], [*usual.repeats, *(c.r for c in found)]
        return sorted({*found, *(Setting(MLM, 1, p, r) for p, r in Space(ratios, repeats).grid())})

    @cached_property
    def scores(self) -> dict[str, dict[str, list[float]]]:
        """By run id the numbers of every score: one, or one per seed of a fine-tuning."""
        found = {run.id: {name: [value] for name, value in run.scores.items()} for run in self.runs}
        for id, tunings in self.finetunings.items():
            found[id] |= {name: values for tuning in tunings.values() for name, values in tuning.scores.items()}
        return found

    def estimate(self, cell: Setting, *scores: str, of_medians: bool = False) -> Number | None:
        """A score of a cell, or the mean of several: over pre-training seeds, of the mean (or median) over fine-tuning
        seeds. None where no run has all scores. A single seed has the standard error over tokens as spread, if known.
        """
        runs = [run for run in self.cells.get(cell, ()) if scores and self.scores[run.id].keys() >= set(scores)]
        if not runs:
            return None
        found = [[self.scores[run.id][score] for score in scores] for run in runs]
        centers = [fmean((median if of_medians else fmean)(values) for values in of_run) for of_run in found]
        everything = [value for (values,) in found for value in values] if len(scores) == 1 else centers
        error = runs[0].scores.get(f"{scores[0]} error")
        spread = stdev(everything) if len(everything) > 1 else error
        return Number(fmean(centers), spread, paper.DIGITS.get(scores[0], 1), centers)

    def estimates(self, cells: Iterable[Setting], *scores: str) -> dict[Setting, Number]:
        """Of those cells that have one."""
        return {cell: estimate for cell in cells if (estimate := self.estimate(cell, *scores))}


def families(runs: Runs) -> list[Family]:
    """Comparable runs together; the largest family first.

    Runs with the same settings, updates and choices of ExLM found a family. A model without some choices, as an MLM is,
    stands beside all models that agree with it in the others; but repeated tokens, which are compared with no ExLM,
    stand once. MLM++ is the longer vanilla MLM whose updates are closest to the cost ratio of the study (else the
    paper's). Of several runs with one seed, that with the lowest id counts.
    """
    found: list[Family] = []
    everything = sorted(runs.pretrainings.values(), key=lambda run: (run.steps, run.seed, run.id))
    kinds = Counter((run.shared, run.steps, run.choices) for run in everything)
    for (shared, steps, choices), _ in kinds.most_common():
        if any(kind[:2] == (shared, steps) and choices < kind[2] for kind in kinds):
            continue
        family = Family(shared, steps, choices)
        known = {run.id for other in found for run in other.runs}
        alike = [run for run in everything if run.shared == shared and run.choices <= choices]
        ratio = next((runs.costs[run.study]["ratio"] for run in alike if run.study in runs.costs), paper.COST_RATIO)
        longer = {run.steps for run in alike if (run.cell.method, run.cell.r) == (MLM, 1) and run.steps > steps}
        plus_steps = min(longer, key=lambda length: abs(length - ratio * steps), default=0) if choices else 0
        for run in alike:
            plus = run.steps == plus_steps and (run.cell.method, run.cell.r) == (MLM, 1)
            if plus or (run.steps == steps and (run.cell.r == 1 or run.id not in known)):
                of_cell = family.cells.setdefault(run.cell._replace(method=PLUS) if plus else run.cell, [])
                if run.seed not in {other.seed for other in of_cell}:
                    of_cell.append(run)
        found.append(family)
    ids = [{run.id for run in family.runs} for family in found]
    found = [family for family, own in zip(found, ids, strict=True) if not any(own < other for other in ids)]
    for family in found:
        _take_finetunings(family, runs)
        family.label = _label(family)
    for label in {family.label for family in found}:
        same = [family for family in found if family.label == label]
        common = frozenset.intersection(*(family.shared for family in same))
        for family in same:  # equal labels get the settings that differ, hashes shortened
            family.label += "".join(f" · {name} = {value[:16]}" for name, value in sorted(family.shared - common))
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _take_finetunings(family: Family, runs: Runs) -> None:
    """Its fine-tunings; of each task those settings that most of them share, so that only like is compared."""
    everything = [(run.id, tuning) for run in family.runs for tuning in runs.finetunings.get(run.id, [])]
    everything = [(id, tuning) for id, tuning in everything if not tuning.result["settings"].get("from_scratch")]
    counts = Counter((tuning.task, tuning.shared) for _, tuning in everything)
    usual = {task: shared for (task, shared), _ in reversed(counts.most_common())}
    for id, tuning in everything:
        if tuning.shared == usual[tuning.task]:
            family.finetunings.setdefault(id, {}).setdefault(tuning.task, tuning)


def _label(family: Family) -> str:
    """Corpus, size, length, and the choices of ExLM that are not the usual ones."""
    run = family.runs[0]
    data = run.result["recipe"]["data"]
    sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
    words = [
        Path(data["corpus"]).name,
        f"{run.model.num_hidden_layers} layers × {run.model.hidden_size}",
        f"{'–'.join(dict.fromkeys([sizes[0], sizes[-1]]))}M parameters",
        f"{family.steps:,} updates of {data['tokens_per_batch']:,} tokens",
        *(f"{name} = {value}" for name, value in sorted(family.choices, key=str) if value != paper.CHOICES[name]),
    ]
    return " · ".join(words)
