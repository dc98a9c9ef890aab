"""The comparisons of evidence.md, by the rule of evidence-plan.md, and its figures.

    python docs/results/evidence.py

Fills the tables of the page, and of README.md, from pairs.jsonl and pairs-differences.jsonl
(`pairs.py`), pairs-probes.jsonl (`linear_probe.py`) and pairs-finetuned.jsonl (`finetuned.py`),
which lie beside it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib
import numpy as np
import pandas as pd
from pages import fill, table

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
Record = dict[str, Any]
LOWER_IS_BETTER = ("esol", "lipophilicity", "freesolv")
DECIDES = "0.387 in 1"
PASSES = ("1", "2", "4", "all")
MASKS = ("1", "2", "4", "8", "16")
MIN_SEEDS = 3
CLEAR = 2  # standard deviations of the MLM over seeds
TOKENS_PER_UPDATE = 4096
# The pairs of the page, by the names of their runs.
KINDS = {
    "short-k2": "1M",
    "long-k2": "1M, longer",
    "short-k4": "1M, k = 4",
    "molecules-5M": "5M",
    "text-k2": "1M, text",
}
DRAWN = {"long-k2": "black", "short-k4": "tab:orange", "molecules-5M": "0.6"}
SCORES = {  # beside the one that decides
    "0.387 in 2": "2 passes",
    "0.387 in 4": "4 passes",
    "0.387 in all": "all passes",
    "0.15 in 1": "15% masks, one pass",
    "1 masks": "one mask, one pass",
}


class Comparison(NamedTuple):
    """An ExLM beside its MLM in one score; differences are positive where ExLM is better."""

    exlm: float
    mlm: float
    differences: list[float]  # one for each seed
    error_over_sequences: float  # the largest of the seeds'

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences))

    @property
    def error_over_seeds(self) -> float:
        return standard_error(self.differences)

    @property
    def verdict(self) -> str:
        return verdict(self.differences, self.error_over_sequences)


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; NaN for a single value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def verdict(differences: Sequence[float], other_error: float) -> str:
    """Who wins by the rule of the plan: ahead in all seeds, and by more than twice both standard
    errors, over seeds and `other_error`."""
    if len(differences) < MIN_SEEDS:
        return "one seed" if len(differences) == 1 else "too few seeds"
    mean = float(np.mean(differences))
    if min(abs(mean) - 2 * standard_error(differences), abs(mean) - 2 * other_error) <= 0:
        return "level"
    if min(differences) > 0:
        return "ExLM"
    return "MLM" if max(differences) < 0 else "level"


def kind_of(name: str) -> str:
    """The name of a pair without its seed: `short-k2` of `short-k2-s1`."""
    head, _, seed = name.rpartition("-s")
    return head if seed.isdigit() else name


def compare(kind: str, score: str, pairs: list[Record], differences: list[Record]) -> Comparison:
    """All seeds of the pairs of a kind, in joint nll under the name `pairs.py` gives it."""
    by_name = {record["name"]: record for record in pairs}
    lines = [line for line in differences if kind_of(line["name"]) == kind]
    return Comparison(
        float(np.mean([joint_nll(by_name[line["name"]], score) for line in lines])),
        float(np.mean([joint_nll(by_name[line["mlm"]], score) for line in lines])),
        [-line["differences"][score][0] for line in lines],
        max(line["differences"][score][1] for line in lines),
    )


def joint_nll(record: Record, score: str) -> float:
    if score.endswith(" masks"):
        return record["by_masks"][score.removesuffix(" masks")]["joint_nll"]
    return record["joint_nll_in_passes"][score]


class Tasks(NamedTuple):
    """Linear models on the features of ExLM and of its MLM."""

    layer: int  # whose features both give; of several, the best on valid for the first MLM
    scaled: pd.DataFrame  # [sets, seeds] differences in standard deviations of the MLM over seeds

    @property
    def verdict(self) -> str:
        return verdict(
            list(self.scaled.mean(axis=0)), standard_error(list(self.scaled.mean(axis=1)))
        )


def compare_tasks(kind: str, probes: list[Record]) -> Tasks:
    frame = pd.DataFrame(probes)
    frame["model"] = frame["model"].map(lambda path: Path(path).name)
    frame["seed"] = frame["model"].map(lambda name: int(name.rpartition("-s")[2]))
    frame["side"] = frame["model"].map(kind_of).map({kind: "exlm", f"{kind}-mlm": "mlm"})
    sign = frame["set"].map(lambda name: -1.0 if name in LOWER_IS_BETTER else 1.0)
    frame = frame[frame["layers"].isin(set(frame["layers"][frame["side"] == "exlm"]))]
    first_mlm = frame[(frame["side"] == "mlm") & (frame["seed"] == 0)]
    goodness = (first_mlm["valid"] * sign[first_mlm.index]).groupby(first_mlm["layers"]).mean()
    layer = int(cast(int, goodness.idxmax()))
    at_layer = frame[frame["layers"] == layer]
    # A set counts if all models have it.
    test = at_layer.pivot_table("test", "set", ["side", "seed"]).dropna()
    signs = pd.Series({name: -1.0 if name in LOWER_IS_BETTER else 1.0 for name in test.index})
    sides = {side: cast(pd.DataFrame, test[side]) for side in ("exlm", "mlm")}
    spread = sides["mlm"].std(axis=1, ddof=1)
    scaled = (sides["exlm"] - sides["mlm"]).mul(signs / spread, axis=0)
    return Tasks(layer, scaled)


def answer_table(pairs: list[Record], differences: list[Record]) -> str:
    """What decides, for every pair: joint nll with 38.7% masks in one pass."""
    steps = {record["name"]: record["steps"] for record in pairs}
    rows = []
    for kind, title in KINDS.items():
        comparison = compare(kind, DECIDES, pairs, differences)
        line = next(line for line in differences if kind_of(line["name"]) == kind)
        millions = [steps[line[side]] * TOKENS_PER_UPDATE / 1e6 for side in ("name", "mlm")]
        over_seeds = (
            "–" if len(comparison.differences) == 1 else f"{comparison.error_over_seeds:.3f}"
        )
        rows.append(
            [
                title,
                ", ".join(f"{tokens:.0f}M" for tokens in millions),
                f"{comparison.exlm:.3f}",
                f"{comparison.mlm:.3f}",
                ", ".join(f"{value:+.3f}" for value in comparison.differences),
                f"{over_seeds}, {comparison.error_over_sequences:.3f}",
                comparison.verdict,
            ]
        )
    head = ["pair", "tokens read", "ExLM", "MLM", "ExLM better by", "standard errors", "ahead"]
    return table(head, rows)


def scores_table(pairs: list[Record], differences: list[Record]) -> str:
    """The other scores: ExLM, MLM and who is ahead, a column for each pair."""
    rows = []
    for score, name in SCORES.items():
        row = [name]
        for kind in KINDS:
            lines = [line for line in differences if kind_of(line["name"]) == kind]
            if score not in lines[0]["differences"]:
                row.append("–")
                continue
            comparison = compare(kind, score, pairs, differences)
            ahead = "" if comparison.verdict == "one seed" else f" {comparison.verdict}"
            row.append(f"{comparison.exlm:.3f} / {comparison.mlm:.3f}{ahead}")
        rows.append(row)
    return table(["joint nll", *KINDS.values()], rows)


def tasks_table(tasks: dict[str, Tasks]) -> str:
    """The mean over sets with its standard error over seeds, who is ahead, and the sets that differ
    clearly."""
    rows = []
    for title, of_pair in tasks.items():
        error = standard_error(list(of_pair.scaled.mean(axis=0)))
        by_set = of_pair.scaled.mean(axis=1)
        clear = [f"{name} {value:+.1f}" for name, value in by_set.items() if abs(value) > CLEAR]
        mean = f"{by_set.mean():+.2f} ± {error:.2f}"
        rows.append([title, str(len(by_set)), mean, of_pair.verdict, ", ".join(clear)])
    return table(["pair", "sets", "mean of differences", "ahead", f"sets beyond ±{CLEAR}"], rows)


def of_kind(kind: str, probes: list[Record]) -> list[Record]:
    """The lines of a pair: of its ExLM and of its MLM."""
    names = (kind, f"{kind}-mlm")
    return [line for line in probes if kind_of(Path(line["model"]).name) in names]


def draw(pairs: list[Record]) -> None:
    """Three figures: joint nll over training time, by the number of masks, by passes."""
    steps = {record["name"]: record["steps"] for record in pairs}
    styles = {"ExLM": ("-", "o"), "MLM": ("--", "s")}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for record in pairs:
        of_mlm: str = record["mlm"] if "mlm" in record else record["name"]
        kind = kind_of(of_mlm).removesuffix("-mlm")
        if kind not in DRAWN:
            continue
        side = "ExLM" if "mlm" in record else "MLM"
        line, marker = styles[side]
        look: Record = {"color": DRAWN[kind], "linestyle": line, "marker": marker}
        look |= {"markersize": 3, "linewidth": 1, "label": f"{side}, {KINDS[kind]}"}
        # Both sides of a pair take equal time, that of the MLM's updates.
        whole = steps[of_mlm]
        times = [whole * at["step"] / record["steps"] for at in record["curve"]]
        axes[0].plot(times, [at["joint_nll"] for at in record["curve"]], **look)
        by_masks = [record["by_masks"][n]["joint_nll"] for n in MASKS]
        axes[1].plot([int(n) for n in MASKS], by_masks, **look)
        names = [name for name in record["joint_nll_in_passes"] if name.startswith("0.387")]
        values = [record["joint_nll_in_passes"][name] for name in names]
        axes[2].plot([name.removeprefix("0.387 in ") for name in names], values, **look)
    axes[0].set(xlabel="training time, in updates of the MLM", ylabel="joint nll, 2% to 60% masks")
    axes[0].set(ylim=(None, 1.0))
    axes[1].set(xlabel="masks in a molecule", ylabel="joint nll", xscale="log")
    axes[1].set_xticks([int(n) for n in MASKS], MASKS)
    axes[1].minorticks_off()
    axes[2].set(xlabel="passes of the network", ylabel="joint nll, 38.7% masks")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[0].legend(unique.values(), unique.keys(), frameon=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "evidence.png", dpi=150)
    plt.close(figure)


def read(name: str) -> list[Record]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def parts() -> dict[str, str]:
    """The tables of the page by their names."""
    pairs, differences = read("pairs.jsonl"), read("pairs-differences.jsonl")
    probes, tuned = read("pairs-probes.jsonl"), read("pairs-finetuned.jsonl")
    probed = ("short-k2", "long-k2", "short-k4", "text-k2")
    tasks = {KINDS[kind]: compare_tasks(kind, of_kind(kind, probes)) for kind in probed}
    tasks["1M, longer, fine-tuned"] = compare_tasks("long-k2", of_kind("long-k2", tuned))
    return {
        "answer": answer_table(pairs, differences),
        "scores": scores_table(pairs, differences),
        "tasks": tasks_table(tasks),
    }


def short_table() -> str:
    """The table of README.md: joint nll with 38.7% masks in one pass."""
    pairs, differences = read("pairs.jsonl"), read("pairs-differences.jsonl")
    rows = []
    for kind, title in KINDS.items():
        comparison = compare(kind, DECIDES, pairs, differences)
        values = (f"{comparison.exlm:.3f}", f"{comparison.mlm:.3f}")
        rows.append([title, *values, comparison.verdict])
    return table(["pair", "ExLM", "MLM", "ahead"], rows)


def main() -> None:
    fill(HERE / "evidence.md", parts())
    fill(HERE.parents[1] / "README.md", {"found": short_table()})
    draw(read("pairs.jsonl"))


if __name__ == "__main__":
    main()
