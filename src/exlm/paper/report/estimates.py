"""What the seeds of a cell say: a mean, its spread and its standard error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev, variance

from exlm.paper.report.document import Cell


@dataclass(frozen=True)
class Estimate:
    """A number averaged over seeds: for every pre-training seed its value, or those of its fine-tuning seeds."""

    groups: tuple[tuple[float, ...], ...]
    runs: tuple[str, ...]
    median: bool = False  # over fine-tuning seeds, in place of the mean
    departures: tuple[str, ...] = ()  # of the data from the published

    @property
    def centers(self) -> list[float]:
        return [(median if self.median else fmean)(group) for group in self.groups]

    @property
    def value(self) -> float:
        return fmean(self.centers)

    @property
    def count(self) -> int:
        return sum(map(len, self.groups))

    @property
    def spread(self) -> float | None:
        """Standard deviation over all seeds."""
        return stdev([v for group in self.groups for v in group]) if self.count > 1 else None

    @property
    def seeds(self) -> str:
        """Pre-training x fine-tuning seeds."""
        sizes = sorted({len(group) for group in self.groups})
        return f"{len(self.groups)} × {'–'.join(map(str, sizes))}"

    def cell(self, digits: int = 1) -> Cell:
        """As it is printed, with seeds and runs in the note."""
        what = "mean of medians" if self.median else "mean"
        note = f"{what} of {self.seeds} (pre-training × fine-tuning) seeds; runs {' '.join(self.runs)}"
        mark = "†" if self.departures else ""
        return Cell(self.value, self.spread, digits=digits, note="; ".join([note, *self.departures]), mark=mark)


@dataclass(frozen=True)
class Noise:
    """The pooled standard deviation of a seed: of `pre-training` where a cell has several, else of `fine-tuning`."""

    deviation: float
    unit: str

    def error(self, estimate: Estimate) -> float:
        """Standard error of an estimate."""
        count = len(estimate.groups) if self.unit == "pre-training" else estimate.count
        return self.deviation / math.sqrt(count)


def pooled(groups: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within groups; None if no group has two members."""
    several = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in several)
    return math.sqrt(sum((len(g) - 1) * variance(g) for g in several) / freedom) if freedom else None
