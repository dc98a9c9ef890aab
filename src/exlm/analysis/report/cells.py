"""Families of comparable runs, their cells (method, k, p, r), and what a cell's seeds say."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from exlm.analysis.report.estimates import Estimate, Noise, pooled
from exlm.analysis.report.runs import Finetuning, Pretraining, Runs
from exlm.tasks.glue import GLUE
from exlm.tasks.metrics import LOWER_IS_BETTER
from exlm.tasks.molnet import MOLECULENET

HELD_OUT = "held-out"
TITLES = {
    "mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE", "sst-2": "SST-2", "cola": "CoLA", "mrpc": "MRPC",
    "sts-b": "STS-B", "squad2": "SQuAD 2.0", "bace": "BACE", "bbbp": "BBBP", "tox21": "Tox21", "sider": "SIDER",
    "muv": "MUV", "clintox": "ClinTox", "toxcast": "ToxCast", "esol": "ESOL", "freesolv": "FreeSolv",
    "lipophilicity": "Lipophilicity",
}  # fmt: skip
METHODS = (
    "Vanilla MLM", "Vanilla MLM++", "ExLM w/o 2D RoPE", "ExLM w/o Transitions", "ExLM w/o Transitions and 2D RoPE",
    "ExLM w/ Sparse DAG", "ExLM w/o 2D RoPE w/ Sparse DAG", "ExLM",
)  # fmt: skip


class Setting(NamedTuple):
    """A cell of the paper's tables."""

    method: str
    k: int
    p: float
    r: int = 1


class Score(NamedTuple):
    """A number of a run: of a task, or of held-out text; the run's own metric and part where not said."""

    task: str
    metric: str | None = None
    part: str | None = None
    median: bool = False


ACCURACY, PERPLEXITY = Score(HELD_OUT, "accuracy"), Score(HELD_OUT, "perplexity")
ENTROPY, STATE_ENTROPY = Score(HELD_OUT, "entropy"), Score(HELD_OUT, "state entropy")
CORRUPTION, HOURS = Score(HELD_OUT, "corruption"), Score(HELD_OUT, "hours")


def held_out(run: Pretraining, metric: str) -> float | None:
    """A number of a pre-training run, in the unit it is shown in."""
    measured = run.measurements or {}
    entropy, corruption = measured.get("entropy") or {}, measured.get("corruption") or {}
    if metric in ("accuracy", "corruption"):
        share = run.result["evaluation"]["accuracy"] if metric == "accuracy" else corruption.get("mean")
        return None if share is None else 100 * share
    return {
        "perplexity": run.result["evaluation"]["perplexity"],
        "hours": run.result["training_seconds"] / 3600,
        "entropy": entropy.get("mean"),
        "state entropy": (entropy.get("states") or {}).get("mean"),
    }[metric]


@dataclass
class Family:
    """Runs that differ only in what the experiments vary."""

    steps: int
    cells: dict[Setting, list[Pretraining]]
    label: str = ""
    tunings: dict[tuple[str, str], Finetuning] = field(default_factory=dict)  # by run id and task
    scratch: dict[str, list[Finetuning]] = field(default_factory=dict)
    left_out: list[Finetuning] = field(default_factory=list)

    @property
    def runs(self) -> list[Pretraining]:
        return [run for runs in self.cells.values() for run in runs]

    @property
    def tasks(self) -> list[str]:
        """With a fine-tuning, the paper's first."""
        found, known = {task for _, task in self.tunings}, [*GLUE, "squad2", *MOLECULENET]
        return [task for task in known if task in found] + sorted(found - set(known))

    @property
    def molecules(self) -> bool:
        corpus = Path(self.runs[0].recipe["data"]["corpus"]).name.lower()
        return bool(set(self.tasks) & set(MOLECULENET)) or any(word in corpus for word in ("mol", "smiles"))

    def select(self, methods: Iterable[str], p: float | None = None, r: int | None = 1) -> list[Setting]:
        """Cells of some methods, in the order of METHODS, then p, k and r."""
        wanted = set(methods)
        found = [c for c in self.cells if c.method in wanted and (p is None or c.p == p) and (r is None or c.r == r)]
        return sorted(found, key=lambda c: (METHODS.index(c.method), c.p, c.k, c.r))

    def estimate(self, cell: Setting | None, score: Score) -> Estimate | None:
        """What a cell's seeds say; None as the cell means random weights."""
        if cell is None:
            sources = [([t.id], t) for t in self.scratch.get(score.task, [])]
        elif score.task == HELD_OUT:
            numbers = [(held_out(run, str(score.metric)), run.id) for run in self.cells.get(cell, [])]
            known = [(number, run) for number, run in numbers if number is not None]
            return Estimate(tuple((n,) for n, _ in known), tuple(run for _, run in known)) if known else None
        else:
            pairs = [(run, self.tunings.get((run.id, score.task))) for run in self.cells.get(cell, [])]
            sources = [([run.id, tuning.id], tuning) for run, tuning in pairs if tuning]
        found = [(ids, tuning, tuning.values(score.metric, score.part)) for ids, tuning in sources]
        groups = tuple(tuple(v * _factor(score, t) for v in values) for _, t, values in found if values)
        ids = tuple(i for ids, _, values in found if values for i in ids)
        departures = {word for _, t, _ in found for word in t.result["settings"].get("departures") or []}
        return Estimate(groups, ids, score.median, tuple(sorted(departures))) if groups else None

    def noise(self, score: Score) -> Noise | None:
        """Pooled over all cells; None where nothing was run with two seeds."""
        found = [e for e in (self.estimate(cell, score) for cell in self.cells) if e]
        between = pooled([e.centers for e in found])
        within = pooled([group for e in found for group in e.groups])
        if between is not None:
            return Noise(between, "pre-training")
        return None if within is None else Noise(within, "fine-tuning")

    @property
    def departures(self) -> list[str]:
        """How the data of its fine-tunings differ from the published."""
        found = {
            (task, word)
            for (_, task), t in self.tunings.items()
            for word in t.result["settings"].get("departures") or []
        }
        return [f"{TITLES.get(task, task)}: {word}" for task, word in sorted(found)]

    def lower_is_better(self, task: str) -> bool:
        return any(t.result["metric"] in LOWER_IS_BETTER for (_, name), t in self.tunings.items() if name == task)


