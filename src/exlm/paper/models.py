"""The models that the experiments compare, and the paper's numbers of them
(paper_numbers.yaml)."""

from typing import Any, NamedTuple

from exlm.paper.display import METHODS, percent, yaml_content

EXLM = "exlm"
MLM = "mlm"
PLUS = "mlm-plus-plus"


class Model(NamedTuple):
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


MODEL_COLUMNS = list(Model._fields)


def model_of(run: Any) -> Model:
    """The model of a run, which has the fields of `Model`."""
    return Model(run.method, run.k, run.p, run.r)


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


def rank(method: str) -> int:
    """The place of a method among METHODS; others come after them."""
    order = list(METHODS)
    return order.index(method) if method in order else len(order)


_PAPER_NUMBERS = yaml_content("paper_numbers.yaml")
# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]
MAIN_TABLES: dict[str, dict[str, Any]] = _PAPER_NUMBERS["main_tables"]
ABLATIONS: dict[str, PrintedRow] = _PAPER_NUMBERS["ablations"]
SWEEP: dict[Model, PrintedRow] = {
    Model(MLM if k == 1 else EXLM, k, p): row for p, k, *row in _PAPER_NUMBERS["sweep"]
}
REPEATED: dict[Model, PrintedRow] = SWEEP | {
    Model(MLM, 1, p, r): row for p, r, *row in _PAPER_NUMBERS["repeated_mlm"]
}
PAPER_COST: dict[str, str | float] = _PAPER_NUMBERS["cost"]
