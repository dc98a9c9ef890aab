"""From the numbers of runs to the numbers of tables: means over seeds, their spread, and the rule
by which a difference counts."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev, variance
from typing import Any, Literal

import pandas as pd

from exlm.paper.models import MODEL_COLUMNS, Model

Mean = tuple[float, float | None]  # with its spread, if there is one
Term = tuple[float, Model, Sequence[str]]  # a weight, and the mean of several quantities of a model


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


class Means:
    """The means over seeds of a frame of numbers, which has the columns of a `Model`, pretraining,
    quantity, value, and error. `center` (mean or median) is taken over the fine-tuning seeds of a
    run.

    Attributes:
        by_run: a row for each model and run, a column for each quantity.
        spreads: by model and quantity, the standard deviation over all seeds; of a single number
            the standard error over tokens, if known."""

    def __init__(self, numbers: pd.DataFrame, center: Callable[..., float] = fmean) -> None:
        by_quantity = numbers.groupby([*MODEL_COLUMNS, "quantity"])
        spreads = by_quantity["value"].agg(spread).astype(float)
        self.spreads = spreads.fillna(by_quantity["error"].first())
        self.by_run = numbers.pivot_table(
            "value", [*MODEL_COLUMNS, "pretraining"], "quantity", center
        )

    def run_by_run(self, model: Model, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run of a model that has all of them."""
        if model not in self.by_run.index:
            return pd.Series(dtype=float)
        of_model: Any = self.by_run.xs(tuple(model))
        values = of_model.reindex(columns=list(quantities))
        return values.mean(axis=1, skipna=False).dropna()

    def mean(self, model: Model, *quantities: str) -> Mean | None:
        """A quantity, or the mean of several, over the runs that have all of them, and its spread:
        of several quantities, the standard deviation over pre-training seeds. None without such a
        run."""
        values = self.run_by_run(model, *quantities)
        if values.empty:
            return None
        if len(quantities) > 1:
            return fmean(values), spread(values)
        over_seeds = float(self.spreads[(*model, quantities[0])])
        return fmean(values), None if math.isnan(over_seeds) else over_seeds

    def by_model(self, models: Iterable[Model], quantity: str) -> dict[Model, Mean]:
        """The mean of a quantity of each of these models that has it."""
        means = {model: self.mean(model, quantity) for model in models}
        return {model: mean for model, mean in means.items() if mean}


def weighted_sum(means: Means, terms: Sequence[Term]) -> tuple[float, float | None]:
    """A sum of quantities, and its standard error, pooled over the pre-training seeds of the
    models; None if a model has one seed. Models are independent. Several quantities of the same
    runs are not, so they are added up in every run. ValueError if the weights of a model differ in
    more than sign: seeds of a model vary by one weight."""
    total = 0.0
    sums: dict[Model, Any] = {}  # of each run, by its id
    weights: dict[Model, float] = {}
    for weight, model, quantities in terms:
        values = means.run_by_run(model, *quantities)
        total += weight * fmean(values)
        sums[model] = sums.get(model, 0) + weight * values
        if weights.setdefault(model, abs(weight)) != abs(weight):
            raise ValueError(f"{model} has the weights {weights[model]} and {abs(weight)}")
    by_seed = {model: (values / weights[model]).dropna() for model, values in sums.items()}
    seeds = {model: len(values) for model, values in by_seed.items()}
    if min(seeds.values()) < 2:
        return total, None
    squares = sum((seeds[model] - 1) * variance(values) for model, values in by_seed.items())
    pooled = squares / sum(count - 1 for count in seeds.values())
    share = sum(weights[model] ** 2 / count for model, count in seeds.items())
    return total, math.sqrt(pooled * share)


def decide(difference: float, error: float | None) -> Literal["yes", "no", "one seed", "unclear"]:
    """Whether a difference is positive. It is decided if it is more than two standard errors."""
    if error is None:
        return "one seed"
    if abs(difference) <= 2 * error:
        return "unclear"
    return "yes" if difference > 0 else "no"
