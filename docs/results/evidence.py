"""The comparisons of docs/results/evidence-plan.md: ExLM against the MLM of equal cost, paired by seed.

    python docs/results/evidence.py pretraining docs/results/evidence.jsonl
    python docs/results/evidence.py downstream probes.jsonl --exlm late-k2 --mlm mlm-5750

The first reads the results of `learning.py run`, the second those of `linear_probe.py` or `finetuned.py`. What a plan
decides beforehand (pairs, the rule for a win, what is chosen with the MLM's runs) is written here once.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

PAIRS = {  # ExLM and the MLM of equal cost, by name without the seed; the mask ratio of their training
    ("late-k2", "mlm-5750"): "0.15",
    ("all-k2", "mlm-5850"): "0.15",
    ("paper-k2", "mlm-5850"): "0.15",
    ("late-k2-p387", "mlm-6600-p387"): "0.387",
    ("all-k4-p387", "mlm-11300-p387"): "0.387",
    ("text-all-k4", "text-mlm-8800"): "0.15",
    ("long-late-k2-50000-p387", "long-mlm-66000-p387"): "0.387",
}
LEVEL = 0.01  # nats: a smaller mean difference in joint nll is no win
TOLERATED = 0.03  # share: if costs differ by more, the MLM's number is read off its curve
RESAMPLES, SEED = 10_000, 0
ERRORS = ("esol", "lipophilicity", "freesolv")  # sets with an error as score: lower is better

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_seed(records: list[Record], kind: str) -> dict[int, Record]:
    """The runs of one kind of model by seed."""
    return {record["seed"]: record for record in records if record["name"].rpartition("-s")[0] == kind}


def cost(runs: dict[int, Record]) -> float:
    """Processor seconds of a training, evaluations included: the most of all seeds, which have the same work. One that
    was interrupted counts only what it did after it went on."""
    return max(record["cpu"] for record in runs.values())


def at_cost(mlm: Record, share: float, score: str, ratio: str) -> float:
    """The MLM's score after `share` of its updates; its curve says how much that differs from its last one."""
    final = mlm["evaluation"][ratio][score]
    steps = [point["step"] for point in mlm["curve"]]
    values = [point[score] for point in mlm["curve"]]
    if not share < 1 - TOLERATED:  # a longer run than there is cannot be read off
        return final
    return final + float(np.interp(share * steps[-1], steps, values)) - values[-1]


def compare_pretraining(records: list[Record], score: str) -> pd.DataFrame:
    """A row for every pair that has runs: the mean scores, the paired differences, and who wins by the plan's rule."""
    rows = []
    for (exlm, mlm), ratio in PAIRS.items():
        ours, theirs = by_seed(records, exlm), by_seed(records, mlm)
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            continue
        share = cost(ours) / cost(theirs) if len(seeds) > 1 else float("nan")  # one run may have been interrupted
        values = [(ours[s]["evaluation"][ratio][score], at_cost(theirs[s], share, score, ratio)) for s in seeds]
        differences = np.array([own - other for own, other in values])
        clear = len(seeds) > 1 and abs(differences.mean()) > LEVEL and len(set(np.sign(differences))) == 1
        winner = "level" if not clear else "ExLM" if differences.mean() < 0 else "MLM"
        rows.append(
            {
                "ExLM": exlm,
                "MLM of equal cost": mlm,
                "seeds": len(seeds),
                "cost, ExLM / MLM": round(share, 3),
                f"{score}, ExLM": round(float(np.mean([own for own, _ in values])), 4),
                f"{score}, MLM": round(float(np.mean([other for _, other in values])), 4),
                "differences": " ".join(f"{d:+.4f}" for d in differences),
                "ahead": winner if len(seeds) > 1 else "one seed",
            }
        )
    return pd.DataFrame(rows)


def chosen_with(mlm: pd.DataFrame) -> str:
    """The choice that is best for the MLM on valid, by its mean rank over sets and seeds with every choice."""
    signed = mlm["valid"].where(~mlm["set"].isin(ERRORS), -mlm["valid"])
    cells = signed.groupby([mlm["set"], mlm["seed"]])
    complete = cells.transform("size") == mlm["choice"].nunique()
    return str(cells.rank()[complete].groupby(mlm["choice"]).mean().idxmax())


