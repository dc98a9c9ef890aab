"""Fills the tables of docs/results/baselines.md from the runs that baselines-jobs.sh has finished.

python docs/results/baselines.py runs/baselines
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from pages import fill, table

from exlm.paper.values import MAIN_TABLES, title
from exlm.tasks.baselines import BASELINES
from exlm.tasks.datasets import GLUE, MOLECULENET
from exlm.tasks.metrics import SHARES

PAGE = Path(__file__).with_suffix(".md")
REGRESSION = [name for name, entry in MOLECULENET.items() if entry.task_type == "regression"]
MOLECULES = MAIN_TABLES["main-molecules"]
[CLASSIFICATION] = MOLECULES["finetune"].values()
Results = dict[tuple[str, str], dict[str, Any]]  # what results.json has, by baseline and data set


def find(runs: Path) -> Results:
    paths = [path for name in BASELINES for path in sorted(runs.glob(f"{name}/*/results.json"))]
    return {(path.parts[-3], path.parts[-2]): json.loads(path.read_text()) for path in paths}


def seeds_of(result: dict[str, Any]) -> list[float]:
    """The metric of every seed, in percent if it is a share, on test or, where there is none, on
    valid."""
    metric, part = result["metric"], "test" if "test" in result else "valid"
    return [
        (100 if metric in SHARES else 1) * run["scores"][part][metric] for run in result["runs"]
    ]


def cell(result: dict[str, Any] | None) -> str:
    """The mean over seeds, with the standard deviation if there are several."""
    if result is None:
        return ""
    values, digits = seeds_of(result), 1 if result["metric"] in SHARES else 3
    spread = (
        f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{stdev(values):.{digits}f}"
        if len(values) > 1
        else " (1 seed)"
    )
    return f"{fmean(values):.{digits}f}{spread}"


def classification(results: Results) -> str:
    """ROC-AUC beside the rows that the paper quotes; its own are in table-1.md."""
    rows = []
    for name in BASELINES:
        found = [results.get((name, task)) for task in CLASSIFICATION]
        if any(found):
            mean = f"{fmean(fmean(seeds_of(r)) for r in found if r):.1f}" if all(found) else ""
            rows.append([title(name), *map(cell, found), mean])
    for name, values in MOLECULES["quoted"].items():
        quoted = [name, *("" if value is None else str(value) for value in values)]
        rows.append([text and f"*{text}*" for text in quoted])
    return table(["ROC-AUC, %", *map(title, CLASSIFICATION), "mean"], rows)


def scores(results: Results, tasks: Sequence[str], unit: str) -> str:
    rows = [
        [title(name), *(cell(results.get((name, task))) for task in tasks)] for name in BASELINES
    ]
    return (
        table([unit, *map(title, tasks)], [row for row in rows if any(row[1:])])
        if tasks
        else "Not run yet."
    )


def costs(results: Results) -> str:
    """The median time of a seed, on the fastest and the slowest data set, and the versions."""
    rows = []
    for name in BASELINES:
        own = {
            task: result["runs"] for (baseline, task), result in results.items() if baseline == name
        }
        times = {task: median(run["seconds"] for run in runs) for task, runs in own.items()}
        versions = {
            name
            for runs in own.values()
            for run in runs
            for name in run["settings"]["train"]["packages"]
        }
        by_time = sorted(times, key=lambda task: times[task])
        spent = " to ".join(
            f"{times[task]:,.0f} ({title(task)})" for task in (*by_time[:1], *by_time[-1:])
        )
        rows.append([title(name), spent, ", ".join(sorted(versions))])
    return table(["baseline", "seconds per seed", "versions"], [row for row in rows if row[1]])


def main(runs: Path) -> None:
    results = find(runs)
    texts = [name for name in GLUE if ("tfidf-lr", name) in results]
    parts = {
        "classification": classification(results),
        "regression": scores(results, REGRESSION, "RMSE"),
        "text": scores(results, texts, "selection metric on dev, %"),
        "costs": costs(results),
    }
    fill(PAGE, parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
