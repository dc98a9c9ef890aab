"""What the tables and figures show, from the YAML files of this folder: the paper's numbers
(paper_numbers.yaml) and claims (claims.yaml), titles and columns (display.yaml), and the report's
sentences (texts.yaml).

A quantity is a named number of a run. `mnli` is the metric of a run on this task, of test data if
there are any, else of validation data. `mnli f1` is another metric of these data, `mnli mismatched`
the run's metric of another part. Quantities on held-out data are named by their place in a file, as
`entropy/mean`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml


def yaml_content(name: str) -> dict[str, Any]:
    """A YAML file of this folder."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


TEXTS = yaml_content("texts.yaml")
_DISPLAY = yaml_content("display.yaml")
COLUMNS: dict[str, list[str]] = _DISPLAY["columns"]
# What a row of a table has under names of its own; no data set may be called so.
COLUMN_NAMES = {"group", "source", "avg."}.union(*COLUMNS.values())
COMPARED_WITH_PLUS: list[str] = _DISPLAY["compared_with_plus"]
LISTED: list[str] = _DISPLAY["listed"]
CURVES: dict[str, str] = _DISPLAY["curves"]
STYLE: Any = _DISPLAY["style"]  # as matplotlib takes it
LATEX = str.maketrans(_DISPLAY["latex"])

_PAPER_NUMBERS = yaml_content("paper_numbers.yaml")
METHODS: dict[str, str] = _PAPER_NUMBERS["methods"]
EXLM = "exlm"
MLM = "mlm"
PLUS = "mlm-plus-plus"

ACCURACY = "evaluation/accuracy"
CORRUPTION = "corruption/mean"
ENTROPY = "entropy/mean"
STATE_ENTROPY = "entropy/states/mean"
HOURS = "training/hours"


class Variant(NamedTuple):
    """One of the models that the experiments compare: a method (a key of METHODS, or an objective
    that the paper does not have), k states per mask (1 for an MLM), mask ratio p, and r repetitions
    of each token."""

    method: str
    k: int
    p: float
    r: int = 1

    @property
    def label(self) -> str:
        """Method and states."""
        return describe(self.method, k=self.k if self.k > 1 else None)

    @property
    def description(self) -> str:
        """All that it is."""
        return describe(self.method, self.k if self.k > 1 else None, self.p, self.r)


def describe(method: str, k: int | None = None, p: float | None = None, r: int = 1) -> str:
    """The title of a method with those settings that are given, as `ExLM, k = 4, p = 15%`."""
    phrases = [METHODS.get(method, method)]
    if k is not None:
        phrases.append(f"k = {k}")
    if p is not None:
        phrases.append(f"p = {percent(p)}")
    if r > 1:
        phrases.append(f"r = {r}")
    return ", ".join(phrases)


def rank(method: str) -> tuple[int, str]:
    """A sort key: the methods in the order of METHODS, all others after them."""
    order = list(METHODS)
    return order.index(method) if method in order else len(order), method


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


class HeldOutQuantity(NamedTuple):
    """How a quantity on held-out data is shown: its title, the factor that gives it the unit of the
    tables, its digits after the decimal point, and the place of its standard error over tokens."""

    title: str
    factor: float
    digits: int
    error_place: str | None = None


HELD_OUT = {place: HeldOutQuantity(*entry) for place, entry in _DISPLAY["held_out"].items()}
DIGITS = {HOURS: 2} | {place: quantity.digits for place, quantity in HELD_OUT.items()}  # else 1
_TITLES: dict[str, str] = _DISPLAY["titles"]
_TITLES |= {place: quantity.title for place, quantity in HELD_OUT.items()}


def title(name: str) -> str:
    """The title of a quantity or a baseline in tables."""
    return _TITLES.get(name, name)


def texts(section: str, name: str, **phrases: str | int) -> tuple[str, str]:
    """Title and sentences of a section or a table; `phrases` replace their names in braces."""
    heading, sentences = TEXTS[section][name]
    return heading.format(**phrases), sentences.format(**phrases)


@dataclass(frozen=True)
class ClaimTerm:
    """A term of a claim's weighted sum; claims.yaml says what absent entries mean."""

    weight: float
    method: str
    k: int | None = None
    p: float | None = None
    r: int = 1
    quantity: str | None = None


CLAIMS: dict[str, list[ClaimTerm]] = {}
for _claim, _terms in yaml_content("claims.yaml").items():
    CLAIMS[_claim] = [ClaimTerm(**term) for term in _terms]

# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]


@dataclass(frozen=True)
class MainTable:
    """One of the paper's two main tables.

    Attributes:
        columns: by the title of each of the paper's columns, the quantities of our runs whose mean
            stands in it.
        of_medians: whether ours are medians over fine-tuning seeds.
        pretrain: the recipe of the paper's ExLM.
        finetune: the recipes that fine-tune any model, each with its tasks.
        quoted: the rows that the paper quotes from elsewhere.
        paper: the rows of its own models."""

    columns: dict[str, list[str]]
    of_medians: bool
    pretrain: str
    finetune: dict[str, list[str]]
    quoted: dict[str, PrintedRow]
    paper: dict[str, PrintedRow]


MAIN_TABLES = {name: MainTable(**entry) for name, entry in _PAPER_NUMBERS["main_tables"].items()}
ABLATIONS: dict[str, PrintedRow] = _PAPER_NUMBERS["ablations"]
SWEEP: dict[Variant, PrintedRow] = {
    Variant(MLM if k == 1 else EXLM, k, p): row for p, k, *row in _PAPER_NUMBERS["sweep"]
}
REPEATED: dict[Variant, PrintedRow] = SWEEP | {
    Variant(MLM, 1, p, r): row for p, r, *row in _PAPER_NUMBERS["repeated_mlm"]
}
PAPER_COST: dict[str, str | float] = _PAPER_NUMBERS["cost"]
