"""The comparisons of docs/results/evidence-plan.md: ExLM against the MLM of equal cost, paired by
seed.

What the plan decides beforehand (pairs, the rule for a win, what is chosen with the MLM's runs) is
written here once; `evidence_page.py` shows what comes out.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest, t

NAMES = {  # of the kinds of models of lines 1 to 7, by name without the seed
    "mlm-5000": "MLM, 5,000 updates",
    "mlm-5750": "MLM, 5,750 updates",
    "late-k2": "ExLM k = 2, last layer expanded",
    "mlm-5850": "MLM, 5,850 updates",
    "all-k2": "ExLM k = 2, all layers expanded",
    "paper-k2": "ExLM k = 2 as in the paper",
    "mlm-6600-p387": "MLM, 6,600 updates",
    "late-k2-p387": "ExLM k = 2, last layer expanded",
    "mlm-11300-p387": "MLM, 11,300 updates",
    "all-k4-p387": "ExLM k = 4, all layers expanded",
    "text-mlm-5000": "MLM, 5,000 updates",
    "text-mlm-8800": "MLM, 8,800 updates",
    "text-all-k4": "ExLM k = 4, all layers expanded",
    "long-mlm-26400-p387": "MLM, 26,400 updates",
    "long-late-k2-20000-p387": "ExLM k = 2, last layer expanded, 20,000 updates",
    "long-mlm-66000-p387": "MLM, 66,000 updates",
    "long-late-k2-50000-p387": "ExLM k = 2, last layer expanded, 50,000 updates",
}
LINES = {  # where models may be compared with each other
    "molecules, 15% masks": ["mlm-5000", "mlm-5750", "late-k2", "mlm-5850", "all-k2", "paper-k2"],
    "molecules, 38.7% masks": ["mlm-6600-p387", "late-k2-p387", "mlm-11300-p387", "all-k4-p387"],
    "text, 15% masks": ["text-mlm-5000", "text-mlm-8800", "text-all-k4"],
    "molecules, 38.7% masks, four times as long": [
        "long-mlm-26400-p387",
        "long-late-k2-20000-p387",
    ],
    "molecules, 38.7% masks, ten times as long": ["long-mlm-66000-p387", "long-late-k2-50000-p387"],
}
# ExLM and the MLM of equal cost, by name without the seed; the mask ratio of their training
PAIRS = {
    ("late-k2", "mlm-5750"): "0.15",
    ("all-k2", "mlm-5850"): "0.15",
    ("paper-k2", "mlm-5850"): "0.15",
    ("late-k2-p387", "mlm-6600-p387"): "0.387",
    ("all-k4-p387", "mlm-11300-p387"): "0.387",
    ("text-all-k4", "text-mlm-8800"): "0.15",
    ("long-late-k2-20000-p387", "long-mlm-26400-p387"): "0.387",
    ("long-late-k2-50000-p387", "long-mlm-66000-p387"): "0.387",
}
REPEATED = {  # line 8: the share of masks and the number of copies of every token
    "mlm-p150-r1": (0.15, 1),
    "mlm-p387-r2": (0.387, 2),
    "mlm-p622-r4": (0.622, 4),
    "mlm-p789-r8": (0.789, 8),
    "mlm-p622-r2": (0.622, 2),
    "mlm-p622-r1": (0.622, 1),
}
# as much corruption, ever more masks
UNREAL = ("mlm-p150-r1", "mlm-p387-r2", "mlm-p622-r4", "mlm-p789-r8")
CORRUPTED = ("mlm-p622-r4", "mlm-p622-r2", "mlm-p622-r1")  # as many masks, ever more corruption
LEVEL = 0.01  # nats: a smaller mean difference in joint nll is no win
TOLERATED = 0.03  # share: if costs differ by more, the MLM's number is read off its curve
RESAMPLES, SEED = 10_000, 0
ERRORS = ("esol", "lipophilicity", "freesolv")  # sets with an error as score: lower is better

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_seed(records: list[Record], kind: str) -> dict[int, Record]:
    """The runs of one kind of model by seed."""
    return {
        record["seed"]: record for record in records if record["name"].rpartition("-s")[0] == kind
    }


def cost(runs: dict[int, Record]) -> float:
    """Processor seconds of a training, evaluations included: the median of the seeds, which have
    the same work."""
    return median(record["cpu"] for record in runs.values())


def at_cost(mlm: Record, share: float, score: str, ratio: str) -> float:
    """The MLM's score after `share` of its updates; its curve says how much that differs from its
    last one."""
    final = mlm["evaluation"][ratio][score]
    steps = [point["step"] for point in mlm["curve"]]
    values = [point[score] for point in mlm["curve"]]
    if not share < 1 - TOLERATED:  # a longer run than there is cannot be read off
        return final
    return final + float(np.interp(share * steps[-1], steps, values)) - values[-1]


@dataclass(frozen=True)
class Pair:
    """The scores of an ExLM and an MLM [seeds], and the ratio of their costs."""

    exlm: np.ndarray
    mlm: np.ndarray
    cost: float

    @property
    def differences(self) -> np.ndarray:
        """Positive where ExLM is better: its nll is lower."""
        return self.mlm - self.exlm

    @property
    def verdict(self) -> str:
        """The plan's rule for the joint nll: all seeds agree, and the mean difference is more than
        `LEVEL`."""
        found = self.differences
        if len(found) < 3:
            return "too few seeds"
        clear = abs(found.mean()) > LEVEL and len(set(np.sign(found))) == 1
        return "level" if not clear else "ExLM" if found.mean() > 0 else "MLM"


def pair(
    records: list[Record], exlm: str, mlm: str, score: str, ratio: str | None = None
) -> Pair | None:
    """The runs of these kinds that have a partner of the same seed, evaluated with this share of
    masks or that of their training; None if there are none."""
    ours, theirs = by_seed(records, exlm), by_seed(records, mlm)
    seeds, ratio = sorted(ours.keys() & theirs.keys()), ratio or PAIRS[exlm, mlm]
    if not seeds:
        return None
    share = cost(ours) / cost(theirs)
    own = [ours[seed]["evaluation"][ratio][score] for seed in seeds]
    return Pair(
        np.array(own),
        np.array([at_cost(theirs[seed], share, score, ratio) for seed in seeds]),
        share,
    )


def student(values: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean of at least two values, which are taken as normal."""
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def chosen_with(mlm: pd.DataFrame) -> str:
    """The choice that is best for the MLM on valid, by its mean rank over sets and seeds with every
    choice."""
    signed = mlm["valid"].where(~mlm["set"].isin(ERRORS), -mlm["valid"])
    cells = signed.groupby([mlm["set"], mlm["seed"]])
    complete = cells.transform("size") == mlm["choice"].nunique()
    return str(cells.rank()[complete].groupby(mlm["choice"]).mean().idxmax())


