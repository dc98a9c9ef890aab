"""Training curves: numbers of the logs against updates, one row of panels per mask ratio."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from exlm.paper.report.cells import Family, Setting
from exlm.paper.report.document import Figure
from exlm.paper.report.figures import Line, Panel, curves
from exlm.train.tracking import read_log

Curve = tuple[str, bool, str, str]  # title, logarithmic, kind and key of the log


def training_curves(
    name: str, caption: str, family: Family, ratios: Mapping[float, Mapping[str, Setting]], measures: Sequence[Curve]
) -> list[Figure]:
    """One figure of the mask ratios with several named cells; nothing if there are no logs of them.

    A measure that no log has takes no place.
    """
    rows: list[list[Panel]] = []
    for p, cells in ratios.items():
        panels = [
            (f"{title}, p = {100 * p:.4g}%", log, _lines(family, cells, kind, key))
            for title, log, kind, key in measures
        ]
        if len(cells) > 1 and _drawn(panels[0]):
            rows.append(panels)
    kept = [i for i in range(len(measures)) if any(_drawn(panels[i]) for panels in rows)]
    return [Figure(name, caption, curves([[panels[i] for i in kept] for panels in rows]))] if rows else []


def _drawn(panel: Panel) -> bool:
    return any(line.x for line in panel[2])


def _lines(family: Family, cells: Mapping[str, Setting], kind: str, key: str) -> list[Line]:
    """A number of the logs against updates, averaged over seeds; a cell without it keeps its place and colour."""
    found = []
    for name, cell in cells.items():
        points: dict[int, list[float]] = defaultdict(list)
        for run in family.cells[cell]:
            for record in read_log(run.path / "log.jsonl"):
                if record.get("kind") == kind and isinstance(record.get(key), int | float):
                    points[record["step"]].append(record[key])
        steps = sorted(points)
        found.append(Line(name, steps, [fmean(points[step]) for step in steps]))
    return found
