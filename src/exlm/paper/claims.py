"""Tests the paper's claims on our runs: numbers for each claim of texts.yaml, and a verdict by one rule for all.

A claim says that a weighted sum of table cells is positive. Example: ExLM's score minus the MLM's score is positive.
"""

import math
from collections.abc import Sequence
from statistics import variance

from exlm.paper.families import Family
from exlm.paper.page import Number, Row, Table
from exlm.paper.values import TEXTS, HeldOut, texts, title

Terms = Sequence[tuple[float, Number]]  # weights and cells


def standard_error(terms: Terms) -> float | None:
    """The standard error of a weighted sum, pooled over the pre-training seeds of its cells; None if a cell has one."""
    seeds = [estimate.centers for _, estimate in terms]
    if min(map(len, seeds)) < 2:
        return None
    pooled = sum((len(values) - 1) * variance(values) for values in seeds) / sum(len(values) - 1 for values in seeds)
    return math.sqrt(pooled * sum(weight**2 / len(estimate.centers) for weight, estimate in terms))


def verdict(difference: float, error: float | None) -> str:
    """The verdict on a claim. It is decided if the sum is farther from 0 than two standard errors."""
    if error is None:
        return "one seed, not decided"
    if abs(difference) <= 2 * error:
        return "within the spread of seeds"
    return "shows" if difference > 0 else "does not show"


def claims_table(families: Sequence[Family]) -> Table:
    """All claims whose cells were run. A claim without a score compares the mean over the tasks that its cells share.
    Without such tasks it compares held-out accuracy, but only if p and r are the same in all cells."""
    rows: list[Row] = []
    for family in families:
        named = family.named()
        for claim, *parts in TEXTS["claims"]:
            if any(name not in named for _, name, *_ in parts):
                continue
            cells = {named[name] for _, name, *_ in parts}
            tasks = [task for task in family.shares if len(family.estimates(cells, task)) == len(cells)]
            alike = len({(cell.p, cell.r) for cell in cells}) == 1
            terms, words, scores = [], [], []
            for weight, name, *score in parts:
                of_cell = score or tasks or [HeldOut.ACCURACY] * alike
                if estimate := family.estimate(named[name], *of_cell):
                    digits = max(2, estimate.digits)
                    terms.append((weight, estimate))
                    words.append(f"{weight:+g} × {estimate.value:.{digits}f} {name}")
                    scores.append(", ".join(map(title, of_cell)))
            if len(terms) == len(parts):
                difference, error = sum(weight * estimate.value for weight, estimate in terms), standard_error(terms)
                seeds = "one seed" if error is None else f"standard error {error:.{digits}f}"
                of_what = " and ".join(dict.fromkeys(scores))
                numbers = f"{difference:+.{digits}f} ({seeds}): {'; '.join(words)} ({of_what})"
                row = {"group": family.label, "claim": claim, "our runs": verdict(difference, error)}
                rows.append(row | {"numbers": numbers})
    return Table("findings", *texts("tables", "findings", count=len(rows)), rows)
