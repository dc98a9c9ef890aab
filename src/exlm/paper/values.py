"""The paper's numbers (values.yaml), the report's sentences (texts.yaml) and claims (claims.yaml),
and the names of what is compared.

A score is a named number of a run. `mnli` is the metric of a task's run, on test data if there are
any, else on validation data. `mnli f1` is another metric on these data, `mnli mismatched` the run's
metric on another split. Scores on held-out data have the titles of their columns as names."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

from exlm.identity import DEFAULTS, identity_of
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule


def _content(name: str) -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


VALUES = _content("values.yaml")
TEXTS = _content("texts.yaml")

METHODS: list[str] = VALUES["methods"]
MLM, PLUS = METHODS[:2]
MAIN_TABLES: dict[str, dict[str, Any]] = VALUES["main_tables"]
# Settings that an MLM does not have, with their usual values.
_USUAL_VALUES = {
    **identity_of(ArchitectureConfig(), "model"),
    **identity_of(PriorSchedule(), "prior"),
    **DEFAULTS,
    "transition_warmup": 0,
}
EXLM_ONLY: dict[str, Any] = {name: _USUAL_VALUES[name] for name in VALUES["exlm_only"]}
COLUMNS: dict[str, list[str]] = VALUES["columns"]

ACCURACY = "Held-out accuracy"
CORRUPTION = "Corrupted, %"
ENTROPY = "Entropy, bits"
STATE_ENTROPY = "Entropy per state, bits"
HOURS = "Hours"


class Cell(NamedTuple):
    """A cell of the paper's tables: a method (one of METHODS, or an objective that the paper does
    not have), k states per mask (1 for an MLM), mask ratio p, and r repetitions of each token."""

    method: str
    k: int
    p: float
    r: int = 1

    @property
    def label(self) -> str:
        return self.method if self.k == 1 else f"{self.method}, k = {self.k}"

    @property
    def description(self) -> str:
        repeated = f", r = {self.r}" if self.r > 1 else ""
        return f"{self.label}, p = {percent(self.p)}{repeated}"


class HeldOutScore(NamedTuple):
    """Where a score on held-out data stands in a JSON file: its key, with a `/` before an inner
    one; the factor that gives it the unit of the tables; its digits there; and the key of its
    standard error over tokens."""

    key: str
    factor: float
    digits: int
    error_key: str | None = None


def _held_out(file: str) -> dict[str, HeldOutScore]:
    return {score: HeldOutScore(*place) for score, place in VALUES[file].items()}


EVALUATION = _held_out("evaluation")  # by title, the scores in result.json
MEASURED = _held_out("measured")  # and those in measurements.json
HELD_OUT = EVALUATION | MEASURED
DIGITS = {HOURS: 2} | {score: place.digits for score, place in HELD_OUT.items()}  # else 1


class ClaimTerm(NamedTuple):
    """A term of the weighted sum that a claim says is positive; claims.yaml describes the name."""

    weight: float
    name: str
    score: str | None = None


CLAIMS = {
    claim: [ClaimTerm(*term) for term in terms] for claim, terms in _content("claims.yaml").items()
}
# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]
ABLATIONS: dict[str, PrintedRow] = VALUES["ablations"]
SWEEP: dict[Cell, PrintedRow] = {
    Cell(MLM if k == 1 else "ExLM", k, p): row for p, k, *row in VALUES["sweep"]
}
REPEATED: dict[Cell, PrintedRow] = SWEEP | {
    Cell(MLM, 1, p, r): row for p, r, *row in VALUES["repeated_mlm"]
}


def rank(method: str) -> tuple[int, str]:
    """A sort key: the methods in the order of METHODS, all others after them."""
    return METHODS.index(method) if method in METHODS else len(METHODS), method


def title(score: str) -> str:
    """The title of a score, task or baseline in tables."""
    return VALUES["titles"].get(score, score)


def texts(section: str, name: str, **words: Any) -> tuple[str, str]:
    """Title and sentences of a section or a table, with `words` in the place of words in braces."""
    heading, sentences = TEXTS[section][name]
    return heading.format(**words), sentences.format(**words)


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"
