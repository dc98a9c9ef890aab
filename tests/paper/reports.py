"""Reads what a report wrote, and the groups of runs."""

import csv

from exlm.paper.groups import group_runs
from exlm.paper.runs import find_runs


def read_csv(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def only_group(root):
    [group] = group_runs(find_runs([str(root)]))
    return group
