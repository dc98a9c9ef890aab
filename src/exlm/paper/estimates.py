"""From the numbers of runs to the numbers of tables: means over seeds, their spread, and the rule
by which a difference counts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any, Literal, NamedTuple

import pandas as pd

from exlm.paper.display import DIGITS
from exlm.paper.variants import Variant


@dataclass(frozen=True)
class Number:
    """A number of a table in its unit, with its s.d. over seeds, and digits after the point."""

    value: float
    spread: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        text = f"{self.value:,.{self.digits}f}"
        return text if self.spread is None else f"{text} ± {self.spread:,.{self.digits}f}"


class RowResults:
    """The results of the runs in a row of a table: those of a variant, or of a baseline.

    They come from a frame with a row for each run, quantity and seed: `run`, `quantity`, `value`,
    and `error`, the standard error over tokens. `center` (mean or median) is taken over the
    fine-tuning seeds of a run."""

    def __init__(self, values: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        by_quantity = values.groupby("quantity")
        spreads = by_quantity["value"].agg(spread).astype(float)
        # [runs, quantities], and the spread of each quantity over all seeds
        self.by_run = values.pivot_table("value", "run", "quantity", center)
        self.spreads = spreads.fillna(by_quantity["error"].first())

    def run_by_run(self, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run that has all of them, by the id of the run."""
        return self.by_run.reindex(columns=list(quantities)).mean(axis=1, skipna=False).dropna()

    def number(self, *quantities: str) -> Number | None:
        """A quantity, or the mean of several, over the runs that have all of them; None without
        such a run. The spread is the standard deviation over all seeds, of several quantities over
        pre-training seeds; of a single number, the standard error over tokens, if known."""
        values = self.run_by_run(*quantities)
        if values.empty:
            return None
        over_seeds = self.spreads[quantities[0]] if len(quantities) == 1 else spread(values)
        digits = DIGITS.get(quantities[0], 1)
        return Number(fmean(values), None if pd.isna(over_seeds) else over_seeds, digits)


class Results:
    """The results of variants, from such a frame that also has the fields of `Variant`."""

    def __init__(self, values: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        key: Any
        self.by_variant: dict[Variant, RowResults] = {}
        for key, rows in values.groupby(list(Variant._fields)):
            self.by_variant[Variant(*key)] = RowResults(rows, center)

    def number(self, variant: Variant, *quantities: str) -> Number | None:
        """The `RowResults.number` of a variant; None if there is no run of it."""
        row = self.by_variant.get(variant)
        return row.number(*quantities) if row else None

    def numbers(self, variants: Iterable[Variant], quantity: str) -> dict[Variant, Number]:
        """The quantity of each of these variants that has it."""
        numbers = {variant: self.number(variant, quantity) for variant in variants}
        return {variant: number for variant, number in numbers.items() if number}


class Term(NamedTuple):
    """A term of a weighted sum: the mean of several quantities of a variant."""

    weight: float
    variant: Variant
    quantities: Sequence[str]


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


def weighted_sum(results: Results, terms: Sequence[Term]) -> tuple[float, float | None]:
    """A sum of quantities, and its standard error, pooled over the pre-training seeds of the
    variants; None if a variant has one seed. Variants are independent. Several quantities of the
    same runs are not, so they are added up in every run. ValueError if the weights of a variant
    differ in more than sign: seeds of a variant vary by one weight."""
    total = 0.0
    sums: dict[Variant, Any] = {}  # of each run, by its id
    weights: dict[Variant, float] = {}
    for weight, variant, quantities in terms:
        values = results.by_variant[variant].run_by_run(*quantities)
        total += weight * fmean(values)
        sums[variant] = sums.get(variant, 0) + weight * values
        if weights.setdefault(variant, abs(weight)) != abs(weight):
            raise ValueError(f"{variant} has the weights {weights[variant]} and {abs(weight)}")
    by_seed = {variant: (values / weights[variant]).dropna() for variant, values in sums.items()}
    seeds = {variant: len(values) for variant, values in by_seed.items()}
    if min(seeds.values()) < 2:
        return total, None
    squares = sum((seeds[variant] - 1) * variance(values) for variant, values in by_seed.items())
    pooled = squares / sum(count - 1 for count in seeds.values())
    share = sum(weights[variant] ** 2 / count for variant, count in seeds.items())
    return total, math.sqrt(pooled * share)


def decide(difference: float, error: float | None) -> Literal["yes", "no", "one seed", "unclear"]:
    """Whether a difference is positive. It is decided if it is more than two standard errors."""
    if error is None:
        return "one seed"
    if abs(difference) <= 2 * error:
        return "unclear"
    return "yes" if difference > 0 else "no"
