"""Fills the tables of docs/results/baselines.md from the runs that baselines-jobs.sh has finished.

python docs/results/baselines.py runs/baselines
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pages import fill, table

from exlm.paper.display import MAIN_TABLES, title
from exlm.tasks.baselines import BASELINES
from exlm.tasks.labels.scores import find_metrics
from exlm.tasks.rows.datasets import MOLECULENET

PAGE = Path(__file__).with_suffix(".md")
REGRESSION = [name for name, entry in MOLECULENET.items() if entry.task_type == "regression"]
[CLASSIFICATION] = MAIN_TABLES["main-molecules"].finetune.values()
Results = dict[tuple[str, str], dict[str, Any]]  # what results.json has, by baseline and data set


def find(runs: Path) -> Results:
    paths = [path for name in BASELINES for path in sorted(runs.glob(f"{name}/*/results.json"))]
    return {(path.parts[-3], path.parts[-2]): json.loads(path.read_text()) for path in paths}


def seeds_of(result: dict[str, Any]) -> list[float]:
    """The metric of every seed, in percent if reports show it so: on test or, where there is none,
    on valid."""
    metric, part = result["metric"], "test" if "test" in result else "valid"
    factor = find_metrics(None)[metric].factor
    return [factor * run["scores"][part][metric] for run in result["runs"]]


def cell(result: dict[str, Any] | None) -> str:
    """The mean over seeds, with the standard deviation if there are several that differ."""
    if result is None:
        return ""
    values, digits = seeds_of(result), find_metrics(None)[result["metric"]].digits
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    spread = f"{stdev(values):.{digits}f}"
    return f"{mean}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{spread}" if float(spread) else mean


def scores(results: Results, tasks: Sequence[str], unit: str) -> str:
    rows = [
        [title(name), *(cell(results.get((name, task))) for task in tasks)] for name in BASELINES
    ]
    return (
        table([unit, *map(title, tasks)], [row for row in rows if any(row[1:])])
        if tasks
        else "Not run yet."
    )


def main(runs: Path) -> None:
    results = find(runs)
    parts = {
        "classification": scores(results, CLASSIFICATION, "ROC-AUC, %"),
        "regression": scores(results, REGRESSION, "RMSE"),
    }
    fill(PAGE, parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
