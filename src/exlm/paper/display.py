"""What is known before there is any run: titles, digits and columns (display.yaml), sentences
(texts.yaml), claims (claims.yaml), and the models that the experiments compare, with the paper's
numbers of them (paper_numbers.yaml).

A quantity is a named number of a run:

| quantity          | what it is                                                                |
| ----------------- | ------------------------------------------------------------------------- |
| `mnli`            | the run's metric on this task, of test data or, without any, of valid     |
| `mnli f1`         | another metric of the same data                                           |
| `mnli mismatched` | the run's metric of another part                                          |
| `entropy/mean`    | a number on held-out data, by its place in a file: `mean` in `entropy`    |
| `training/hours`  | the hours of the pre-training                                             |"""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

Row = dict[str, Any]  # of a table, by column


def read_yaml(name: str) -> dict[str, Any]:
    """A YAML file of this folder."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


CLAIMS: dict[str, list[dict[str, Any]]] = read_yaml("claims.yaml")
TEXTS = read_yaml("texts.yaml")
DISPLAY = read_yaml("display.yaml")
_COMPARABLE = read_yaml("comparable.yaml")
# Settings that an MLM may lack, each with the property of the architectures that use it
EXLM_ONLY: dict[str, str | None] = _COMPARABLE["exlm_only"]
VARIED: list[str] = _COMPARABLE["varied"]  # other settings that may differ between compared runs
# Settings of a task that decide which rows there are, each with its usual values
ROW_SETTINGS: dict[str, list[Any]] = _COMPARABLE["row_settings"]
CURVES: dict[str, str] = DISPLAY["curves"]
METHODS: dict[str, str] = {name: entry["title"] for name, entry in DISPLAY["methods"].items()}
MLMS = ("mlm", "mlm-plus-plus")  # the methods without states
# By method, the settings that tell its architecture from others; MLM++ has none.
SWITCHES: dict[str, dict[str, str]] = {
    name: entry["switches"] for name, entry in DISPLAY["methods"].items() if "switches" in entry
}


class HeldOutQuantity(NamedTuple):
    """How tables show a quantity on held-out data."""

    title: str
    digits: int  # after the decimal point
    factor: float = 1  # from the number in the file to the unit of the tables
    error: str = ""  # the place of its standard error over tokens, if there is one


HELD_OUT = {name: HeldOutQuantity(**entry) for name, entry in DISPLAY["held_out"].items()}
TITLES: dict[str, str] = DISPLAY["titles"]
TITLES |= {name: quantity.title for name, quantity in HELD_OUT.items()}
# By the title of a column, the digits after the decimal point; others have 1.
DIGITS: dict[str, int] = DISPLAY["digits"]
DIGITS |= {quantity.title: quantity.digits for quantity in HELD_OUT.values()}


class ExperimentTable(NamedTuple):
    """The columns of the table of an experiment, in this order."""

    settings: list[str]  # of the model, such as its mask ratio
    tasks: bool  # whether our tasks and their mean have columns
    quantities: list[str]  # on held-out data
    paper: list[str]  # the titles of the paper's numbers


EXPERIMENT_TABLES = {
    name: ExperimentTable(**entry) for name, entry in DISPLAY["experiments"].items()
}


def title(name: str) -> str:
    """The title of a quantity or a baseline in tables."""
    return TITLES.get(name, name)


def wording(section: str, name: str, **phrases: str | int) -> tuple[str, str]:
    """Title and sentences of a section or a table; `phrases` replace their names in braces."""
    heading, sentences = TEXTS[section][name]
    return heading.format(**phrases), sentences.format(**phrases)


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def as_text(value: str | float | None, spread: float | None = None, digits: int = 1) -> str:
    """A cell of a table as text: a number with its standard deviation, if there is one; integers
    without decimals, and a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        digits = 0
    text = f"{value:,.{digits}f}"
    return text if spread is None else f"{text} ± {spread:,.{digits}f}"


class Variant(NamedTuple):
    """One of the models that the experiments compare: a method (a key of METHODS, or an objective
    that the paper does not have), k states per mask (1 for an MLM), mask ratio p, and r repetitions
    of each token."""

    method: str
    k: int
    p: float
    r: int = 1

    @property
    def title(self) -> str:
        """The method."""
        return METHODS.get(self.method, self.method)

    @property
    def label(self) -> str:
        """Method and states."""
        return f"{self.title}, k = {self.k}" if self.k > 1 else self.title

    @property
    def description(self) -> str:
        """All that it is, as `ExLM, k = 4, p = 15%`."""
        copies = f", r = {self.r}" if self.r > 1 else ""
        return f"{self.label}, p = {percent(self.p)}{copies}"

    @property
    def place(self) -> tuple[Any, ...]:
        """What decides its place in tables: the method as in METHODS (others come after them), then
        p, k and r."""
        methods = list(METHODS)
        rank = methods.index(self.method) if self.method in methods else len(methods)
        return rank, self.method, self.p, self.k, self.r


_PAPER_NUMBERS = read_yaml("paper_numbers.yaml")
# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]


class MainTable(NamedTuple):
    """One of the two tables of main results."""

    columns: dict[str, list[str]]  # by title, the quantities of our runs whose mean stands there
    of_medians: bool  # whether our numbers are medians over fine-tuning seeds, else means
    pretrain: str  # the recipe of the paper's ExLM
    finetune: dict[str, list[str]]  # the recipes that fine-tune any model, each with its tasks
    quoted: dict[str, PrintedRow]  # by name, the systems that the paper quotes
    paper: dict[str, PrintedRow]  # by name, the paper's own models

    @property
    def tasks(self) -> list[str]:
        """The tasks of all recipes."""
        return [task for tasks in self.finetune.values() for task in tasks]


MAIN_TABLES = {name: MainTable(**entry) for name, entry in _PAPER_NUMBERS["main_tables"].items()}
PAPER_ABLATIONS: dict[str, PrintedRow] = _PAPER_NUMBERS["ablations"]
PAPER_SWEEP: dict[Variant, PrintedRow] = {
    Variant("mlm" if k == 1 else "exlm", k, p): row for p, k, *row in _PAPER_NUMBERS["sweep"]
}
# of the sweep and of Repeated MLM
PAPER_SCORES: dict[Variant, PrintedRow] = PAPER_SWEEP | {
    Variant("mlm", 1, p, r): row for p, r, *row in _PAPER_NUMBERS["repeated_mlm"]
}
PAPER_COST: dict[str, str | float] = _PAPER_NUMBERS["cost"]
