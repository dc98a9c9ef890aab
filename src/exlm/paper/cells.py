"""The cells of the paper's tables: a setting of the experiments, a score, and what the seeds say of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev, variance
from typing import NamedTuple

HELD_OUT = "held-out"
TITLES = {
    "mnli": "MNLI", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE", "sst-2": "SST-2", "cola": "CoLA", "mrpc": "MRPC",
    "sts-b": "STS-B", "squad2": "SQuAD 2.0", "bace": "BACE", "bbbp": "BBBP", "tox21": "Tox21", "sider": "SIDER",
    "muv": "MUV", "clintox": "ClinTox", "toxcast": "ToxCast", "esol": "ESOL", "freesolv": "FreeSolv",
    "lipophilicity": "Lipophilicity",
}  # fmt: skip
MLM, PLUS = "Vanilla MLM", "Vanilla MLM++"  # MLM++ has more updates, to cost what ExLM costs
ABLATED = (
    "ExLM w/o 2D RoPE", "ExLM w/o Transitions", "ExLM w/o Transitions and 2D RoPE",
    "ExLM w/ Sparse DAG", "ExLM w/o 2D RoPE w/ Sparse DAG",
)  # fmt: skip
METHODS = (MLM, PLUS, *ABLATED, "ExLM")


class Setting(NamedTuple):
    """What the experiments vary, which is one cell of the paper's tables."""

    method: str
    k: int  # states per mask
    p: float  # mask ratio
    r: int = 1  # repetitions of each token

    @property
    def label(self) -> str:
        return self.method if self.k == 1 else f"{self.method}, k = {self.k}"

    @property
    def hidden(self) -> float:
        """pʳ, the expected share of words without a visible copy: the paper's corrupted semantics."""
        return self.p**self.r


class Score(NamedTuple):
    """A number of a run, of a task or of held-out text; the run's own metric and split where none is given."""

    task: str
    metric: str | None = None
    split: str | None = None
    median: bool = False  # over fine-tuning seeds, in place of the mean
    digits: int = 1

    @property
    def title(self) -> str:
        return TITLES.get(self.task, self.task)


ACCURACY, PERPLEXITY = Score(HELD_OUT, "accuracy"), Score(HELD_OUT, "perplexity", digits=2)
JOINT_PERPLEXITY, OWN_MASK = Score(HELD_OUT, "joint perplexity", digits=2), Score(HELD_OUT, "own mask")
JOINT, GAIN = Score(HELD_OUT, "joint nll", digits=3), Score(HELD_OUT, "joint gain", digits=3)
ENTROPY, STATE_ENTROPY = Score(HELD_OUT, "entropy", digits=3), Score(HELD_OUT, "state entropy", digits=3)
CORRUPTION, HOURS = Score(HELD_OUT, "corruption", digits=2), Score(HELD_OUT, "hours", digits=2)
EVALUATED = {  # columns of the tables that compare pre-trainings
    "held-out accuracy": ACCURACY, "perplexity": PERPLEXITY, "joint perplexity": JOINT_PERPLEXITY,
    "own mask, %": OWN_MASK,
}  # fmt: skip
REPEATED = {"held-out accuracy": ACCURACY, "perplexity": PERPLEXITY, "corrupted, %": CORRUPTION}  # of Repeated MLM


@dataclass(frozen=True)
class Estimate:
    """A number averaged over seeds: for every pre-training seed its value, or those of its fine-tuning seeds."""

    groups: list[list[float]]
    runs: list[str]
    median: bool = False
    caveats: tuple[str, ...] = ()  # how the data differ from the published

    @property
    def centers(self) -> list[float]:
        """One number per pre-training seed."""
        return [(median if self.median else fmean)(group) for group in self.groups]

    @property
    def value(self) -> float:
        return fmean(self.centers)

    @property
    def spread(self) -> float | None:
        """Standard deviation over all seeds."""
        values = [value for group in self.groups for value in group]
        return stdev(values) if len(values) > 1 else None


class Noise(NamedTuple):
    """The pooled standard deviation of a seed: of `pre-training` where a cell has several, else of `fine-tuning`."""

    deviation: float
    unit: str

    def error(self, estimate: Estimate) -> float:
        """Standard error of an estimate."""
        count = len(estimate.groups) if self.unit == "pre-training" else sum(map(len, estimate.groups))
        return self.deviation / math.sqrt(count)


def pooled(groups: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation within groups; None if no group has two members."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    return math.sqrt(sum((len(g) - 1) * variance(g) for g in several) / freedom) if freedom else None