def _factor(score: Score, tuning: Finetuning) -> float:
    """Scores are shown in percent; those of questions are already, errors of regressions are not shares."""
    metric = score.metric or tuning.result["metric"]
    answers = tuning.result["settings"]["task"].get("task_type") == "question_answering"
    return 1.0 if answers or metric in LOWER_IS_BETTER else 100.0


def families(runs: Runs) -> list[Family]:
    """Comparable runs together; the largest family first."""
    groups: dict[Any, list[Pretraining]] = defaultdict(list)
    for run in runs.pretrainings:
        groups[run.family].append(run)
    found = [family for group in groups.values() for family in _by_steps(group)]
    for family in found:
        _take_tunings(family, runs)
    _label(found)
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _by_steps(group: list[Pretraining]) -> list[Family]:
    """Runs of equal length; a vanilla MLM longer than the ExLM runs is their MLM++."""
    lengths = sorted({run.steps for run in group if run.method.startswith("ExLM")} or {run.steps for run in group})
    members: dict[int, dict[Setting, dict[int, Pretraining]]] = defaultdict(lambda: defaultdict(dict))
    for run in sorted(group, key=lambda run: (-run.recipe["seed"], run.id), reverse=True):
        shorter = [steps for steps in lengths if steps < run.steps]
        plus = run.steps not in lengths and bool(shorter) and run.method == "Vanilla MLM" and run.repeat == 1
        method = f"{run.method}++" if plus else run.method
        cell = Setting(method, run.states, run.recipe["data"]["mask_ratio"], run.repeat)
        members[shorter[-1] if plus else run.steps][cell][run.recipe["seed"]] = run  # a seed counts once
    return [
        Family(steps, {cell: [runs[seed] for seed in sorted(runs)] for cell, runs in cells.items()})
        for steps, cells in members.items()
    ]


def _take_tunings(family: Family, runs: Runs) -> None:
    """Its fine-tunings; of each task those settings that most of them share, so that only like is compared."""
    everything = [(run, tuning) for run in family.runs for tuning in runs.tunings.get(run.id, [])]
    for task in sorted({tuning.task for _, tuning in everything}):
        of_task = [(run, tuning) for run, tuning in everything if tuning.task == task]
        counts = Counter(t.how for _, t in of_task)
        how = min(counts, key=lambda how: (-counts[how], how))
        for run, tuning in of_task:
            if tuning.how != how:
                family.left_out.append(tuning)
            elif tuning.from_scratch:
                family.scratch.setdefault(task, []).append(tuning)
            elif (run.id, task) in family.tunings:
                family.left_out.append(tuning)
            else:
                family.tunings[run.id, task] = tuning


def _label(found: list[Family]) -> None:
    """Corpus, size and length; where two agree, also the settings in which they differ."""
    for family in found:
        model = family.runs[0].recipe["model"]
        sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
        corpus = Path(family.runs[0].recipe["data"]["corpus"]).name
        shape = f"{model['hidden_size']} × {model['num_hidden_layers']}"
        size = "–".join([sizes[0], sizes[-1]] if len(sizes) > 1 else sizes)
        family.label = f"{corpus}, {shape}, {size}M parameters, {family.steps:,} updates"
    for label in {family.label for family in found}:
        same = [family for family in found if family.label == label]
        keys: list[set[Any]] = [set(family.runs[0].family) for family in same]
        for family, key in zip(same, keys, strict=True):
            own = sorted(key - set.intersection(*keys))
            family.label += "".join(f", {name.split('.')[-1]} {str(json.loads(value))[:12]}" for name, value in own)
