"""The cells of the Repeated MLM experiment by mask ratio p and repetitions r."""

from collections import defaultdict

from exlm.paper.report.cells import Family, Score, Setting
from exlm.paper.report.estimates import Estimate
from exlm.paper.report.figures import HeatMap, Place
from exlm.paper.report.paper_values import RATIOS, REPEATS, VANISHING
from exlm.paper.report.records import Json

Lines = dict[str, list[Place]]


def places(family: Family) -> dict[Place, Setting]:
    """The cells of the experiment by (p, r)."""
    return {(cell.p, cell.r): cell for cell in family.select(["Vanilla MLM"], r=None)}


def has_repeats(family: Family) -> bool:
    return any(r > 1 for _, r in places(family))


def axes_of(family: Family) -> tuple[list[float], list[int]]:
    """The mask ratios and repetitions of the paper and of the runs."""
    cells = places(family)
    return sorted({*RATIOS, *(p for p, _ in cells)}), sorted({*REPEATS, *(r for _, r in cells)})


def shown_places(family: Family) -> list[Place]:
    """Where there is a run, or could be one: the share of corrupted semantics does not vanish."""
    ratios, repeats = axes_of(family)
    return [(p, r) for p in ratios for r in repeats if (p, r) in places(family) or p**r >= VANISHING]


def estimates(family: Family, score: Score) -> dict[Place, Estimate]:
    """By (p, r), those that exist."""
    found = {place: family.estimate(cell, score) for place, cell in places(family).items()}
    return {place: estimate for place, estimate in found.items() if estimate}


def measured(family: Family, place: Place, section: str) -> list[Json]:
    """Entropy or corruption of every seed of a cell."""
    runs = family.cells[places(family)[place]] if place in places(family) else []
    return [run.measured(section) for run in runs if run.measured(section)]


def lines_of(family: Family) -> tuple[Lines, Lines]:
    """Cells with the same pʳ (unreal tokens vary), and cells with the same p (corruption varies)."""
    shares: dict[float, list[Place]] = defaultdict(list)
    ratios: dict[float, list[Place]] = defaultdict(list)
    for p, r in sorted(places(family)):
        shares[next((s for s in shares if abs(p**r / s - 1) < 0.05), p**r)].append((p, r))
        ratios[p].append((p, r))
    diagonals = {f"pʳ ≈ {100 * share:.2g}%, p varies": line for share, line in sorted(shares.items(), reverse=True)}
    rows = {f"p = {100 * p:.4g}%, r varies": line for p, line in ratios.items()}
    return {n: c for n, c in diagonals.items() if len(c) > 1}, {n: c for n, c in rows.items() if len(c) > 1}


def panel_of(title: str, found: dict[Place, Estimate], digits: int = 1) -> HeatMap:
    words = {}
    for place, estimate in found.items():
        spread = f"\n± {estimate.spread:.{digits}f}" if estimate.spread is not None else ""
        words[place] = f"{estimate.value:.{digits}f}{spread}"
    return HeatMap(title, {place: estimate.value for place, estimate in found.items()}, words)
