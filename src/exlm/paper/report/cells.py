"""Families of comparable runs, their cells (method, k, p, r), and what a cell's seeds say."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from exlm.paper.report.document import BLANK, Cell
from exlm.paper.report.estimates import Estimate, Noise, pooled
from exlm.paper.report.records import Finetuning, Pretraining
from exlm.tasks.datasets import GLUE, MOLECULENET
from exlm.tasks.metrics import LOWER_IS_BETTER

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
ABLATED = METHODS[2:-1]


class Setting(NamedTuple):
    """A cell of the paper's tables."""

    method: str
    k: int
    p: float
    r: int = 1

    @property
    def label(self) -> str:
        """A row's name."""
        return self.method if self.k == 1 else f"{self.method}, k = {self.k}"


class Score(NamedTuple):
    """A number of a run: of a task, or of held-out text; the run's own metric and part where not said."""

    task: str
    metric: str | None = None
    part: str | None = None
    median: bool = False
    digits: int = 1

    @property
    def title(self) -> str:
        return TITLES.get(self.task, self.task)


ACCURACY, PERPLEXITY = Score(HELD_OUT, "accuracy"), Score(HELD_OUT, "perplexity", digits=2)
ENTROPY, STATE_ENTROPY = Score(HELD_OUT, "entropy", digits=3), Score(HELD_OUT, "state entropy", digits=3)
JOINT, GAIN = Score(HELD_OUT, "joint nll", digits=3), Score(HELD_OUT, "joint gain", digits=3)
EVALUATED = {
    "held-out accuracy": ACCURACY,
    "perplexity": PERPLEXITY,
    "joint perplexity": Score(HELD_OUT, "joint perplexity", digits=2),
    "own mask, %": Score(HELD_OUT, "own mask"),
}  # columns of the tables that compare pre-trainings
EVALUATION = (
    "Held-out accuracy and perplexity: of each masked token's marginal; joint perplexity: of all masked tokens of a "
    "sequence together, per token. Own mask: how probable it is that a masked token comes from a state of its own mask "
    "(of models with transitions)."
)
CORRUPTION, HOURS = Score(HELD_OUT, "corruption", digits=2), Score(HELD_OUT, "hours", digits=2)


def held_out(run: Pretraining, metric: str | None) -> float | None:
    """A number of a pre-training run, in the unit it is shown in."""
    entropy, corruption, evaluation = run.measured("entropy"), run.measured("corruption"), run.evaluation
    return {
        "accuracy": 100 * evaluation["accuracy"],
        "perplexity": evaluation["perplexity"],
        "joint perplexity": evaluation.get("joint_perplexity"),
        "joint nll": evaluation.get("joint_nll"),
        "joint gain": evaluation["nll"] - evaluation["joint_nll"] if "own_states" in evaluation else None,
        "own mask": 100 * evaluation["own_states"] if "own_states" in evaluation else None,
        "hours": run.result["training_seconds"] / 3600,
        "corruption": 100 * corruption["mean"] if corruption else None,
        "entropy": entropy.get("mean"),
        "state entropy": (entropy.get("states") or {}).get("mean"),
    }[str(metric)]


