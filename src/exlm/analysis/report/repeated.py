"""The Repeated MLM experiment: heat maps over p and r, training curves, and the spread of the cells."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean

from exlm.analysis.report.cells import ACCURACY, PERPLEXITY, TITLES, Family, Score
from exlm.analysis.report.corruption import measured_parts
from exlm.analysis.report.document import Cell, Figure, Missing, Row, Section, Table, columns_of, paper_cells
from exlm.analysis.report.figures import Line, Place, curves, heat_maps
from exlm.analysis.report.grid import axes_of, estimates, grid_row, has_repeats, lines_of, panel_of, places, scores_of
from exlm.analysis.report.paper_values import ABLATION_TASKS, REPEATED_MNLI, SWEEP, VANISHING
from exlm.train.tracking import read_log

TITLE = "Repeated MLM: corrupted semantics and unreal tokens"
ABOUT = (
    "Each token is repeated r times before a share p is masked, so that a share p of the tokens is unreal but only pʳ "
    "of the words have no visible copy (the paper writes k for r); pʳ below 0.05% is left out, as in the paper."
)


def repeated_section(families: list[Family], command: Mapping[str, str]) -> Section | None:
    """The section, or None if nothing was repeated. `command`: the one that fills a family's cells, by label."""
    chosen = [family for family in families if has_repeats(family)]
    section = Section(TITLE, ABOUT)
    for number, family in enumerate(chosen, 1):
        end = "" if number == 1 else f"-{number}"
        section.parts += [family.label, *_score_parts(family, end), *measured_parts(family, end)]
        section.parts += [*_curve_parts(family, end), *([spread_table(family, end)] if family.tasks else [])]
        if missing := _missing(family):
            section.missing.append(Missing(f"{family.label}: {missing}", command[family.label]))
    return section if chosen else None


def _score_parts(family: Family, end: str) -> list[Table | Figure]:
    panels = [panel_of(title, found) for title, score in scores_of(family) if (found := estimates(family, score))]
    panels.append(panel_of("Held-out accuracy, %", estimates(family, ACCURACY)))
    caption = (
        f"Repeated MLM ({family.label}): value ± s.d. over seeds; similar values have similar colours, grey cells are "
        "left out (pʳ vanishes), a dash is not run. Held-out accuracy counts masked tokens with a visible copy too."
    )
    plot = heat_maps(panels, *axes_of(family), VANISHING)
    return [Figure(f"repeated-mlm{end}", caption, plot), _score_table(family, end)]


def _score_table(family: Family, end: str) -> Table:
    scores = [*scores_of(family), ("Held-out accuracy", ACCURACY), ("Perplexity", PERPLEXITY)]
    rows = []
    for p in axes_of(family)[0]:
        for r in axes_of(family)[1]:
            cell = places(family).get((p, r))
            if cell or p**r >= VANISHING:
                found = [family.estimate(cell, score) if cell else None for _, score in scores]
                rows.append(
                    grid_row(
                        family,
                        p,
                        r,
                        [
                            e.cell(2 if s == PERPLEXITY else 1) if e else Cell()
                            for e, (_, s) in zip(found, scores, strict=True)
                        ],
                        _paper(p, r),
                    )
                )
    titles = ["p, %", "r", "pʳ, %", *(title for title, _ in scores)]
    caption = "Mean over seeds ± s.d. The paper prints these numbers alone; the rest of its heat maps is colour."
    title = f"Repeated MLM by p and r ({family.label})"
    return Table(
        f"repeated-mlm{end}",
        title,
        caption,
        columns_of(titles, [TITLES[t] for t in ABLATION_TASKS], ["seeds", "runs"]),
        tuple(rows),
    )


def _paper(p: float, r: int) -> list[Cell]:
    """What the paper prints: MNLI at four places, and its vanilla rows of the table of k and p."""
    if r == 1 and (p, 1) in SWEEP:
        return paper_cells(SWEEP[p, 1][:4], 4)
    return [Cell(REPEATED_MNLI.get((p, r))), *[Cell()] * 3]


def _curve_parts(family: Family, end: str) -> list[Figure]:
    rows = []
    for p in axes_of(family)[0]:
        repeats = [r for q, r in sorted(places(family)) if q == p]
        panels = [
            (title, log, [line for r in repeats if (line := _curve(family, (p, r), kind, key))])
            for title, log, kind, key in (
                ("training loss", False, "train", "loss"),
                ("held-out accuracy", False, "eval", "accuracy"),
                ("held-out perplexity", True, "eval", "perplexity"),
            )
        ]
        if len(repeats) > 1 and all(lines for _, _, lines in panels):
            rows.append((f"p = {100 * p:.4g}%", panels))
    caption = f"Training curves at fixed p, one line per r, mean over pre-training seeds ({family.label})."
    return [Figure(f"repeated-curves{end}", caption, curves(rows))] if rows else []


def _curve(family: Family, place: Place, kind: str, key: str) -> Line | None:
    """A number of the logs against updates, averaged over seeds."""
    points: dict[int, list[float]] = defaultdict(list)
    for run in family.cells[places(family)[place]]:
        for record in read_log(run.path / "log.jsonl"):
            if record.get("kind") == kind and isinstance(record.get(key), int | float):
                points[record["step"]].append(record[key])
    steps = sorted(points)
    return Line(f"r = {place[1]}", steps, [fmean(points[step]) for step in steps]) if steps else None


def spread_table(family: Family, end: str) -> Table:
    """How far apart the cells of a line are, in points and in standard deviations of a seed."""
    scores = scores_of(family)
    rows = []
    for kind, lines in zip(("unreal tokens", "corrupted semantics"), lines_of(family), strict=True):
        for name, line in lines.items():
            cells = [cell for _, score in scores for cell in _range_cells(family, score, line)]
            stated = [REPEATED_MNLI.get(line[0]), REPEATED_MNLI.get(line[-1])]
            difference = None if None in stated else abs(stated[0] - stated[1])  # type: ignore[operator]
            rows.append(Row((Cell(text=kind), Cell(text=name), *cells, Cell(difference))))
    titles = ["what varies", "cells", *(t for title, _ in scores for t in (f"{title}: range", "in seed s.d."))]
    caption = (
        "Largest less smallest value among the cells of a line that were run. The paper's column is the difference of "
        "the two ends of a line where it prints both."
    )
    title = f"Unreal tokens against corrupted semantics ({family.label})"
    return Table(f"repeated-spread{end}", title, caption, columns_of(titles, ["MNLI"]), tuple(rows))


def _range_cells(family: Family, score: Score, line: list[Place]) -> tuple[Cell, Cell]:
    found = [e.value for place, e in estimates(family, score).items() if place in line]
    if len(found) < 2:
        return Cell(), Cell()
    width, noise = max(found) - min(found), family.noise(score)
    return Cell(width, note=f"{len(found)} cells"), Cell(width / noise.deviation if noise and noise.deviation else None)


def _missing(family: Family) -> str:
    """The cells without a run, or without a task that others have."""
    ratios, repeats = axes_of(family)
    cells, words = places(family), []
    for p, r in ((p, r) for p in ratios for r in repeats if p**r >= VANISHING):
        lacking = [
            title for title, score in scores_of(family) if (p, r) in cells and not family.estimate(cells[p, r], score)
        ]
        if (p, r) not in cells or lacking:
            words.append(f"p = {100 * p:.4g}%, r = {r}" + (f" ({', '.join(lacking)})" if lacking else ""))
    return "; ".join(words)
