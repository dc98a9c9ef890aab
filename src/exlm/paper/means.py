"""Means of numbers over the seeds of models, and their spread."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, stdev

import pandas as pd

from exlm.paper.display import HELD_OUT, Model
from exlm.paper.pretrainings import Numbers

Mean = tuple[float, float | None]  # with its spread, if there is one


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation; None for a single number."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else None


class Means:
    """The means over seeds of `numbers`, by model and the id of the pre-training. `center` (mean or
    median) is taken over the fine-tuning seeds of a pre-training."""

    def __init__(
        self,
        numbers: Mapping[Model, Mapping[str, Numbers]],
        center: Callable[..., float] = fmean,
    ) -> None:
        self._numbers = numbers
        self._center = center

    def run_by_run(self, model: Model, *quantities: str) -> pd.Series:
        """The mean of these quantities in each run of a model that has all of them."""
        means: dict[str, dict[str, float]] = {quantity: {} for quantity in quantities}
        for run, numbers in self._numbers.get(model, {}).items():
            for quantity in numbers.keys() & means.keys():
                means[quantity][run] = self._center(numbers[quantity])
        return pd.DataFrame(means, dtype=float).sort_index().dropna().mean(axis=1)

    def mean(self, model: Model, *quantities: str) -> Mean | None:
        """A quantity, or the mean of several, over the runs that have all of them, and its spread:
        of several quantities, the standard deviation over pre-training seeds; of one, that over all
        seeds, or for a single number its standard error over tokens, if known. None without such a
        run."""
        values = self.run_by_run(model, *quantities)
        if values.empty:
            return None
        if len(quantities) > 1:
            return fmean(values), spread(values)
        [quantity] = quantities
        seeds = self._seeds(model, quantity)
        if len(seeds) > 1:
            return fmean(values), stdev(seeds)
        errors = self._seeds(model, HELD_OUT.get(quantity, {}).get("error", ""))
        return fmean(values), errors[0] if errors else None

    def _seeds(self, model: Model, quantity: str) -> list[float]:
        """The numbers of all seeds of all runs."""
        seeds = []
        for numbers in self._numbers[model].values():
            seeds += numbers.get(quantity, [])
        return seeds

    def by_model(self, models: Iterable[Model], quantity: str) -> dict[Model, Mean]:
        """The mean of a quantity of each of these models that has it."""
        means = {model: self.mean(model, quantity) for model in models}
        return {model: mean for model, mean in means.items() if mean}
