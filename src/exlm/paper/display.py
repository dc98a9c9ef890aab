"""How the report shows what it has: titles, columns and quantities (display.yaml), and sentences
(texts.yaml).

A quantity is a named number of a run. `mnli` is the metric of a run on this task, of test data if
there are any, else of validation data. `mnli f1` is another metric of these data, `mnli mismatched`
the run's metric of another part. Quantities on held-out data are named by their place in a file, as
`entropy/mean`."""

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
METHODS: dict[str, str] = _DISPLAY["methods"]

ACCURACY = "evaluation/accuracy"
CORRUPTION = "corruption/mean"
ENTROPY = "entropy/mean"
STATE_ENTROPY = "entropy/states/mean"
HOURS = "training/hours"


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


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"
