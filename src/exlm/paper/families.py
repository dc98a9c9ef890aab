"""Families of comparable runs, and what the seeds of each say in the cells of the paper's tables."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev, variance
from typing import NamedTuple

from exlm.paper.page import Number
from exlm.paper.runs import Finetuning, Pretraining, Runs
from exlm.paper.values import ABLATED, DIGITS, MLM, PLUS, RATIOS, REPEATS, VANISHING, Setting, in_order
from exlm.tasks.datasets import GLUE, MOLECULENET


@dataclass(frozen=True)
class Estimate(Number):
    """A score of a cell: the mean over pre-training seeds of the mean (or median) over fine-tuning seeds.

    `spread` is the standard deviation over all seeds; of a single one the standard error over tokens, where known.
    """

    value: float
    groups: Sequence[Sequence[float]] = ()  # for every pre-training seed its value, or those of its fine-tuning seeds


class Noise(NamedTuple):
    """The pooled standard deviation of a seed: of `pre-training` where a cell has several, else of `fine-tuning`."""

    deviation: float | None  # None where nothing was run with two seeds
    unit: str

    def error(self, *estimates: Estimate) -> float | None:
        """Standard error of the difference of two estimates, or of one."""
        if self.deviation is None:
            return None
        counts = (len(e.groups) if self.unit == "pre-training" else sum(map(len, e.groups)) for e in estimates)
        return math.hypot(*(self.deviation / math.sqrt(count) for count in counts))


class Sample(NamedTuple):
    """What one pre-training says of a score: its value, or those of the seeds of a fine-tuning."""

    run: Pretraining
    tuning: Finetuning | None
    values: list[float]


@dataclass
class Family:
    """Runs that share settings, number of updates and choices of ExLM: they differ in what the experiments vary."""

    shared: frozenset[tuple[str, str]]
    choices: frozenset[tuple[str, object]]
    chosen: list[str]  # the unusual ones in words
    steps: int
    cells: dict[Setting, list[Pretraining]] = field(default_factory=dict)
    label: str = ""
    cost_ratios: dict[Path | None, float] = field(default_factory=dict)  # measured, by the directory of the study
    finetunings: dict[tuple[str, str], Finetuning] = field(default_factory=dict)  # by run id and task
    left_out: list[Finetuning] = field(default_factory=list)
    repeated: list[Pretraining] = field(default_factory=list)  # with the seed of another run, or MLM++ of other length

    @property
    def runs(self) -> list[Pretraining]:
        return [run for runs in self.cells.values() for run in runs]

    @property
    def runs_by_cell(self) -> list[tuple[Setting, Pretraining]]:
        """All runs with their cells, in the order of `select`."""
        return [(cell, run) for cell in self.select(r=None) for run in self.cells[cell]]

    @property
    def tasks(self) -> list[str]:
        """Those with a fine-tuning, the paper's first."""
        found, known = {task for _, task in self.finetunings}, [*GLUE, "squad2", *MOLECULENET]
        return [*(task for task in known if task in found), *sorted(found - set(known))]

    @property
    def shares(self) -> list[str]:
        """The tasks that are scored in percent."""
        others = {tuning.task for tuning in self.finetunings.values() if not tuning.in_percent}
        return [task for task in self.tasks if task not in others]

    @property
    def molecules(self) -> bool:
        corpus = Path(self.runs[0].result["recipe"]["data"]["corpus"]).name.lower()
        return not MOLECULENET.keys().isdisjoint(self.tasks) or "mol" in corpus or "smiles" in corpus

    @property
    def of_the_papers_size(self) -> bool:
        return self.runs[0].result["recipe"]["model"]["hidden_size"] >= 768

    @property
    def base_ratio(self) -> float:
        """15% if there is such a run, else the most frequent mask ratio."""
        counts = Counter(cell.p for cell in self.cells if cell.r == 1)
        return max(counts, key=lambda p: (p == 0.15, counts[p], -p), default=0.15)

    @property
    def base_states(self) -> int:
        """The k of most ablations, else the paper's 4, else the largest of ExLM."""
        ablated = Counter(cell.k for cell in self.select(ABLATED, self.base_ratio))
        states = {cell.k for cell in self.select([*ABLATED, "ExLM"], self.base_ratio)}
        return max(states, key=lambda k: (ablated[k], k == 4, k), default=4)

    def select(self, methods: Iterable[str] = (), p: float | None = None, r: int | None = 1) -> list[Setting]:
        """Cells of some methods (else of all), in the order of METHODS, then p, k and r; None selects every p or r."""
        order = in_order(methods or {cell.method for cell in self.cells})
        found = [c for c in self.cells if c.method in order and p in (None, c.p) and r in (None, c.r)]
        return sorted(found, key=lambda c: (order.index(c.method), c.p, c.k, c.r))

    def named(self) -> dict[str, Setting]:
        """The cells of the ablations by method."""
        return {c.method: c for c in self.select(p=self.base_ratio) if c.k in (1, self.base_states)}

    def compared(self) -> list[Setting]:
        """ExLM, and the vanilla MLM at the mask ratios at which there is an ExLM."""
        ratios = {cell.p for cell in self.select(["ExLM"])}
        return [cell for cell in self.select([MLM, "ExLM"]) if cell.p in ratios]

    @property
    def grid(self) -> list[Setting]:
        """The cells of the Repeated MLM experiment, of which r = 1 is the vanilla MLM; none without repeated tokens."""
        cells = self.select([MLM], r=None)
        return cells if any(cell.r > 1 for cell in cells) else []

    @property
    def full_grid(self) -> list[Setting]:
        """With the paper's cells that have no run. Those in which corrupted semantics vanish are left out."""
        ratios, repeats = sorted({*RATIOS, *(c.p for c in self.grid)}), sorted({*REPEATS, *(c.r for c in self.grid)})
        cells = [Setting(MLM, 1, p, r) for p in ratios for r in repeats]
        return [cell for cell in cells if cell in self.cells or cell.hidden >= VANISHING]

    @cached_property
    def values(self) -> dict[tuple[Setting, str], list[Sample]]:
        """Every number of the family by cell and score."""
        found: dict[tuple[Setting, str], list[Sample]] = defaultdict(list)
        for cell, run in self.runs_by_cell:
            for score, value in run.scores.items():
                found[cell, score].append(Sample(run, None, [value]))
            for tuning in (tuning for (id, _), tuning in self.finetunings.items() if id == run.id):
                for score, values in tuning.scores.items():
                    found[cell, score].append(Sample(run, tuning, values))
        return found

    def estimate(self, cell: Setting | None, score: str, of_medians: bool = False) -> Estimate | None:
        """What the seeds of a cell say, with the runs in its note; None where nothing was run."""
        if not (samples := self.values.get((cell, score)) if cell else None):
            return None
        groups = [sample.values for sample in samples]
        everything = [value for group in groups for value in group]
        error = samples[0].run.scores.get(f"{score} error")
        sizes = "–".join(map(str, sorted({len(group) for group in groups})))
        ids = " ".join(f"{run.id} {tuning.id}" if tuning else run.id for run, tuning, _ in samples)
        how = f"{'mean of medians' if of_medians else 'mean'} of {len(groups)} × {sizes}"
        caveats = sorted({word for _, tuning, _ in samples if tuning for word in tuning.caveats})
        return Estimate(
            value=fmean((median if of_medians else fmean)(group) for group in groups),
            spread=stdev(everything) if len(everything) > 1 else error,
            digits=DIGITS.get(score, 1),
            note="; ".join([f"{how} (pre-training × fine-tuning) seeds; runs {ids}", *caveats]),
            mark="†" if caveats else "",
            groups=groups,
        )

    def estimates(self, cells: Iterable[Setting], score: str) -> dict[Setting, Estimate]:
        """Of those cells that have one."""
        return {cell: estimate for cell in cells if (estimate := self.estimate(cell, score))}

    def mean(self, cell: Setting | None, scores: Sequence[str], of_medians: bool = False) -> float | None:
        """Over tasks, if every one was run."""
        found = [self.estimate(cell, score, of_medians) for score in scores]
        return fmean(e.value for e in found if e) if found and all(found) else None

    def noise(self, score: str) -> Noise:
        """Pooled over all cells; of pre-training seeds if any cell has two."""
        groups = [[sample.values for sample in found] for (_, name), found in self.values.items() if name == score]
        samples: dict[str, list[Sequence[float]]] = {
            "pre-training": [[fmean(values) for values in seeds] for seeds in groups],
            "fine-tuning": [values for seeds in groups for values in seeds],
        }
        for unit, pool in samples.items():
            if freedom := sum(len(values) - 1 for values in pool):
                squares = sum((len(values) - 1) * variance(values) for values in pool if len(values) > 1)
                return Noise(math.sqrt(squares / freedom), unit)
        return Noise(None, "fine-tuning")