def table_of_probes(records: list[Record], kind: str) -> pd.DataFrame:
    """A row for every set, seed, and choice of layer and pooling of one kind of model."""
    rows = []
    for record in records:
        name, _, seed = Path(record["model"]).name.rpartition("-s")
        for pooling in ("mean", "mean and maximum") if name == kind else ():
            choice = f"{pooling} after {record['layers']} layers"
            rows.append({"set": record["set"], "seed": int(seed), "choice": choice, **record[pooling]})
    return pd.DataFrame(rows)


def table_of_finetunings(records: list[Record], kind: str) -> pd.DataFrame:
    """A row for every set, seed, and choice of layer and rate: means over the seeds of the fine-tuning."""
    rows = []
    for record in records:
        name, _, seed = Path(record["model"]).name.rpartition("-s")
        if name == kind:
            choice = f"rate {record['rate']:g} after {record['layers']} layers"
            rows.append({"set": record["set"], "seed": int(seed), "choice": choice} | _scores(record))
    return pd.DataFrame(rows).groupby(["set", "seed", "choice"], as_index=False).mean()


def _scores(record: Record) -> Record:
    return {part: record[part] for part in ("valid", "test")}


def compare_downstream(ours: pd.DataFrame, theirs: pd.DataFrame, choice: str) -> pd.DataFrame:
    """For every set, both scores with this choice, and the paired differences in units of the standard deviation of the
    MLM over seeds; positive differences are better."""
    found = []
    for frame in (ours, theirs):
        found.append(frame[frame["choice"] == choice].pivot(index="set", columns="seed", values="test"))
    own, other = found[0].align(found[1], join="inner")
    sign = pd.Series(np.where(own.index.isin(ERRORS), -1.0, 1.0), own.index)
    differences = (own - other).mul(sign, axis=0)
    spread = other.std(axis=1)
    scaled = differences.div(spread, axis=0)
    means = {"ExLM": own.mean(axis=1), "s.d.": own.std(axis=1), "MLM": other.mean(axis=1), "s.d. of MLM": spread}
    return pd.DataFrame(means).assign(difference=differences.mean(axis=1)).join(scaled.add_prefix("in s.d., seed "))


def interval(scaled: np.ndarray) -> tuple[float, float, float]:
    """The mean of [tasks, seeds] and its 95% bootstrap interval over tasks and seeds."""
    generator, (tasks, seeds) = np.random.default_rng(SEED), scaled.shape
    draws = [
        scaled[np.ix_(generator.integers(tasks, size=tasks), generator.integers(seeds, size=seeds))].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(scaled.mean()), float(low), float(high)


def show_downstream(records: list[Record], exlm: str, mlm: str) -> str:
    tabulate = table_of_finetunings if "rate" in records[0] else table_of_probes
    theirs = tabulate(records, mlm)
    choice = chosen_with(theirs)
    table = compare_downstream(tabulate(records, exlm), theirs, choice)
    scaled = table.filter(like="in s.d.").to_numpy()
    mean, low, high = interval(scaled)
    wins, tasks = int((scaled.mean(1) > 0).sum()), len(scaled)
    sign_test = binomtest(wins, tasks).pvalue
    verdict = "ExLM wins" if low > 0 else "the MLM wins" if high < 0 else "level"
    lines = [
        f"chosen with the MLM's runs: {choice}",
        markdown(table.round(3).reset_index()),
        f"mean over tasks {mean:+.2f} s.d., 95% interval {low:+.2f} to {high:+.2f}: {verdict}",
        f"ExLM is ahead in {wins} of {tasks} tasks (sign test p = {sign_test:.2f})",
    ]
    return "\n\n".join(lines)


def markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("pretraining")
    first.add_argument("results", type=Path)
    second = commands.add_parser("downstream")
    second.add_argument("results", type=Path)
    second.add_argument("--exlm", required=True)
    second.add_argument("--mlm", required=True)
    options = parser.parse_args()
    if options.command == "downstream":
        print(show_downstream(read(options.results), options.exlm, options.mlm))
        return
    for score in ("joint_nll", "nll"):
        print(markdown(compare_pretraining(read(options.results), score)), end="\n\n")


if __name__ == "__main__":
    main()
