"""Families of comparable runs, and what each has in the cells of the paper's tables."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from exlm.paper.cells import (
    ABLATED,
    ENTROPY,
    HELD_OUT,
    METHODS,
    MLM,
    PLUS,
    TITLES,
    Estimate,
    Noise,
    Score,
    Setting,
    pooled,
)  # fmt: skip
from exlm.paper.runs import Finetuning, Pretraining, Runs
from exlm.paper.values import RATIOS, REPEATS, VANISHING
from exlm.tasks.datasets import GLUE, MOLECULENET
from exlm.tasks.metrics import LOWER_IS_BETTER


@dataclass
class Family:
    """Runs that differ only in what the experiments vary."""

    steps: int
    cells: dict[Setting, list[Pretraining]] = field(default_factory=dict)
    label: str = ""
    finetunings: dict[tuple[str, str], Finetuning] = field(default_factory=dict)  # by run id and task
    left_out: list[Finetuning] = field(default_factory=list)
    repeated: list[Pretraining] = field(default_factory=list)  # with the seed of another run, or MLM++ of other length
    cost_ratios: dict[Path, float] = field(default_factory=dict)  # by the directory of the study

    @property
    def runs(self) -> list[Pretraining]:
        return [run for runs in self.cells.values() for run in runs]

    @property
    def scores(self) -> list[Score]:
        """The tasks with a fine-tuning, the paper's first."""
        found, known = {task for _, task in self.finetunings}, [*GLUE, "squad2", *MOLECULENET]
        return [Score(task) for task in (*(t for t in known if t in found), *sorted(found - set(known)))]

    @property
    def shares(self) -> list[Score]:
        """Of the tasks that are scored in percent."""
        errors = {task for (_, task), t in self.finetunings.items() if t.result["metric"] in LOWER_IS_BETTER}
        return [score for score in self.scores if score.task not in errors]

    @property
    def molecules(self) -> bool:
        corpus = Path(self.runs[0].data["corpus"]).name.lower()
        tasks = {score.task for score in self.scores}
        return bool(tasks & set(MOLECULENET)) or any(word in corpus for word in ("mol", "smiles"))

    @property
    def caveats(self) -> list[str]:
        """How the data of its fine-tunings differ from the published."""
        found = {(task, word) for (_, task), t in self.finetunings.items() for word in t.caveats}
        return [f"{TITLES.get(task, task)}: {word}" for task, word in sorted(found)]

    @property
    def base_ratio(self) -> float:
        """15% if there is such a run, else the most frequent mask ratio."""
        counts = Counter(cell.p for cell in self.cells if cell.r == 1)
        return 0.15 if 0.15 in counts or not counts else min(counts, key=lambda p: (-counts[p], p))

    @property
    def base_states(self) -> int:
        """The k of the ablations, else the paper's 4, else the largest of ExLM."""
        counts = Counter(cell.k for cell in self.select(ABLATED, self.base_ratio))
        states = {cell.k for cell in self.select(["ExLM"], self.base_ratio)}
        if counts:
            return min(counts, key=lambda k: (-counts[k], k != 4, k))
        return 4 if 4 in states or not states else max(states)

    def select(self, methods: Iterable[str], p: float | None = None, r: int | None = 1) -> list[Setting]:
        """Cells of some methods, in the order of METHODS, then k, p and r; None selects every p or r."""
        wanted = set(methods)
        found = [c for c in self.cells if c.method in wanted and p in (None, c.p) and r in (None, c.r)]
        return sorted(found, key=lambda c: (METHODS.index(c.method), c.p, c.k, c.r))

    def named(self) -> dict[str, Setting]:
        """The cells of the ablations by method."""
        return {c.method: c for c in self.select(METHODS, self.base_ratio) if c.k in (1, self.base_states)}

    def compared(self) -> list[Setting]:
        """ExLM, and the vanilla MLM at the mask ratios at which there is an ExLM."""
        ratios = {cell.p for cell in self.select(["ExLM"])}
        return [cell for cell in self.select([MLM, "ExLM"]) if cell.p in ratios]

    @property
    def grid(self) -> list[Setting]:
        """The cells of the Repeated MLM experiment, of which r = 1 is the vanilla MLM."""
        return self.select([MLM], r=None)

    @property
    def repeats(self) -> bool:
        """Whether it has models of repeated tokens."""
        return any(cell.r > 1 for cell in self.grid)

    @property
    def axes(self) -> tuple[list[float], list[int]]:
        """The mask ratios and repetitions of the paper and of the runs."""
        return sorted({*RATIOS, *(c.p for c in self.grid)}), sorted({*REPEATS, *(c.r for c in self.grid)})

    @property
    def full_grid(self) -> list[Setting]:
        """Where there is a run, or could be one because the share of corrupted semantics does not vanish."""
        ratios, repeats = self.axes
        cells = [Setting(MLM, 1, p, r) for p in ratios for r in repeats]
        return [cell for cell in cells if cell in self.cells or cell.hidden >= VANISHING]

    def estimate(self, cell: Setting, score: Score) -> Estimate | None:
        """What the seeds of a cell say, if there are any."""
        groups, ids, caveats = [], [], set()
        for run in self.cells.get(cell, []):
            tuning = self.finetunings.get((run.id, score.task))
            if score.task == HELD_OUT:
                values = [run.scores[score.metric]] if score.metric in run.scores else []
            else:
                values = tuning.values(score.metric, score.split) if tuning else []
            if values:
                groups.append(values)
                ids += [run.id, tuning.id] if tuning else [run.id]
                caveats |= set(tuning.caveats if tuning else [])
        return Estimate(groups, ids, score.median, tuple(sorted(caveats))) if groups else None

    def estimates(self, cells: Iterable[Setting], score: Score) -> dict[Setting, Estimate]:
        """Of those cells that have one."""
        return {cell: estimate for cell in cells if (estimate := self.estimate(cell, score))}

    def mean(self, cell: Setting, scores: Sequence[Score]) -> float | None:
        """Over tasks, if every one was run."""
        found = [self.estimate(cell, score) for score in scores]
        return fmean(e.value for e in found if e) if found and all(found) else None

    def noise(self, score: Score) -> Noise | None:
        """Pooled over all cells; None where nothing was run with two seeds."""
        found = self.estimates(self.cells, score).values()
        between, within = pooled(e.centers for e in found), pooled(group for e in found for group in e.groups)
        if between is not None:
            return Noise(between, "pre-training")
        return None if within is None else Noise(within, "fine-tuning")

    def measured(self, cell: Setting, section: str) -> list[dict[str, Any]]:
        """The entropy or the corruption of every seed of a cell, where it was measured."""
        return [found for run in self.cells.get(cell, []) if (found := run.measurements.get(section))]

    def entropy_error(self, cell: Setting, score: Score) -> float:
        """Standard deviation over pre-training seeds, or the standard error over tokens of a single one."""
        estimate = self.estimate(cell, score)
        if estimate and estimate.spread is not None:
            return estimate.spread
        found = [m if score == ENTROPY else m.get("states") or {} for m in self.measured(cell, "entropy")]
        return next((entropy["stderr"] for entropy in found if entropy.get("stderr") is not None), 0.0)


