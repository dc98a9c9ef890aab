"""What a fine-tuning or a baseline prints at its end."""

from pathlib import Path
from typing import Literal

import numpy as np

from exlm.tasks.encoders.results import GridReport, Statistics
from exlm.tasks.labels.metrics import (
    ENTITY_F1,
    ERRORS_IN_UNITS,
    in_digits,
    metric_of,
)

ReportedPart = Literal["test", "valid", "mismatched"]

# With fewer rows, or fewer rows of one of two classes, the interval itself is often too narrow.
FEW_ROWS = 50
FEW_OF_A_CLASS = 30
MOST_LABELS_SHOWN = 5  # with their rows, in the line of a part
# what is usually told beside the metric that chose the epoch, if the task has it
OF_NUMBERS = ("rmse", "mae", "r2", "spearman")
OF_CLASSES = ("roc_auc", "average_precision", ENTITY_F1, "accuracy", "f1", "macro_f1", "matthews")
USUAL_METRICS = (*OF_NUMBERS, *OF_CLASSES, "em")


def describe_report(report: GridReport, directory: Path) -> str:
    """The scores of test, or of valid if there is no test, and where everything is."""
    parts: list[ReportedPart] = ["test"] if "test" in report else ["valid", "mismatched"]
    lines = []
    for part in parts:
        if part in report:
            lines += _lines_of_part(report, part)
    if "test" not in report:
        lines.append("valid also chose the epoch and, of a grid, the cell")
    has_units = any(metric_of(name).on_label_scale for name in report["valid"])
    if "labels" in report and has_units:
        lines.append(f"{ERRORS_IN_UNITS}; results.json has each label in its own units")
    best_of = ""
    if "cells" in report:
        best_of = f"; best of {len(report['cells'])} cells: {report['best']}"
    return "\n".join([*lines, f"everything is in {directory}{best_of}"])


def _lines_of_part(report: GridReport, part: ReportedPart) -> list[str]:
    """The score of a part, a note if it is a rough guess, and other usual scores."""
    metric = report["metric"]
    line = f"{part} {_median_and_spread(report[part][metric], metric, len(report['seeds']))}"
    line += _labels_without_score(report, part)
    note = None
    counts = report.get("counts", {}).get(part)
    if counts:
        rows = int(counts["rows"]["median"])
        line += f"; {rows} rows"
        line += _rows_of_labels(report, part, rows)
        if "positives" in counts:
            line += f", {int(counts['positives']['median'])} of them positive"
        interval = report.get("interval", {}).get(part)
        if interval:
            low, high = (in_digits(interval[end]["median"]) for end in ("low", "high"))
            line += f"; 95% interval over rows {low} to {high}"
            note = _note_on_few(counts)
    lines = [line] if note is None else [line, note]
    others = [name for name in USUAL_METRICS if name in report[part] and name != metric]
    if others:
        scores = [f"{name} {in_digits(report[part][name]['median'])}" for name in others]
        medians = " (medians)" if len(report["seeds"]) > 1 else ""
        lines.append(f"{part} also {', '.join(scores)}{medians}")
    if report[part].get("r2", {}).get("median", 1.0) <= 0:
        lines.append(
            f"note: r2 is not above 0, so the mean label of the {part} rows, predicted for every "
            "row, would have no larger squared errors"
        )
    return lines


def _median_and_spread(score: dict[str, float], metric: str, seeds: int) -> str:
    median = f"{metric} {in_digits(score['median'])}"
    if seeds == 1:
        return median
    low, high, mean, std = (in_digits(score[name]) for name in ("min", "max", "mean", "std"))
    return f"{median} (median of {seeds} seeds, {low} to {high}; mean {mean} +- {std})"


def _labels_without_score(report: GridReport, part: ReportedPart) -> str:
    """Says for how many labels the metric is defined, if it is not for all; else ""."""
    if part not in report.get("labels", {}):
        return ""
    means = [score["mean"] for score in report["labels"][part].values()]
    scored = int(np.isfinite(means).sum())
    if scored == len(means):
        return ""
    lacking = "too few labels"
    if metric_of(report["metric"]).needs_both_classes:
        lacking = "only one class"
    return (
        f" (the mean over {scored} of {len(means)} labels: the others have {lacking} in these rows)"
    )


def _rows_of_labels(report: GridReport, part: ReportedPart, rows: int) -> str:
    """How many rows each label has, of many labels the fewest and the most; "" if all labels have
    all of the `rows`."""
    numbers = report.get("label_rows", {}).get(part, {})
    rows_by_label = {label: int(number["median"]) for label, number in numbers.items()}
    fewest = min(rows_by_label.values(), default=rows)
    if fewest == rows:
        return ""
    if len(rows_by_label) > MOST_LABELS_SHOWN:
        return f" ({fewest} to {max(rows_by_label.values())} a label)"
    return f" ({', '.join(f'{number} with {name}' for name, number in rows_by_label.items())})"


def _note_on_few(counts: Statistics) -> str | None:
    """Warns of a number that rests on few rows, or on few of one class."""
    rows = int(counts["rows"]["median"])
    rarer = rows
    if "positives" in counts:
        positives = int(counts["positives"]["median"])
        rarer = min(positives, rows - positives)
    if rows >= FEW_ROWS and rarer >= FEW_OF_A_CLASS:
        return None
    few = "rows" if rows < FEW_ROWS else f"rows of one class ({rarer})"
    return (
        f"note: with so few {few} this number is a rough guess, and the interval itself is often "
        "too narrow; it does not tell which of two models with similar numbers is better"
    )
