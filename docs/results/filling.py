"""The tables of filling.md and its figure, from infill.jsonl, fragments.jsonl and toys.jsonl, which
`infill.py`, `fragments.py` and `agreement.py` in benchmarks/ made.

    python docs/results/filling.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from pages import fill, table

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
SIDES = {"molecules-5M-mlm": "MLM", "molecules-5M": "ExLM"}
PASSES = ("1", "2", "4", "all")
# Validity and quality in percent, uniqueness, diversity, as printed by GenMol (arXiv 2501.06158),
# also for SAFE-GPT, and by its second version. GenMol's linker is that of one step.
PUBLISHED = {
    "linker": {
        "SAFE-GPT": "76.6, 21.7, 0.83, 0.55",
        "GenMol": "16.7, 4.3, 0.98, 0.53",
        "GenMol V2": "81.8, 28.6, , ",
    },
    "motif": {
        "SAFE-GPT": "96.1, 18.6, 0.67, 0.56",
        "GenMol": "82.9, 30.1, 0.78, 0.62",
        "GenMol V2": "99.4, 49.0, , ",
    },
    "decoration": {
        "SAFE-GPT": "97.7, 10.0, 0.75, 0.58",
        "GenMol": "96.6, 31.8, 0.83, 0.59",
        "GenMol V2": "99.2, 39.7, , ",
    },
    "superstructure": {
        "SAFE-GPT": "95.7, 14.3, 0.83, 0.57",
        "GenMol": "97.5, 34.8, 0.84, 0.60",
    },
}

# Shares of valid sequences in one pass, as printed by VMD (arXiv 2510.23606).
TOYS = {
    "chain": {"masked diffusion": 0.001, "VMD": 0.873},
    "pairs": {"masked diffusion": 0.011, "VMD": 0.800},
}


def read(name: str) -> pd.DataFrame:
    frame = pd.DataFrame([json.loads(line) for line in (HERE / name).read_text().splitlines()])
    frame["passes"] = frame["passes"].astype(str)
    frame["side"] = frame["model"].map(SIDES)
    return frame


def infill_table(frame: pd.DataFrame, score: str, digits: int, percent: bool = False) -> str:
    """A row for each task: one score by model and passes."""
    pivot = frame.pivot(index="task", columns=["side", "passes"], values=score)
    places = [(side, n) for side in SIDES.values() for n in PASSES if (side, n) in pivot.columns]
    rows = []
    for task in frame["task"].drop_duplicates():
        values = [pivot.loc[task, place] * (100 if percent else 1) for place in places]
        rows.append([task, *[f"{value:.{digits}f}" for value in values]])
    head = ["masked", *[f"{side}, {n}" for side, n in places]]
    return table(head, rows)


def fragments_table(frame: pd.DataFrame) -> str:
    rows = []
    for task, published in PUBLISHED.items():
        for side in SIDES.values():
            of_side = frame[(frame["task"] == task) & (frame["side"] == side)]
            for record in of_side.to_dict("records"):
                shares = [f"{100 * record[name]:.1f}" for name in ("validity", "quality")]
                others = [f"{record[name]:.2f}" for name in ("uniqueness", "diversity", "distance")]
                seconds = f"{record['seconds']:.1f}"
                rows.append([task, f"{side}, {record['passes']}", *shares, *others, seconds])
        for name, numbers in published.items():
            rows.append([task, f"{name} (published)", *numbers.split(", "), "", ""])
    head = ["task", "model, passes", "valid (%)", "quality (%)", "unique", "diversity", "distance"]
    return table([*head, "seconds for 100"], rows)


def toys_table(lines: list[dict[str, Any]]) -> str:
    """A row for each number of states: nats of a whole sequence and valid samples of both toys, the
    mean of their seeds, with the best that so many states can do."""
    rows = []
    for states in sorted({line["num_states"] for line in lines}):
        row = [f"ExLM, k = {states}"]
        for toy in TOYS:
            of_toy = [x for x in lines if (x["toy"], x["num_states"]) == (toy, states)]
            nats = np.mean([line["joint_nll"][-1] for line in of_toy])
            valid = 100 * np.mean([line["valid"] for line in of_toy])
            best_nats, best_valid = of_toy[0]["best_joint_nll"], 100 * of_toy[0]["best_valid"]
            row += [f"{nats:.2f} ({best_nats:.2f})", f"{valid:.1f} ({best_valid:.1f})"]
        rows.append(row)
    for name in ("masked diffusion", "VMD"):
        published = [f"{100 * TOYS[toy][name]:.1f}" for toy in TOYS]
        rows.append([f"{name} (published)", "", published[0], "", published[1]])
    head = ["model", *(f"{toy}, {score}" for toy in TOYS for score in ("nats", "valid (%)"))]
    return table(head, rows)


def draw(frame: pd.DataFrame) -> None:
    """Validity by passes, a panel for each task."""
    tasks = list(frame["task"].drop_duplicates())
    figure, axes = plt.subplots(1, len(tasks), figsize=(12, 2.8), sharey=True, layout="constrained")
    for axis, task in zip(axes, tasks, strict=True):
        for side, line, marker in (("ExLM", "-", "o"), ("MLM", "--", "s")):
            of_side = frame[(frame["task"] == task) & (frame["side"] == side)]
            values = of_side.set_index("passes")["valid"].reindex(PASSES)
            axis.plot(PASSES, 100 * values, line, marker=marker, color="black", label=side)
        axis.set(title=task, xlabel="passes")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="valid fillings (%)", ylim=(0, 100))
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "filling.png", dpi=130)
    plt.close(figure)


def parts() -> dict[str, str]:
    """The tables of the page by their names."""
    infill = read("infill.jsonl")
    return {
        "valid": infill_table(infill, "valid", 0, percent=True),
        "recovered": infill_table(infill, "recovered", 0, percent=True),
        "nll": infill_table(infill, "nll", 2),
        "seconds": infill_table(infill, "seconds", 2),
        "fragments": fragments_table(read("fragments.jsonl")),
        "toys": toys_table(list(map(json.loads, (HERE / "toys.jsonl").read_text().splitlines()))),
    }


def main() -> None:
    fill(HERE / "filling.md", parts())
    draw(read("infill.jsonl"))


if __name__ == "__main__":
    main()
