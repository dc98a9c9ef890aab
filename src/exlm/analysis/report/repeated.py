"""The Repeated MLM experiment: heat maps over p and r, training curves, and the spread of the cells."""

from collections import defaultdict
from statistics import fmean

from exlm.analysis.report import commands
from exlm.analysis.report.cells import ACCURACY, PERPLEXITY, TITLES, Family, Score
from exlm.analysis.report.corruption import measured_parts
from exlm.analysis.report.document import PAPER, Cell, Figure, Section, Table, row
from exlm.analysis.report.figures import Line, Panel, Place, curves, heat_maps
from exlm.analysis.report.grid import axes_of, estimates, has_repeats, lines_of, panel_of, places, shown_places
from exlm.analysis.report.paper_values import ABLATION_TASKS, REPEATED_MNLI, SWEEP, VANISHING, Values
from exlm.train.tracking import read_log

ABOUT = (
    "Each token is repeated r times before a share p is masked, so that a share p of the tokens is unreal but only pʳ "
    "of the words have no visible copy (the paper writes k for r); pʳ below 0.05% is left out, as in the paper."
)
CURVES = (
    ("training loss", False, "train", "loss"),
    ("held-out accuracy", False, "eval", "accuracy"),
    ("held-out perplexity", True, "eval", "perplexity"),
)  # title, logarithmic, kind and key of the log


def repeated_section(families: list[Family]) -> Section:
    name = "repeated-mlm"
    title = "Repeated MLM: corrupted semantics and unreal tokens"
    section = Section(title, ABOUT, commands.start(name, families))
    for family in filter(has_repeats, families):
        section.parts += [_heat_maps(family), _score_table(family), *measured_parts(family), *_curves(family)]
        section.parts += [_spread_table(family)] if family.tasks else []
        section.missing += commands.analysis(name, family, _lacking(family))
    return section


def _heat_maps(family: Family) -> Figure:
    panels = [panel_of(score.title, found) for score in family.scores if (found := estimates(family, score))]
    panels.append(panel_of("Held-out accuracy, %", estimates(family, ACCURACY)))
    caption = (
        f"Repeated MLM ({family.label}): value ± s.d. over seeds; similar values have similar colours, grey cells are "
        "left out (pʳ vanishes), a dash is not run. Held-out accuracy counts masked tokens with a visible copy too."
    )
    return Figure("repeated-mlm", caption, heat_maps(panels, *axes_of(family), VANISHING))


def _score_table(family: Family) -> Table:
    scores = [*family.scores, ACCURACY, PERPLEXITY]
    rows = []
    for p, r in shown_places(family):
        cell = places(family).get((p, r))
        ours = [family.cell(cell, score) if cell else Cell() for score in scores]
        ends = family.sources(cell) if cell else ["", None]
        rows.append(row(100 * p, r, Cell(100 * p**r, digits=2), *ours, *_paper(p, r), *ends))
    titles = [*(score.title for score in family.scores), "held-out accuracy", "perplexity"]
    columns = ["p, %", "r", "pʳ, %", *titles, *(PAPER + TITLES[t] for t in ABLATION_TASKS), "seeds", "runs"]
    caption = "Mean over seeds ± s.d. The paper prints these numbers alone; the rest of its heat maps is colour."
    return Table("repeated-mlm", f"Repeated MLM by p and r ({family.label})", caption, tuple(columns), tuple(rows))


def _paper(p: float, r: int) -> Values:
    """What the paper prints: MNLI at four places, and its vanilla rows of the table of k and p."""
    return SWEEP[p, 1][:4] if r == 1 and (p, 1) in SWEEP else (REPEATED_MNLI.get((p, r)), None, None, None)


def _curves(family: Family) -> list[Figure]:
    rows: list[list[Panel]] = []
    for p in axes_of(family)[0]:
        own = [place for place in sorted(places(family)) if place[0] == p]
        panels = [
            (f"{title}, p = {100 * p:.4g}%", log, [line for place in own if (line := _curve(family, place, kind, key))])
            for title, log, kind, key in CURVES
        ]
        if len(own) > 1 and all(lines for _, _, lines in panels):
            rows.append(panels)
    caption = f"Training curves at fixed p, one line per r, mean over pre-training seeds ({family.label})."
    return [Figure("repeated-curves", caption, curves(rows))] if rows else []


def _curve(family: Family, place: Place, kind: str, key: str) -> Line | None:
    """A number of the logs against updates, averaged over seeds."""
    points: dict[int, list[float]] = defaultdict(list)
    for run in family.cells[places(family)[place]]:
        for record in read_log(run.path / "log.jsonl"):
            if record.get("kind") == kind and isinstance(record.get(key), int | float):
                points[record["step"]].append(record[key])
    steps = sorted(points)
    return Line(f"r = {place[1]}", steps, [fmean(points[step]) for step in steps]) if steps else None


def _spread_table(family: Family) -> Table:
    """How far apart the cells of a line are, in points and in standard deviations of a seed."""
    rows = []
    for kind, lines in zip(("unreal tokens", "corrupted semantics"), lines_of(family), strict=True):
        for name, line in lines.items():
            ranges = [value for score in family.scores for value in _range(family, score, line)]
            stated = [REPEATED_MNLI[place] for place in (line[0], line[-1]) if place in REPEATED_MNLI]
            rows.append(row(kind, name, *ranges, abs(stated[0] - stated[1]) if len(stated) == 2 else None))
    titles = [title for score in family.scores for title in (f"{score.title}: range", "in seed s.d.")]
    caption = (
        "Largest less smallest value among the cells of a line that were run. The paper's column is the difference of "
        "the two ends of a line where it prints both."
    )
    title = f"Unreal tokens against corrupted semantics ({family.label})"
    return Table("repeated-spread", title, caption, ("what varies", "cells", *titles, f"{PAPER}MNLI"), tuple(rows))


def _range(family: Family, score: Score, line: list[Place]) -> tuple[float | None, float | None]:
    found = [e.value for place, e in estimates(family, score).items() if place in line]
    if len(found) < 2:
        return None, None
    width, noise = max(found) - min(found), family.noise(score)
    return width, width / noise.deviation if noise and noise.deviation else None


def _lacking(family: Family) -> list[str]:
    """The cells without a run, or without a task that others have."""
    lacking = [f"p = {100 * p:.4g}%, r = {r}" for p, r in shown_places(family) if (p, r) not in places(family)]
    return lacking + commands.incomplete(family, places(family).values())
