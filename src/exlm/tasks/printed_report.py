"""What a fine-tuning or a baseline prints of its data at the beginning, and of its scores at the
end."""

from pathlib import Path

import numpy as np

from exlm.errors import InputError, note
from exlm.tasks.labels.metrics import ENTITY_F1, ERRORS_IN_UNITS, in_digits
from exlm.tasks.results import GridReport, Statistics
from exlm.tasks.rows.datasets import data_name
from exlm.tasks.rows.table import first_reported_row
from exlm.tasks.task import Task

# With fewer rows, or fewer rows of one of two classes, the interval itself is often too narrow.
FEW_ROWS = 50
FEW_OF_A_CLASS = 30
# what is usually told beside the metric that chose the epoch, if the task has it
USUAL_METRICS = ["rmse", "mae", "r2", "spearman", "roc_auc", "average_precision", ENTITY_F1]
USUAL_METRICS += ["accuracy", "f1", "macro_f1", "matthews", "em"]


def print_task(task: Task) -> None:
    """Prints what the data are, how they depart from the published ones, how many rows were left
    out, cut or kept with something wrong, and the first of each; InputError if the user does not
    want such rows."""
    print(f"{data_name(task.config)}: {task.summary}")
    for departure in task.departures:
        note(f"{departure}; scores do not compare with published ones")
    if not len(task.reported_rows):
        return
    if task.config.on_invalid == "error":
        raise InputError(
            f"{task.config.dataset}: {first_reported_row(task.reported_rows)}; "
            "correct or remove it, or set task.on_invalid to skip"
        )
    for action, rows in task.reported_rows.groupby("action"):
        count = len(rows.drop_duplicates(["part", "row"]))  # a question may have several problems
        first = first_reported_row(rows)
        print(f"rows {action}: {count} (see invalid_rows.csv), the first: {first}")


def describe_report(report: GridReport, directory: Path) -> str:
    """The scores of test, or of valid if there is no test, and where everything is."""
    lines = []
    for part in ["test"] if "test" in report else ["valid", "mismatched"]:
        if part in report:
            lines += _lines_of_part(report, part)
    if "test" not in report:
        lines.append("valid also chose the epoch and, of a grid, the cell")
    if "labels" in report and "rmse" in report["valid"]:
        lines.append(f"{ERRORS_IN_UNITS}; results.json has each label in its own units")
    best_of = ""
    if "cells" in report:
        best_of = f"; best of {len(report['cells'])} cells: {report['best']}"
    return "\n".join([*lines, f"everything is in {directory}{best_of}"])


def _lines_of_part(report: GridReport, part: str) -> list[str]:
    """The score of a part, what it rests on, and other usual scores."""
    metric = report["metric"]
    line = f"{part} {metric} {_median_and_spread(report[part][metric], len(report['seeds']))}"
    notes = []
    counts = _medians(report.get("counts", {}).get(part, {}))
    line += _labels_without_score(report, part)
    if counts:
        line += f"; {_range(report, part, 'rows')} rows"
    if "positives" in counts:
        line += f", {_range(report, part, 'positives')} of them positive"
    if "fewest_of_a_label" in counts:
        line += f", {_range(report, part, 'fewest_of_a_label', 'most_of_a_label')} with each label"
    interval = _medians(report.get("interval", {}).get(part, {}))
    if interval:
        low, high = in_digits(interval["low"]), in_digits(interval["high"])
        line += f"; 95% interval over rows {low} to {high}"
        notes = _notes_on_few(counts)
    medians = _medians(report[part])
    others = [name for name in USUAL_METRICS if name in medians and name != metric]
    if others:
        scores = ", ".join(f"{name} {in_digits(medians[name])}" for name in others)
        of_seeds = " (medians)" if len(report["seeds"]) > 1 else ""
        notes.append(f"{part} also {scores}{of_seeds}")
    if medians.get("r2", 1.0) <= 0:
        notes.append(
            f"note: r2 is not above 0, so the mean label of the {part} rows, predicted for every "
            "row, would have no larger squared errors"
        )
    return [line, *notes]


def _labels_without_score(report: GridReport, part: str) -> str:
    """Says for how many labels the metric is defined, if it is not for all; else ""."""
    scores = report.get("labels", {}).get(part, {}).values()
    scored = sum(np.isfinite(score["mean"]) for score in scores)
    if scored == len(scores):
        return ""
    return (
        f" (the mean over {scored} of {len(scores)} labels: the others have too few rows here, "
        "or only one class)"
    )


def _range(report: GridReport, part: str, name: str, greatest_name: str | None = None) -> str:
    """A count, or the least and the greatest of those that the seeds have; the greatest perhaps of
    another count."""
    counts = report["counts"][part]
    least = f"{counts[name]['min']:.0f}"
    greatest = f"{counts[greatest_name or name]['max']:.0f}"
    return least if least == greatest else f"{least} to {greatest}"


def _medians(statistics: Statistics) -> dict[str, float]:
    """The medians over seeds, by name."""
    return {name: numbers["median"] for name, numbers in statistics.items()}


def _median_and_spread(score: dict[str, float], seeds: int) -> str:
    median, low, high, mean, std = (
        in_digits(score[name]) for name in ("median", "min", "max", "mean", "std")
    )
    if seeds == 1:
        return median
    return f"{median} (median of {seeds} seeds, {low} to {high}; mean {mean} +- {std})"


def _notes_on_few(counts: dict[str, float]) -> list[str]:
    """A warning of a number that rests on few rows, or on few of one class."""
    rows = counts["rows"]
    few = ""
    if "positives" in counts:
        rarer = min(counts["positives"], rows - counts["positives"])
        if rarer < FEW_OF_A_CLASS:
            few = f"rows of one class ({rarer:.0f})"
    if rows < FEW_ROWS:
        few = "rows"
    if not few:
        return []
    return [
        f"note: with so few {few} this number is a rough guess, and the interval itself is often "
        "too narrow; it does not tell which of two models with similar numbers is better"
    ]
