"""Tables and curves of docs/results/text-small.md from its runs.

python docs/results/text_table.py runs/text
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.demo import plot_curves  # noqa: E402

TASKS = {"rte": "accuracy", "mrpc": "accuracy", "cola": "matthews", "sts-b": "spearman", "sst-2": "accuracy"}
EXTRA = {"mrpc": "f1", "sts-b": "pearson"}
MODELS = {"scratch": "from scratch", "mlm": "MLM (RoBERTa*)", "exlm": "ExLM, k = 4"}


def cell(path: Path, metric: str) -> str:
    """Median over seeds in percent, smallest and largest."""
    if not path.is_file():
        return "not run"
    score = json.loads(path.read_text())["valid"][metric]
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * score[key] for key in ("median", "min", "max")))


def glue(runs: Path) -> str:
    metrics = [(task, metric) for task in TASKS for metric in (TASKS[task], EXTRA.get(task)) if metric]
    lines = ["| model | " + " | ".join(f"{task} {metric}" for task, metric in metrics) + " |"]
    lines.append("| --- " * (len(metrics) + 1) + "|")
    for name, label in MODELS.items():
        cells = [cell(runs / "glue" / f"{name}-{task}" / "results.json", metric) for task, metric in metrics]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def departures(runs: Path) -> list[str]:
    """What the results say of parts that are not the published ones."""
    found = (json.loads(path.read_text()) for path in sorted(runs.glob("*/*/results.json")))
    return sorted({f"{r['settings']['task']['dataset']}: {d}" for r in found for d in r["settings"]["departures"]})


def squad(runs: Path) -> str:
    path = runs / "squad2" / "exlm" / "results.json"
    if not path.is_file():
        return "not run"
    scores = json.loads(path.read_text())["valid"]
    rows = [f"| {name} | {s['median']:.2f} | {s['min']:.2f} to {s['max']:.2f} |" for name, s in scores.items()]
    return "\n".join(["| SQuAD 2.0, ExLM | median | range |", "| --- | --- | --- |", *rows])


def main(runs: Path) -> None:
    print(glue(runs), squad(runs), "\n".join(departures(runs)), sep="\n\n")
    plot_curves(Path(__file__).with_name("text-small.png"), {"ExLM, k = 4": runs / "exlm", "MLM": runs / "mlm"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
