"""What a fine-tuning or a baseline prints of its data at the beginning, and of its scores at the
end; and what `exlm evaluate` prints."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exlm.errors import InputError, note
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.metrics import ENTITY_F1, NUMBER_METRICS
from exlm.tasks.labels.scores import BOOTSTRAP_LEVEL, LEAST_USED_SHARE
from exlm.tasks.results import GridResults, SeedResult, Statistics
from exlm.tasks.rows.table import first_reported_row
from exlm.tasks.rows.task_files import data_name
from exlm.tasks.task import Task

# With fewer rows, or fewer rows of one of two classes, the bootstrap interval is often too narrow.
FEW_ROWS = 50
FEW_OF_A_CLASS = 30
MOST_CLASSES_SHOWN = 12  # in the table of predicted classes
# what is usually told beside the metric that chose the epoch, if the task has it
USUAL_METRICS = ["rmse", "mae", "r2", "spearman", "roc_auc", "average_precision", ENTITY_F1]
USUAL_METRICS += ["accuracy", "f1", "macro_f1", "matthews", "em"]
ALL_TERMS = "every label and class that the score needs"
_ERRORS = " and ".join(name for name, metric in NUMBER_METRICS.items() if metric.is_error)
SCALED_ERRORS = (
    f"{_ERRORS} are means over the labels, "
    "each in units of its standard deviation in the training rows"
)


def print_task(task: Task) -> None:
    """Prints what the data are, and how they depart from the published ones."""
    print(f"{data_name(task.config)}: {task.summary}")
    for departure in task.departures:
        note(f"{departure}; scores do not compare with published ones")


def check_and_print_rows(task: Task) -> None:
    """Prints how many rows were left out, cut or kept with something wrong, and the first of each;
    InputError if there are any and the user does not want such rows."""
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


def describe_results(grid_results: GridResults, directory: Path) -> str:
    """The scores of test, or of valid if there is no test, and where everything is."""
    has_test = "test" in grid_results
    lines = []
    for part in ["test"] if has_test else ["valid", "mismatched"]:
        if part in grid_results:
            lines += _lines_of_part(grid_results, part)
    if not has_test:
        lines.append("valid also chose the epoch and, of a grid, the cell")
    if "labels" in grid_results and "rmse" in grid_results["valid"]:
        lines.append(f"{SCALED_ERRORS}; results.json has each label in its own units")
    best_of = ""
    if "cells" in grid_results:
        best_of = f"; best of {len(grid_results['cells'])} cells: {grid_results['best']}"
    return "\n".join([*lines, f"everything is in {directory}{best_of}"])


def _lines_of_part(grid_results: GridResults, part: str) -> list[str]:
    metric = grid_results["metric"]
    scores: Statistics = grid_results[part]
    counts: Statistics = grid_results.get("counts", {}).get(part, {})
    interval: Statistics = grid_results.get("interval", {}).get(part, {})
    seeds = len(grid_results["seeds"])
    line = f"{part} {metric} {_median_and_spread(scores[metric], seeds)}"
    line += _labels_without_score(grid_results["runs"], part) + _counts_in_words(counts)
    notes = []
    if interval and np.isfinite(scores[metric]["median"]):
        line += _interval_in_words(interval)
        positives = counts["positives"]["median"] if "positives" in counts else None
        notes = _notes_on_few(counts["rows"]["median"], positives)
    other_scores = [
        f"{name} {_in_words(scores[name]['median'])}"
        for name in USUAL_METRICS
        if name in scores and name != metric
    ]
    if other_scores:
        of_seeds = " (medians)" if seeds > 1 else ""
        notes.append(f"{part} also {', '.join(other_scores)}{of_seeds}")
    if "r2" in scores and scores["r2"]["median"] <= 0:
        notes.append(
            f"note: r2 is not above 0, so the mean label of the {part} rows, predicted for every "
            "row, would have no larger squared errors"
        )
    if "matthews" in scores and scores["matthews"]["median"] <= 0:
        notes.append(
            f"note: matthews is not above 0, so the predicted classes of the {part} rows tell no "
            "more than one class for every row would"
        )
    return [line, *notes]


def _counts_in_words(counts: Statistics) -> str:
    """How many rows were scored, and how many of them have each label; "" if it is not known."""
    if not counts:
        return ""
    text = f"; {_range(counts['rows'], counts['rows'])} rows"
    if "positives" in counts:
        text += f", {_range(counts['positives'], counts['positives'])} of them positive"
    if "fewest_of_a_label" in counts:
        labelled_rows = _range(counts["fewest_of_a_label"], counts["most_of_a_label"])
        text += f", {labelled_rows} with each label"
    return text


def _interval_in_words(interval: Statistics) -> str:
    if np.isnan(interval["low"]["median"]):
        return (
            f"; no 95% interval over rows: only {interval['resamples']['min']:.0f} draws of them "
            f"have {ALL_TERMS}"
        )
    low = in_digits(interval["low"]["median"])
    high = in_digits(interval["high"]["median"])
    text = f"; 95% interval over rows {low} to {high}"
    if "resamples" in interval:  # earlier versions did not write it
        text += f" ({interval['resamples']['median']:.0f} draws)"
    return text


def _labels_without_score(results: Sequence[SeedResult], part: str) -> str:
    """Says for how many labels the metric is defined, if it is not for all with every seed; else
    "". Seeds may have other rows in the part."""
    scores = [list(result.get("labels", {}).get(part, {}).values()) for result in results]
    scored = np.isfinite(np.array(scores, dtype=float)).sum(1)
    labels = len(scores[0])
    if scored.min() == labels:
        return ""
    by_seed = f"{scored.min()}"
    if scored.min() < scored.max():
        by_seed = f"{scored.min()} to {scored.max()}, by the seed,"
    return (
        f" (the mean over {by_seed} of {labels} labels: the others have too few rows here, or only "
        "one class)"
    )


def _range(lower: dict[str, float], upper: dict[str, float]) -> str:
    """A count, or the least of `lower` and the greatest of `upper` that the seeds have."""
    least = f"{lower['min']:.0f}"
    greatest = f"{upper['max']:.0f}"
    return least if least == greatest else f"{least} to {greatest}"


def _median_and_spread(score: dict[str, float], seeds: int) -> str:
    if np.isnan(score["median"]):
        of_seeds = f" for one of {seeds} seeds or more" if seeds > 1 else ""
        return f"not defined{of_seeds}"
    median, low, high, mean, std = (
        in_digits(score[name]) for name in ("median", "min", "max", "mean", "std")
    )
    if seeds == 1:
        return median
    return f"{median} (median of {seeds} seeds, {low} to {high}; mean {mean} +- {std})"


def _notes_on_few(
    rows: float, positives: float | None, number: str = "this number", has_interval: bool = True
) -> list[str]:
    """A warning of a number that rests on few rows, or on few of one class if it is known how many
    are positive."""
    rarer = np.inf if positives is None else min(positives, rows - positives)
    if rows < FEW_ROWS:
        few = "rows"
    elif rarer < FEW_OF_A_CLASS:
        few = f"rows of one class ({rarer:.0f})"
    else:
        return []
    interval = ", and the interval itself is often too narrow" if has_interval else ""
    return [
        f"note: with so few {few} {number} is a rough guess{interval}; it does not tell which of "
        "two models with similar numbers is better"
    ]


def print_report(
    report: dict[str, Any],
    saved_task: SavedTask,
    positives: int | None = None,
    seen_column: str = "in_training",
) -> None:
    """Prints what `exlm evaluate` reports of models of a task, whose labelled rows have so many
    `positives`, if it has any; `seen_column` marks those of the training."""
    print(f"{report['labelled']} labelled rows")
    if report["in_training"] is None:
        note(
            "there is no record of the training beside the model (none is kept of questions, and "
            "none shared), so that it cannot be told which rows were trained on"
        )
    elif report["in_training"]:
        print(
            f"warning: {report['in_training']} of the labelled rows have a text or molecule of the "
            "training, which a model may know by heart; leave them out for an honest number (the "
            f"column {seen_column} of exlm predict marks them)",
            file=sys.stderr,
        )
    print(pd.DataFrame(report["metrics"]).map(_score_in_words).to_string())
    if report["resamples"]:
        print(
            f"in brackets: {BOOTSTRAP_LEVEL:.0%} bootstrap intervals over rows "
            f"({report['resamples']} draws)"
        )
    remarks = _notes_on_few(report["labelled"], positives, "each number", report["resamples"] > 0)
    for line in [*_lines_on_unused_draws(report), *remarks]:
        print(line)
    if saved_task.error_scales:
        print(SCALED_ERRORS)
    scores_of_labels = pd.DataFrame(report["labels"]).T
    undefined = scores_of_labels.columns[scores_of_labels.isna().any()].difference(
        ["coverage"], sort=False
    )
    if len(undefined):
        print(
            f"{', '.join(undefined)} are means over the labels that have them here; "
            "the other labels have no column, too few rows, or only one class"
        )
    units = ", in its own units" if saved_task.error_scales else ""
    tables = {
        f"every label by itself{units}": report["labels"],
        "every class by itself": report["classes"],
    }
    if len(report["confusion"]) <= MOST_CLASSES_SHOWN:
        title = "rows of each class (down) by the class that is predicted (across)"
        tables[title] = report["confusion"]
    for title, lines in tables.items():
        if lines:
            _print_table(title, lines)


def _lines_on_unused_draws(report: dict[str, Any]) -> list[str]:
    """Which scores have intervals of fewer draws, or none, because the others lack a label or class
    of them; scores of equally many draws in one line."""
    names_by_draws = dict[tuple[int, int], list[str]]()
    for name, of_models in pd.DataFrame(report["metrics"]).iterrows():
        draws = [score.get("draws", report["resamples"]) for score in of_models]
        is_defined = not any(np.isnan(score["value"]) for score in of_models)
        if is_defined and min(draws) < report["resamples"]:
            names_by_draws.setdefault((min(draws), max(draws)), []).append(str(name))
    return [
        f"{', '.join(names)}: "
        + ("" if most >= LEAST_USED_SHARE * report["resamples"] else "no interval, as only ")
        + (f"{least}" if least == most else f"{least} to {most}")
        + f" of the draws have {ALL_TERMS}"
        for (least, most), names in names_by_draws.items()
    ]


def _print_table(title: str, lines: dict[str, Any]) -> None:
    print(f"{title}:")
    table = pd.DataFrame.from_dict(lines, orient="index")
    print(table.to_string(max_rows=20, float_format=in_digits))


def in_digits(value: float) -> str:
    """A count as it is; a score with four decimals, or a small one with three digits."""
    if isinstance(value, int):
        return str(value)
    is_small = 0 < abs(value) < 0.001
    return f"{value:.3g}" if is_small else f"{value:.4f}"


def _in_words(value: float) -> str:
    return "not defined" if np.isnan(value) else in_digits(value)


def _score_in_words(score: dict[str, float]) -> str:
    value = score["value"]
    low = score.get("low", np.nan)
    high = score.get("high", np.nan)
    if not np.isfinite([value, low, high]).all() or low == high:
        return _in_words(value)
    if isinstance(value, int):
        low = round(low)
        high = round(high)
    return f"{in_digits(value)} ({in_digits(low)} to {in_digits(high)})"
