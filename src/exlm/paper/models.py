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


_PAPER_NUMBERS = yaml_content("paper_numbers.yaml")
# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]
MAIN_TABLES: dict[str, dict[str, Any]] = _PAPER_NUMBERS["main_tables"]
ABLATIONS: dict[str, PrintedRow] = _PAPER_NUMBERS["ablations"]
SWEEP: dict[Model, PrintedRow] = {
    Model(MLM if k == 1 else EXLM, k, p): row for p, k, *row in _PAPER_NUMBERS["sweep"]
}
# of the sweep and of Repeated MLM
PRINTED: dict[Model, PrintedRow] = SWEEP | {
    Model(MLM, 1, p, r): row for p, r, *row in _PAPER_NUMBERS["repeated_mlm"]
}
PAPER_COST: dict[str, str | float] = _PAPER_NUMBERS["cost"]
