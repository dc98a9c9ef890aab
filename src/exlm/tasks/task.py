"""What all tasks have in common, whether a model or a baseline learns them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from exlm.tasks.config import TaskConfig
from exlm.tasks.labels.metrics import Metric


@dataclass(eq=False, kw_only=True)
class Task:
    """Labelled data, read once for all seeds."""

    config: TaskConfig  # the settings, with what was inferred from the data
    metric: str  # chooses epoch and grid cell
    metrics: Mapping[str, Metric]  # by name, all that may be chosen
    summary: str  # the data in one line
    reported_rows: pd.DataFrame  # with something wrong: part, row, value, reason, action
    # what must be equal for results to be combined, besides the settings
    identity: dict[str, Any]
    departures: list[str]  # from the published data, in words

    def check_and_announce(self, seed: int) -> None:
        """Prints what a seed is trained and scored on, if that depends on the seed. InputError if
        it cannot be, which is found for every seed before the first one is trained."""
