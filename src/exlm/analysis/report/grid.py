"""The cells of the Repeated MLM experiment by mask ratio p and repetitions r."""

from collections import defaultdict
from collections.abc import Sequence

from exlm.analysis.report.cells import TITLES, Family, Score, Setting
from exlm.analysis.report.document import Cell, Row
from exlm.analysis.report.estimates import Estimate
from exlm.analysis.report.figures import HeatMap, Place
from exlm.analysis.report.paper_values import RATIOS, REPEATS

MLM = ("Vanilla MLM",)


def places(family: Family) -> dict[Place, Setting]:
    """The cells of the experiment by (p, r)."""
    return {(cell.p, cell.r): cell for cell in family.select(MLM, r=None)}


def has_repeats(family: Family) -> bool:
    return any(r > 1 for _, r in places(family))


def axes_of(family: Family) -> tuple[list[float], list[int]]:
    """The mask ratios and repetitions of the paper and of the runs."""
    cells = places(family)
    return sorted({*RATIOS, *(p for p, _ in cells)}), sorted({*REPEATS, *(r for _, r in cells)})


def scores_of(family: Family) -> list[tuple[str, Score]]:
    """Titles and scores of the tasks that some run has."""
    return [(TITLES.get(task, task), Score(task)) for task in family.tasks]


def estimates(family: Family, score: Score) -> dict[Place, Estimate]:
    """By (p, r), those that exist."""
    found = {place: family.estimate(cell, score) for place, cell in places(family).items()}
    return {place: estimate for place, estimate in found.items() if estimate}


def lines_of(family: Family) -> tuple[dict[str, list[Place]], dict[str, list[Place]]]:
    """Cells with the same pʳ (unreal tokens vary), and cells with the same p (corruption varies)."""
    cells = sorted(places(family))
    same_share: dict[float, list[Place]] = defaultdict(list)
    for p, r in cells:
        share = next((s for s in same_share if abs(p**r / s - 1) < 0.05), p**r)
        same_share[share].append((p, r))
    fixed = {p: [place for place in cells if place[0] == p] for p, _ in cells}
    diagonals = {f"pʳ ≈ {100 * share:.2g}%, p varies": line for share, line in sorted(same_share.items(), reverse=True)}
    rows = {f"p = {100 * p:.4g}%, r varies": line for p, line in fixed.items()}
    return {n: c for n, c in diagonals.items() if len(c) > 1}, {n: c for n, c in rows.items() if len(c) > 1}


def grid_row(family: Family, p: float, r: int, cells: list[Cell], paper: Sequence[Cell] = ()) -> Row:
    runs = family.cells.get(Setting("Vanilla MLM", 1, p, r), [])
    tunings = sorted({len(t.result["seeds"]) for (i, _), t in family.tunings.items() if i in {run.id for run in runs}})
    seeds = f"{len(runs)} × {'–'.join(map(str, tunings)) or 0}" if runs else ""
    start = [Cell(100 * p), Cell(r, digits=0), Cell(100 * p**r, digits=2)]
    ids = Cell(links=tuple(run.id for run in runs)) if runs else Cell()
    return Row((*start, *cells, *paper, Cell(text=seeds), ids))


def panel_of(title: str, found: dict[Place, Estimate], digits: int = 1) -> HeatMap:
    words = {}
    for place, estimate in found.items():
        spread = f"\n± {estimate.spread:.{digits}f}" if estimate.spread is not None else ""
        words[place] = f"{estimate.value:.{digits}f}{spread}"
    return HeatMap(title, {place: estimate.value for place, estimate in found.items()}, words)