def table_of(records: list[Record], kind: str) -> pd.DataFrame:
    """A row for every set, seed, and choice of layer and rate of one kind of model: means over the
    seeds of the fine-tuning, where there was one."""
    rows = []
    for record in records:
        name, _, seed = Path(record["model"]).name.rpartition("-s")
        if name == kind:
            choice = f"{record['layers']} layers" + (
                f", rate {record['rate']:g}" if "rate" in record else ""
            )
            rows.append(
                {"set": record["set"], "seed": int(seed), "choice": choice, **_scores(record)}
            )
    return pd.DataFrame(rows).groupby(["set", "seed", "choice"], as_index=False).mean()


def _scores(record: Record) -> Record:
    return {part: record[part] for part in ("valid", "test")}


def repeated(records: list[Record]) -> pd.DataFrame:
    """Comparison 5: for every seed (row) the mean score of every kind of line 8, and its range in
    both directions, over the sets that have all kinds. A score is in units of its set's standard
    deviation over all models, from their mean; higher is better."""
    found = pd.concat([table_of(records, kind).assign(kind=kind) for kind in REPEATED])
    signed = found["test"].where(~found["set"].isin(ERRORS), -found["test"])
    sets = signed.groupby(found["set"])
    found = found.assign(score=(signed - sets.transform("mean")) / sets.transform("std"))
    scores = (
        found.pivot_table(index=["set", "seed"], columns="kind", values="score")
        .dropna()
        .groupby("seed")
        .mean()
    )
    directions = {"corruption": CORRUPTED, "masks": UNREAL}
    ranges = {
        name: np.ptp(scores[list(kinds)].to_numpy(), axis=1) for name, kinds in directions.items()
    }
    return scores[list(REPEATED)].assign(**ranges)


