"""The paper's numbers (values.yaml), the report's sentences (texts.yaml), and the names of what is
compared. A score is a named number of a run. `mnli` is the metric of a task's run, on test data if
there are any, else on validation data. `mnli f1` is another metric on these data, `mnli mismatched`
the run's metric on another split. HeldOut has the rest."""

from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FOUND, TEXTS = (
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("values.yaml", "texts.yaml")
)
Values = tuple[float | None, ...]


class HeldOut(StrEnum):
    """Scores on held-out data, by the titles of their table columns."""

    ACCURACY = "Held-out accuracy"
    PERPLEXITY = "Perplexity"  # of each masked token by itself
    NLL = "Marginal nll"
    JOINT_PERPLEXITY = "Joint perplexity"  # of all masked tokens of a sequence together, per token
    JOINT_NLL = "Joint nll"  # in one pass of the network
    JOINT_NLL_2 = "Joint nll in 2 passes"
    JOINT_NLL_4 = "Joint nll in 4 passes"
    JOINT_NLL_ALL = "Joint nll, one mask per pass"
    OWN_MASK = "Own mask, %"
    ENTROPY = "Entropy, bits"
    STATE_ENTROPY = "Entropy per state, bits"
    TOKENS = "Tokens of entropy"
    CORRUPTION = "Corrupted, %"
    CORRUPTION_STD = "Corrupted s.d., %"  # over sequences
    PREDICTED_STD = "Predicted s.d., %"  # by the appendix's formula
    HOURS = "Hours"


METHODS: list[str] = _FOUND["methods"]
MLM, PLUS = METHODS[:2]
MAIN_TABLES: dict[str, dict[str, Any]] = _FOUND["main_tables"]
OF_THE_PAPER: list[str] = _FOUND["of_the_paper"]
ABLATION_TASKS: list[str] = _FOUND["ablation_tasks"]
ABLATIONS: dict[str, Values] = {
    model: tuple(values) for model, values in _FOUND["ablations"].items()
}
SWEEP: dict[tuple[float, int], Values] = {
    (p, k): tuple(values) for p, k, *values in _FOUND["sweep"]
}
REPEATED_MNLI: dict[tuple[float, int], float] = {
    (p, r): mnli for p, r, mnli in _FOUND["repeated_mnli"]
}
GPU_HOURS: dict[str, float] = _FOUND["gpu_hours"]
COST_RATIO: float = _FOUND["cost_ratio"]
CHOICES: dict[str, Any] = _FOUND["choices"]  # settings of ExLM alone, with their usual values
DIGITS: dict[str, int] = _FOUND["digits"]
EVALUATION: dict[str, tuple[str, float]] = {
    score: tuple(where) for score, where in _FOUND["evaluation"].items()
}
CURVES: dict[str, tuple[str, str]] = {
    curve: tuple(where) for curve, where in _FOUND["curves"].items()
}
STYLE, LATEX = _FOUND["style"], str.maketrans(_FOUND["latex"])
VARIED, SHARES = {*CHOICES, *_FOUND["varied"]}, set(_FOUND["shares"])


class Setting(NamedTuple):
    """The settings that the experiments vary. Each combination is one cell of the paper's
    tables."""

    method: str  # one of METHODS, or the name of an objective that the paper does not have
    k: int  # states per mask, 1 for an MLM
    p: float  # mask ratio
    r: int = 1  # repetitions of each token

    @property
    def label(self) -> str:
        return self.method if self.k == 1 else f"{self.method}, k = {self.k}"

    @property
    def description(self) -> str:
        return f"{self.label}, p = {percent(self.p)}" + (f", r = {self.r}" if self.r > 1 else "")


def rank(method: str) -> tuple[int, str]:
    """A sort key: the methods in the order of METHODS, all others after them."""
    return METHODS.index(method) if method in METHODS else len(METHODS), method


def order(cell: Setting) -> tuple[Any, ...]:
    """A sort key: by method, p, k and r."""
    return rank(cell.method), cell.p, cell.k, cell.r


def title(score: str) -> str:
    return _FOUND["titles"].get(score, str(score))


def texts(kind: str, name: str, /, **words: Any) -> tuple[str, str]:
    """The title and the sentences of a section or a table, with `words` filled in for the words in
    braces."""
    heading, sentences = TEXTS[kind][name]
    return heading.format(**words), sentences.format(**words)


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"
