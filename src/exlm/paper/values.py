"""The paper's numbers (values.yaml), the report's sentences (texts.yaml), and the names of what is compared.

A score is a number of a run, by name. Those of a task begin with its name: `mnli` is the metric that the run itself
chose, on test data if there are any, else on validation data; `mnli f1` is another metric of the same data, and
`mnli mismatched` the same metric of another split. The others are HeldOut.
"""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from exlm.paper.variants import Space

MLM, PLUS = "Vanilla MLM", "Vanilla MLM++"  # MLM++ has more updates, to cost what ExLM costs
ABLATED = (
    "ExLM w/o 2D RoPE", "ExLM w/o Transitions", "ExLM w/o Transitions and 2D RoPE",
    "ExLM w/ Sparse DAG", "ExLM w/o 2D RoPE w/ Sparse DAG",
)  # fmt: skip
METHODS = (MLM, PLUS, *ABLATED, "ExLM")


class HeldOut(StrEnum):
    """Scores on held-out text, named as the columns of tables are."""

    ACCURACY = "held-out accuracy"
    PERPLEXITY = "perplexity"  # of each masked token by itself
    JOINT_PERPLEXITY = "joint perplexity"  # of all masked tokens of a sequence together, per token
    JOINT = "joint nll"
    GAIN = "joint gain"  # how much lower the joint nll is than the marginal one
    OWN_MASK = "own mask, %"
    ENTROPY = "entropy"
    STATE_ENTROPY = "state entropy"
    TOKENS = "tokens"  # whose entropy was measured
    CORRUPTION = "corrupted, %"
    HOURS = "hours"


DIGITS = dict.fromkeys(("perplexity", "joint perplexity", "corrupted, %", "hours"), 2)  # behind the point; else 1
DIGITS |= {"entropy": 3, "state entropy": 3}
Values = tuple[float | None, ...]


class MainTable(NamedTuple):
    """One of the paper's two tables of main results, as values.yaml explains it."""

    columns: dict[str, str | None]
    averaged: list[str]
    of_medians: bool
    recipe: str
    paper: dict[str, list[float | None]]


_FOUND, TEXTS = (
    yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8")) for name in ("values.yaml", "texts.yaml")
)
OF_THE_PAPER: list[str] = _FOUND["of_the_paper"]
MAIN_TABLES = {name: MainTable(**table) for name, table in _FOUND["main_tables"].items()}
ABLATIONS: dict[str, Values] = {model: tuple(values) for model, values in _FOUND["ablations"].items()}
ABLATION_TASKS: list[str] = _FOUND["ablation_tasks"]
SWEEP: dict[tuple[float, int], Values] = {(p, k): tuple(values) for p, k, *values in _FOUND["sweep"]}
REPEATED_MNLI: dict[tuple[float, int], float] = {(p, r): mnli for p, r, mnli in _FOUND["repeated_mnli"]}
GPU_HOURS: dict[str, float] = _FOUND["gpu_hours"]
COST_RATIO: float = _FOUND["cost_ratio"]
CHOICES: dict[str, tuple[Any, str]] = _FOUND["choices"]  # settings of ExLM alone
VARIED, SHARES = {*CHOICES, *_FOUND["varied"]}, set(_FOUND["shares"])
RATIOS, REPEATS = Space().mask_ratios, Space().repeats  # the axes of the Repeated MLM experiment
VANISHING = Space().smallest  # shares of corrupted semantics below it are left out


class Setting(NamedTuple):
    """What the experiments vary, which is one cell of the paper's tables."""

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

    @property
    def hidden(self) -> float:
        """pʳ, the expected share of words without a visible copy: the paper's corrupted semantics."""
        return self.p**self.r


def in_order(methods: Iterable[str]) -> list[str]:
    """The order of METHODS; others behind."""
    return sorted(methods, key=lambda name: (METHODS.index(name) if name in METHODS else len(METHODS), name))


def title(score: str) -> str:
    return _FOUND["titles"].get(score, str(score))


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def texts(kind: str, name: str, /, **words: Any) -> tuple[str, str]:
    """The title and the sentences of a section, a table or a claim by its name, with these words filled in."""
    heading, sentences = TEXTS[kind][name]
    return heading.format(**words), sentences.format(**words)