def claim(scores: pd.DataFrame) -> str:
    """What `repeated` says of the paper's claim that corruption matters more than unreal tokens, by
    the plan's rule."""
    larger = scores["corruption"] > scores["masks"]
    if len(larger) < 3:
        return "undecided: fewer than three seeds"
    return "confirmed" if larger.all() else "not decided" if larger.any() else "refuted"


def compare_downstream(ours: pd.DataFrame, theirs: pd.DataFrame, choice: str) -> pd.DataFrame:
    """For every set, both scores with this choice, and the paired differences in units of the
    standard deviation of the MLM over seeds; positive differences are better."""
    found = []
    for frame in (ours, theirs):
        found.append(
            frame[frame["choice"] == choice].pivot(index="set", columns="seed", values="test")
        )
    own, other = (part.dropna() for part in found[0].align(found[1], join="inner"))
    own, other = own.align(other, join="inner", axis=0)  # sets that have a result for every seed
    sign = pd.Series(np.where(own.index.isin(ERRORS), -1.0, 1.0), own.index)
    differences = (own - other).mul(sign, axis=0)
    spread = other.std(axis=1)
    scaled = differences.div(spread, axis=0)
    means = {
        "ExLM": own.mean(axis=1),
        "s.d.": own.std(axis=1),
        "MLM": other.mean(axis=1),
        "s.d. of MLM": spread,
    }
    return (
        pd.DataFrame(means)
        .assign(difference=differences.mean(axis=1))
        .join(scaled.add_prefix("in s.d., seed "))
    )


def interval(scaled: np.ndarray) -> tuple[float, float, float]:
    """The mean of [tasks, seeds] and its 95% bootstrap interval over tasks and seeds."""
    generator, (tasks, seeds) = np.random.default_rng(SEED), scaled.shape
    draws = [
        scaled[
            np.ix_(generator.integers(tasks, size=tasks), generator.integers(seeds, size=seeds))
        ].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(scaled.mean()), float(low), float(high)


@dataclass(frozen=True)
class Downstream:
    """What a comparison of two kinds of models gave: the choice made with the MLM, a row for every
    set, the mean difference over sets and seeds in s.d. with its interval (NaN with one seed), and
    the sign test over the sets."""

    choice: str
    table: pd.DataFrame
    mean: float
    low: float
    high: float
    wins: int
    p: float

    @property
    def seeds(self) -> int:
        """Of the pre-training."""
        return self.table.filter(like="in s.d.").shape[1]

    @property
    def verdict(self) -> str:
        if self.seeds < 3:
            return "too few seeds"
        return "ExLM" if self.low > 0 else "MLM" if self.high < 0 else "level"


def downstream(records: list[Record], exlm: str, mlm: str, choice: str) -> Downstream:
    """The sets and seeds that have a result for both kinds of models with this choice of layers and
    rate."""
    table = compare_downstream(table_of(records, exlm), table_of(records, mlm), choice)
    scaled = table.filter(like="in s.d.").to_numpy()
    wins = int((table["difference"] > 0).sum())
    return Downstream(
        choice, table, *interval(scaled), wins, float(binomtest(wins, len(scaled)).pvalue)
    )
