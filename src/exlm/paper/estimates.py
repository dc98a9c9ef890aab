"""From the numbers of runs to the numbers of tables: means over seeds, their spread, and the rule
by which a difference counts."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance
from typing import Any, Literal

import pandas as pd

from exlm.paper.values import VALUES, Cell


@dataclass(frozen=True)
class Number:
    """A number in a table, in the unit in which it is printed, with its standard deviation over all
    seeds and its digits after the decimal point. `centers` has one number per pre-training seed, by
    the id of the run."""

    value: float
    spread: float | None = None
    digits: int = 1
    centers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.value:,.{self.digits}f}{spread}"


# A pivot of the numbers of runs: a row for each cell, a column for each score.
Pivot = dict[Cell, dict[str, Number]]
# The terms of a weighted sum
Terms = Sequence[tuple[float, Number]]


def in_cells(scores: pd.DataFrame, places: Iterable[tuple[str, Cell, str]]) -> pd.DataFrame:
    """Those rows of `Runs.scores` that have a place, with the fields of their `Cell` and with
    `run`. Each of `places` names the source, its cell, and the run of which it is a seed."""
    rows = [(source, *cell, run) for source, cell, run in places]
    return pd.DataFrame(rows, columns=["source", *Cell._fields, "run"]).merge(scores, on="source")


def pivot(scores: pd.DataFrame, center: Callable[[pd.Series], float] = fmean) -> Pivot:
    """The numbers of all cells, from the rows of `in_cells`. `center` (mean or median) is taken
    over the fine-tuning seeds of a run, then the mean over runs. The spread is the standard
    deviation over all seeds; of a single number, the standard error over tokens, if known."""
    numbers: Pivot = defaultdict(dict)
    key: Any
    for key, rows in scores.groupby([*Cell._fields, "score"]):
        *cell, score = key
        centers = {str(run): center(values) for run, values in rows.groupby("run")["value"]}
        spread = stdev(rows["value"]) if len(rows) > 1 else rows["error"].iloc[0]
        numbers[Cell(*cell)][score] = Number(
            fmean(centers.values()),
            None if pd.isna(spread) else spread,
            VALUES["digits"].get(score, 1),
            centers,
        )
    return numbers


def average(numbers: Mapping[str, Number], scores: Sequence[str]) -> Number | None:
    """The mean of several scores of a cell, over the runs that have all of them; None without such
    a run. Its spread is the standard deviation over pre-training seeds."""
    if not scores or not numbers.keys() >= set(scores):
        return None
    if len(scores) == 1:
        return numbers[scores[0]]
    sums = run_by_run([(1.0, numbers[score]) for score in scores])
    if not sums:
        return None
    centers = {run: value / len(scores) for run, value in sums.items()}
    spread = stdev(centers.values()) if len(centers) > 1 else None
    return Number(fmean(centers.values()), spread, numbers[scores[0]].digits, centers)


def run_by_run(terms: Terms) -> dict[str, float]:
    """A weighted sum of scores of one cell, by the id of each run that has all of them."""
    numbers = [number for _, number in terms]
    runs = [run for run in numbers[0].centers if all(run in each.centers for each in numbers)]
    return {run: math.fsum(weight * each.centers[run] for weight, each in terms) for run in runs}


def standard_error(cells: Sequence[Terms]) -> float | None:
    """The standard error of a sum over independent cells, each with its terms, pooled over their
    pre-training seeds; None if a cell has one seed. Several scores of the same runs are not
    independent, so they are added up in every run."""
    weighted = [_weight_and_values(terms) for terms in cells]
    seeds = [values for _, values in weighted]
    if min(map(len, seeds)) < 2:
        return None
    squares = sum((len(values) - 1) * variance(values) for values in seeds)
    pooled = squares / sum(len(values) - 1 for values in seeds)
    return math.sqrt(pooled * sum(weight**2 / len(values) for weight, values in weighted))


def _weight_and_values(terms: Terms) -> tuple[float, list[float]]:
    """The terms of a cell as one: a weight, and a value for every pre-training seed. A sum of
    several terms has the weight 1."""
    if len(terms) > 1:
        return 1.0, list(run_by_run(terms).values())
    [(weight, number)] = terms
    return weight, list(number.centers.values())


def decide(difference: float, error: float | None) -> Literal["yes", "no", "one seed", "unclear"]:
    """Whether seeds show that a difference is positive. It is decided if the difference is farther
    from 0 than two standard errors."""
    if error is None:
        return "one seed"
    if abs(difference) <= 2 * error:
        return "unclear"
    return "yes" if difference > 0 else "no"