def families(runs: Runs) -> list[Family]:
    """Comparable runs together; the largest family first."""
    groups: dict[Any, list[Pretraining]] = defaultdict(list)
    for run in runs.pretrainings:
        groups[run.shared].append(run)
    every = [family for group in groups.values() for like in _by_choices(group) for family in _by_steps(like)]
    every.sort(key=lambda family: -len(family.runs))
    ids = [{run.id for run in family.runs} for family in every]
    found = [family for i, family in enumerate(every) if not any(ids[i] <= larger for larger in ids[:i])]
    for family in found:
        _take_finetunings(family, runs)
        family.cost_ratios = {path.parent: content["ratio"] for path, content in runs.costs}
        family.label = _label(family)
    _tell_apart(found)
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _by_choices(group: list[Pretraining]) -> list[list[Pretraining]]:
    """ExLM runs of equal choices, the most runs first; those that do not have some of them stand beside all that do.

    That is a vanilla MLM; but the grid of repeated tokens, which is compared with no ExLM, stands once.
    """
    found = dict.fromkeys(run.choices for run in group)
    widest = [choices for choices in found if not any(choices < other for other in found)]
    alike = [[run for run in group if run.choices <= choices] for choices in widest]
    first, *others = sorted(alike, key=len, reverse=True)
    return [first, *([run for run in other if run.data.get("repeat", 1) == 1] for other in others)]


def _by_steps(group: list[Pretraining]) -> list[Family]:
    """Runs of equal length; a vanilla MLM longer than the ExLM runs is their MLM++, of the most frequent length."""
    lengths = sorted({run.steps for run in group if run.method.startswith("ExLM")} or {run.steps for run in group})
    found: dict[int, Family] = {}
    counts = Counter((run.data["mask_ratio"], run.steps) for run in group)
    for run in sorted(group, key=lambda r: (-counts[r.data["mask_ratio"], r.steps], r.steps, r.seed, r.id)):
        p, repeat = run.data["mask_ratio"], run.data.get("repeat", 1)
        shorter = [steps for steps in lengths if steps < run.steps]
        plus = run.steps not in lengths and bool(shorter) and run.method == MLM and repeat == 1
        method, steps = (PLUS, shorter[-1]) if plus else (run.method, run.steps)
        family = found.setdefault(steps, Family(steps))
        others = family.cells.setdefault(Setting(method, run.states, p, repeat), [])
        twice = any(run.seed == other.seed or run.steps != other.steps for other in others)  # a seed counts once
        (family.repeated if twice else others).append(run)
    return list(found.values())


def _take_finetunings(family: Family, runs: Runs) -> None:
    """Its fine-tunings; of each task those settings that most of them share, so that only like is compared."""
    everything = [(run, tuning) for run in family.runs for tuning in runs.by_model.get(run.id, [])]
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
    sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
    tokens = f" of {run.data['tokens_per_batch']:,} tokens" if run.data.get("tokens_per_batch") else ""
    words = [
        Path(run.data["corpus"]).name,
        f"vocabulary {run.vocabulary:,}" if run.vocabulary is not None else "",
        f"{run.model['num_hidden_layers']} layers × {run.model['hidden_size']}",
        f"{'–'.join(dict.fromkeys([sizes[0], sizes[-1]]))}M parameters",
        f"{family.steps:,} updates{tokens}",
        *max((run.chosen for run in family.runs), key=len),
    ]
    return " · ".join(filter(None, words))


def _tell_apart(found: list[Family]) -> None:
    """Where two labels agree, adds the settings in which the families differ."""
    for label in {family.label for family in found}:
        same = [family for family in found if family.label == label]
        keys: list[set[Any]] = [set(family.runs[0].shared) for family in same]
        for family, key in zip(same, keys, strict=True):
            own = sorted(key - set.intersection(*keys))
            family.label += "".join(f" · {name.split('.')[-1]} {str(json.loads(value))[:12]}" for name, value in own)
