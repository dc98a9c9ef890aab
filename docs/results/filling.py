"""The tables of filling.md and its figure, from infill.jsonl and fragments.jsonl, which `infill.py`
and `fragments.py` in benchmarks/ made.

    python docs/results/filling.py
"""

import json
from pathlib import Path

import matplotlib
import pandas as pd
from pages import fill, table

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
SIDES = {"molecules-5M-mlm": "MLM", "molecules-5M": "ExLM"}
PASSES = ("1", "2", "4", "all")
FRAGMENTS = ("linker", "motif", "decoration", "superstructure")


def read(name: str) -> pd.DataFrame:
    frame = pd.DataFrame([json.loads(line) for line in (HERE / name).read_text().splitlines()])
    frame["passes"] = frame["passes"].astype(str)
    frame["side"] = frame["model"].map(SIDES)
    return frame


def infill_table(frame: pd.DataFrame) -> str:
    """A row for each task, a column for each model: percent valid in 1, 2, 4 and all passes."""
    rows = []
    for task in frame["task"].drop_duplicates():
        row = [task]
        for side in SIDES.values():
            cells = frame[(frame["task"] == task) & (frame["side"] == side)]
            values = 100 * cells.set_index("passes")["valid"][list(PASSES)]
            row.append(", ".join(f"{value:.0f}" for value in values))
        rows.append(row)
    return table(["masked", *(f"valid, {side}" for side in SIDES.values())], rows)


def fragments_table(frame: pd.DataFrame) -> str:
    """A row for each number of passes and model, a column for each task: validity, quality."""
    rows = []
    for passes in frame["passes"].drop_duplicates():
        for side in SIDES.values():
            of_row = frame[(frame["side"] == side) & (frame["passes"] == passes)]
            by_task = of_row.set_index("task")
            pairs = [100 * by_task.loc[task, ["validity", "quality"]] for task in FRAGMENTS]
            cells = [f"{valid:.1f}, {quality:.1f}" for valid, quality in pairs]
            rows.append([f"{side}, {passes}", *cells])
    return table(["valid, quality (%)", *FRAGMENTS], rows)


def draw(frame: pd.DataFrame) -> None:
    """Validity by passes, a panel for each task."""
    tasks = list(frame["task"].drop_duplicates())
    figure, axes = plt.subplots(2, 3, figsize=(8, 4.6), sharey=True, layout="constrained")
    for axis, task in zip(axes.flat, tasks, strict=True):
        for side, line, marker in (("ExLM", "-", "o"), ("MLM", "--", "s")):
            of_side = frame[(frame["task"] == task) & (frame["side"] == side)]
            values = of_side.set_index("passes")["valid"].reindex(PASSES)
            axis.plot(PASSES, 100 * values, line, marker=marker, color="black", label=side)
        axis.set(title=task, xlabel="passes")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set(ylim=(0, 100))
    axes[0, 0].legend(frameon=False)
    figure.supylabel("valid fillings (%)")
    figure.savefig(HERE / "filling.png", dpi=130)
    plt.close(figure)


def parts() -> dict[str, str]:
    """The tables of the page by their names."""
    return {
        "infill": infill_table(read("infill.jsonl")),
        "fragments": fragments_table(read("fragments.jsonl")),
    }


def main() -> None:
    fill(HERE / "filling.md", parts())
    draw(read("infill.jsonl"))


if __name__ == "__main__":
    main()
