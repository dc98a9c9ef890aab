"""Reads what a report wrote, and the families of runs."""

import csv

from exlm.paper.families import families
from exlm.paper.runs import find_runs


def read_csv(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def only_family(root):
    found = families(find_runs([str(root)]))
    assert len(found) == 1
    return found[0]
