"""The models that the experiments compare."""

from typing import NamedTuple

from exlm.paper.display import METHODS, percent

EXLM = "exlm"
MLM = "mlm"
PLUS = "mlm-plus-plus"


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