def families(runs: Runs) -> list[Family]:
    """Comparable runs together; the largest family first.

    A family is founded by a model that fits into none so far; those with most choices come first, which is ExLM. A
    model without some choices, as an MLM is, fits into every family that agrees with it in the others. A vanilla MLM
    that is longer than ExLM is its MLM++, of the length with most seeds. Repeated tokens are compared with no ExLM,
    and stand in the largest family alone.
    """
    found: list[Family] = []
    count = Counter((run.shared, run.cell, run.steps) for run in runs.pretrainings.values())

    def order(run: Pretraining) -> tuple[int, int, int, int, str]:
        return -len(run.choices), -count[run.shared, run.cell, run.steps], run.steps, run.seed, run.id

    for run in sorted(runs.pretrainings.values(), key=order):
        alike = [f for f in found if f.shared == run.shared and f.choices >= run.choices and f.steps <= run.steps]
        longest = {f.choices: max(g.steps for g in alike if g.choices == f.choices) for f in alike}
        plain = run.cell.method == MLM and run.cell.r == 1
        fitting = [f for f in alike if f.steps == run.steps or (plain and f.choices and f.steps == longest[f.choices])]
        if run.cell.r > 1:
            fitting = sorted(fitting, key=lambda f: (-len(f.runs), f.chosen))[:1]
        if not fitting:
            fitting = [Family(run.shared, run.choices, run.chosen, run.steps)]
            found += fitting
        for family in fitting:
            cell = run.cell if family.steps == run.steps else run.cell._replace(method=PLUS)
            others = family.cells.setdefault(cell, [])
            twice = any(run.seed == other.seed or run.steps != other.steps for other in others)  # a seed counts once
            (family.repeated if twice else others).append(run)
    for family in found:
        _take_finetunings(family, runs)
        family.cost_ratios = {path.parent: content["ratio"] for path, content in runs.costs}
        family.label = _label(family)
    for label in {family.label for family in found}:  # where two agree, the settings in which the families differ
        same = [family for family in found if family.label == label]
        common = frozenset.intersection(*(family.shared for family in same))
        for family in same:
            own = sorted(family.shared - common)
            family.label += "".join(f" · {name.split('.')[-1]} {str(json.loads(value))[:12]}" for name, value in own)
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _take_finetunings(family: Family, runs: Runs) -> None:
    """Its fine-tunings; of each task those settings that most of them share, so that only like is compared."""
    everything = [(run, tuning) for run in family.runs for tuning in runs.finetunings.get(run.id, [])]
    counts = Counter((t.task, t.shared) for _, t in everything if not t.settings.get("from_scratch"))
    usual = {task: shared for (task, shared), _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))}
    for run, tuning in everything:
        used = not tuning.settings.get("from_scratch") and tuning.shared == usual[tuning.task]
        if used and (run.id, tuning.task) not in family.finetunings:
            family.finetunings[run.id, tuning.task] = tuning
        else:
            family.left_out.append(tuning)


def _label(family: Family) -> str:
    """Corpus, vocabulary, size and length, as far as they are known."""
    run = family.runs[0]
    model, data = run.result["recipe"]["model"], run.result["recipe"]["data"]
    sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
    tokens = f" of {data['tokens_per_batch']:,} tokens" if data.get("tokens_per_batch") else ""
    words = [
        Path(data["corpus"]).name,
        f"vocabulary {run.vocabulary:,}" if run.vocabulary is not None else "",
        f"{model['num_hidden_layers']} layers × {model['hidden_size']}",
        f"{'–'.join(dict.fromkeys([sizes[0], sizes[-1]]))}M parameters",
        f"{family.steps:,} updates{tokens}",
        *family.chosen,
    ]
    return " · ".join(filter(None, words))