@dataclass
class Family:
    """Runs that differ only in what the experiments vary."""

    steps: int
    cells: dict[Setting, list[Pretraining]]
    label: str = ""
    tunings: dict[tuple[str, str], Finetuning] = field(default_factory=dict)  # by run id and task
    left_out: list[Finetuning] = field(default_factory=list)
    repeated: list[Pretraining] = field(default_factory=list)  # with the seed of another run, or MLM++ of other length
    ratios: dict[Path, float] = field(default_factory=dict)  # of costs, by the directory of the study

    @property
    def runs(self) -> list[Pretraining]:
        return [run for runs in self.cells.values() for run in runs]

    @property
    def tasks(self) -> list[str]:
        """With a fine-tuning, the paper's first."""
        found, known = {task for _, task in self.tunings}, [*GLUE, "squad2", *MOLECULENET]
        return [task for task in known if task in found] + sorted(found - set(known))

    @property
    def scores(self) -> list[Score]:
        return [Score(task) for task in self.tasks]

    @property
    def shares(self) -> list[Score]:
        """Of tasks that are scored in percent."""
        errors = {task for (_, task), t in self.tunings.items() if t.result["metric"] in LOWER_IS_BETTER}
        return [score for score in self.scores if score.task not in errors]

    @property
    def molecules(self) -> bool:
        corpus = Path(self.runs[0].recipe["data"]["corpus"]).name.lower()
        return bool(set(self.tasks) & set(MOLECULENET)) or any(word in corpus for word in ("mol", "smiles"))

    @property
    def departures(self) -> list[str]:
        """How the data of its fine-tunings differ from the published."""
        found = {(task, word) for (_, task), t in self.tunings.items() for word in t.departures}
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
        """Cells of some methods, in the order of METHODS, then p, k and r."""
        wanted = set(methods)
        found = [c for c in self.cells if c.method in wanted and p in (None, c.p) and r in (None, c.r)]
        return sorted(found, key=lambda c: (METHODS.index(c.method), c.p, c.k, c.r))

    def named(self) -> dict[str, Setting]:
        """The cells of the ablations by method."""
        return {c.method: c for c in self.select(METHODS, self.base_ratio) if c.k in (1, self.base_states)}

    def name(self, cell: Setting) -> str:
        """A row's name; of MLM++ with its updates, and the ratio of costs that they come from."""
        if cell.method != "Vanilla MLM++":
            return cell.label
        run = self.cells[cell][0]
        ratio = self.ratios.get(run.study or Path(), 0.0)
        why = f" = {ratio:.2f} (measured cost) × {self.steps:,}" * (abs(ratio * self.steps - run.steps) <= 1)
        return f"{cell.label}, {run.steps:,} updates{why}"

    def compared(self) -> list[Setting]:
        """ExLM, and the vanilla MLM at the mask ratios at which there is an ExLM."""
        ratios = {cell.p for cell in self.select(["ExLM"])}
        return [cell for cell in self.select(["Vanilla MLM", "ExLM"]) if cell.p in ratios]

    def estimate(self, cell: Setting, score: Score) -> Estimate | None:
        """What a cell's seeds say."""
        groups, ids, departures = [], [], set()
        for run in self.cells.get(cell, []):
            tuning = self.tunings.get((run.id, score.task))
            if score.task == HELD_OUT:
                number = held_out(run, score.metric)
                values = [] if number is None else [number]
            else:
                values = tuning.values(score.metric, score.part) if tuning else []
            if values:
                groups.append(tuple(values))
                ids += [run.id, tuning.id] if tuning else [run.id]
                departures |= set(tuning.departures if tuning else [])
        return Estimate(tuple(groups), tuple(ids), score.median, tuple(sorted(departures))) if groups else None

    def cell(self, cell: Setting, score: Score) -> Cell:
        """An estimate as it is printed; empty where nothing was run."""
        estimate = self.estimate(cell, score)
        return estimate.cell(score.digits) if estimate else Cell()

    def mean(self, cell: Setting, scores: Sequence[Score]) -> float | None:
        """Over tasks, if every one was run."""
        found = [self.estimate(cell, score) for score in scores]
        return fmean(e.value for e in found if e) if found and all(found) else None

    def sources(self, cell: Setting) -> list[Cell]:
        """The last two columns of most tables: seeds (pre-training x fine-tuning) and runs."""
        runs = self.cells.get(cell, [])
        ids = tuple(run.id for run in runs)
        counts = sorted({len(t.result["seeds"]) for (i, _), t in self.tunings.items() if i in ids})
        seeds = f"{len(runs)} × {'–'.join(map(str, counts)) or 0}"
        return [Cell(text=seeds), Cell(links=ids)] if runs else [BLANK, Cell()]

    def noise(self, score: Score) -> Noise | None:
        """Pooled over all cells; None where nothing was run with two seeds."""
        found = [e for e in (self.estimate(cell, score) for cell in self.cells) if e]
        between = pooled([e.centers for e in found])
        within = pooled([group for e in found for group in e.groups])
        if between is not None:
            return Noise(between, "pre-training")
        return None if within is None else Noise(within, "fine-tuning")
