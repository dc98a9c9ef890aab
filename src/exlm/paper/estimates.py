"""From the numbers of runs to the numbers of tables: means over seeds, their spread, and the rule
by which a difference counts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any, Literal, NamedTuple

import pandas as pd

from exlm.paper.values import DIGITS, Cell


@dataclass(frozen=True)
class Number:
    """A number in a table, in the unit in which it is printed, with its standard deviation over
    seeds and its digits after the decimal point."""

    value: float
    spread: float | None = None
    digits: int = 1

    def __str__(self) -> str:
        text = f"{self.value:,.{self.digits}f}"
        return text if self.spread is None else f"{text} ± {self.spread:,.{self.digits}f}"


class RowResults:
    """The scores of the runs in a row of a table: those of a cell, or of a baseline.

    They come from a frame with a row for each run, score and seed: `run`, `score`, `value`, and
    `error`, the standard error over tokens. `center` (mean or median) is taken over the fine-tuning
    seeds of a run."""

    def __init__(self, scores: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        by_score = scores.groupby("score")
        spreads = by_score["value"].agg(spread).astype(float)
        # [runs, scores], and the spread of each score over all seeds
        self.by_run = scores.pivot_table("value", "run", "score", center)
        self.spreads = spreads.fillna(by_score["error"].first())

    def run_by_run(self, *scores: str) -> pd.Series:
        """The mean of these scores of each run that has all of them, by the id of the run."""
        return self.by_run.reindex(columns=list(scores)).mean(axis=1, skipna=False).dropna()

    def number(self, *scores: str) -> Number | None:
        """A score, or the mean of several, over the runs that have all of them; None without such a
        run. The spread is the standard deviation over all seeds, of several scores over
        pre-training seeds; of a single number, the standard error over tokens, if known."""
        values = self.run_by_run(*scores)
        if values.empty:
            return None
        over_seeds = self.spreads[scores[0]] if len(scores) == 1 else spread(values)
        digits = DIGITS.get(scores[0], 1)
        return Number(fmean(values), None if pd.isna(over_seeds) else over_seeds, digits)


class Results:
    """The scores of cells, from a frame as that of `RowResults`, which also has the fields of
    `Cell`."""

    def __init__(self, scores: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        key: Any
        self.by_cell: dict[Cell, RowResults] = {}
        for key, rows in scores.groupby(list(Cell._fields)):
            self.by_cell[Cell(*key)] = RowResults(rows, center)

    def number(self, cell: Cell, *scores: str) -> Number | None:
        """The `RowResults.number` of a cell; None if there is no run of it."""
        return self.by_cell[cell].number(*scores) if cell in self.by_cell else None

    def numbers(self, cells: Iterable[Cell], score: str) -> dict[Cell, Number]:
        """The score of each of these cells that has it."""
        numbers = {cell: self.number(cell, score) for cell in cells}
        return {cell: number for cell, number in numbers.items() if number}


class Term(NamedTuple):
    """A term of a weighted sum: the mean of several scores of a cell."""

    weight: float
    cell: Cell
    scores: Sequence[str]


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


def weighted_sum(results: Results, terms: Sequence[Term]) -> tuple[float, float | None]:
    """A sum of scores, and its standard error, pooled over the pre-training seeds of the cells;
    None if a cell has one seed. Cells are independent. Several scores of the same runs are not, so
    they are added up in every run. ValueError if the weights of a cell differ in more than sign:
    seeds of a cell vary by one weight."""
    total = 0.0
    sums: dict[Cell, Any] = {}
    weights: dict[Cell, float] = {}
    for weight, cell, scores in terms:
        values = results.by_cell[cell].run_by_run(*scores)
        total += weight * fmean(values)
        sums[cell] = sums.get(cell, 0) + weight * values
        if weights.setdefault(cell, abs(weight)) != abs(weight):
            raise ValueError(f"{cell} has the weights {weights[cell]} and {abs(weight)}")
    seeds = {cell: (values / weights[cell]).dropna() for cell, values in sums.items()}
    if min(map(len, seeds.values())) < 2:
        return total, None
    squares = sum((len(values) - 1) * variance(values) for values in seeds.values())
    pooled = squares / sum(len(values) - 1 for values in seeds.values())
    share = sum(weights[cell] ** 2 / len(values) for cell, values in seeds.items())
    return total, math.sqrt(pooled * share)


def decide(difference: float, error: float | None) -> Literal["yes", "no", "one seed", "unclear"]:
    """Whether seeds show that a difference is positive. It is decided if the difference is farther
    from 0 than two standard errors."""
    if error is None:
        return "one seed"
    if abs(difference) <= 2 * error:
        return "unclear"
    return "yes" if difference > 0 else "no"
