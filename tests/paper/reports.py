"""Reads what a report wrote, and the groups of runs."""

import csv
from unittest.mock import patch

from matplotlib.figure import Figure

from exlm.paper.find_runs import find_runs
from exlm.paper.groups import group_runs
from exlm.paper.report import report


def read_csv(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def only_group(root):
    [group] = group_runs(find_runs([str(root)]))
    return group


def report_table(root, name):
    """The rows of a table in a report on all runs below `root`, which is written to `root`/out. Its
    plots are not saved, which would take most of the time."""
    with patch.object(Figure, "savefig"):
        report([str(root)], str(root / "out"))
    return read_csv(root / "out" / "tables" / f"{name}.csv")
