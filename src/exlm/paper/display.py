"""What the report knows before it reads a run: titles, digits and columns (display.yaml), sentences
(texts.yaml) and claims (claims.yaml).

A quantity is a named number of a run. `mnli` is the metric of a run on this task, of test data if
there are any, else of validation data. `mnli f1` is another metric of these data, `mnli mismatched`
the run's metric of another part. Quantities on held-out data are named by their place in a file, as
`entropy/mean`."""

from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]  # of a table or a frame, by column


def yaml_content(name: str) -> dict[str, Any]:
    """A YAML file of this folder."""
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


CLAIMS: dict[str, list[dict[str, Any]]] = yaml_content("claims.yaml")
TEXTS = yaml_content("texts.yaml")
_DISPLAY = yaml_content("display.yaml")
EXPERIMENTS: dict[str, dict[str, Any]] = _DISPLAY["experiments"]
# What rows of tables with tasks have under names of their own; no data set may be called so.
COLUMN_NAMES: list[str] = _DISPLAY["column_names"]
COMPARED_WITH_PLUS: list[str] = _DISPLAY["compared_with_plus"]
LISTED: list[str] = _DISPLAY["listed"]
CURVES: dict[str, str] = _DISPLAY["curves"]
STYLE: Any = _DISPLAY["style"]  # as matplotlib takes it
LATEX = str.maketrans(_DISPLAY["latex"])
METHODS: dict[str, str] = _DISPLAY["methods"]

ACCURACY = "evaluation/accuracy"
CORRUPTION = "corruption/mean"
ENTROPY = "entropy/mean"
STATE_ENTROPY = "entropy/states/mean"
HOURS = "training/hours"
NLL = "evaluation/nll"
JOINT_NLL = "evaluation/joint_nll"

HELD_OUT: dict[str, dict[str, Any]] = _DISPLAY["held_out"]
TITLES: dict[str, str] = _DISPLAY["titles"]
# By the title of a column, the digits after the decimal point; others have 1.
DIGITS: dict[str, int] = _DISPLAY["digits"]
for _quantity, _entry in HELD_OUT.items():
    TITLES[_quantity] = _entry["title"]
    DIGITS[_entry["title"]] = _entry["digits"]


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
