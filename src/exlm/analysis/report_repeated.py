"""The Repeated MLM experiment: heat maps over p and r, corrupted semantics, entropy, training curves, spread."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from exlm.analysis.paper_values import ABLATION_TASKS, RATIOS, REPEATED_MNLI, REPEATS, SWEEP, VANISHING
from exlm.analysis.report_cells import (
    ACCURACY,
    CORRUPTION,
    ENTROPY,
    PERPLEXITY,
    TITLES,
    Estimate,
    Family,
    Score,
    Setting,
)  # fmt: skip
from exlm.analysis.report_figures import HeatMap, Line, Place, curves, entropy_curve, heat_maps
from exlm.analysis.report_model import Cell, Figure, Missing, Row, Section, Table, columns_of, paper_cells
from exlm.train.tracking import read_log

MLM = ("Vanilla MLM",)
TITLE = "Repeated MLM: corrupted semantics and unreal tokens"
ABOUT = (
    "Each token is repeated r times before a share p is masked, so that a share p of the tokens is unreal but only pʳ of "
    "the words have no visible copy (the paper writes k for r); pʳ below 0.05% is left out, as in the paper."
)


def places(family: Family) -> dict[Place, Setting]:
    """The cells of the experiment by (p, r)."""
    return {(cell.p, cell.r): cell for cell in family.select(MLM, r=None)}


def has_repeats(family: Family) -> bool:
    return any(r > 1 for _, r in places(family))


def axes_of(family: Family) -> tuple[list[float], list[int]]:
    """The mask ratios and repetitions of the paper and of the runs."""
    cells = places(family)
    return sorted({*RATIOS, *(p for p, _ in cells)}), sorted({*REPEATS, *(r for _, r in cells)})


def repeated_section(families: list[Family], command: Mapping[str, str]) -> Section | None:
    """The section, or None if nothing was repeated. `command`: the one that fills a family's cells, by label."""
    chosen = [family for family in families if has_repeats(family)]
    section = Section(TITLE, ABOUT)
    for number, family in enumerate(chosen, 1):
        end = "" if number == 1 else f"-{number}"
        section.parts += [family.label, *_score_parts(family, end), *_measured_parts(family, end)]
        section.parts += [*_curve_parts(family, end), *([spread_table(family, end)] if family.tasks else [])]
        if missing := _missing(family):
            section.missing.append(Missing(f"{family.label}: {missing}", command[family.label]))
    return section if chosen else None


def scores_of(family: Family) -> list[tuple[str, Score]]:
    """Titles and scores of the tasks that some run has."""
    return [(TITLES.get(task, task), Score(task)) for task in family.tasks]


def estimates(family: Family, score: Score) -> dict[Place, Estimate]:
    """By (p, r), those that exist."""
    found = {place: family.estimate(cell, score) for place, cell in places(family).items()}
    return {place: estimate for place, estimate in found.items() if estimate}


def _panel(title: str, found: dict[Place, Estimate], digits: int = 1) -> HeatMap:
    words = {}
    for place, estimate in found.items():
        spread = f"\n± {estimate.spread:.{digits}f}" if estimate.spread is not None else ""
        words[place] = f"{estimate.value:.{digits}f}{spread}"
    return HeatMap(title, {place: estimate.value for place, estimate in found.items()}, words)


def _score_parts(family: Family, end: str) -> list[Table | Figure]:
    panels = [_panel(title, found) for title, score in scores_of(family) if (found := estimates(family, score))]
    panels.append(_panel("Held-out accuracy, %", estimates(family, ACCURACY)))
    caption = (
        f"Repeated MLM ({family.label}): value ± s.d. over seeds; similar values have similar colours, grey cells are left "
        "out (pʳ vanishes), a dash is not run. Held-out accuracy counts masked tokens with a visible copy too."
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
                    _row(
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
    titles = ["p, %", "r", "pʳ, %", *(title for title, _ in scores), "seeds", "runs"]
    caption = "Mean over seeds ± s.d. The paper prints these numbers alone; the rest of its heat maps is colour."
    title = f"Repeated MLM by p and r ({family.label})"
    return Table(
        f"repeated-mlm{end}", title, caption, columns_of(titles, [TITLES[t] for t in ABLATION_TASKS]), tuple(rows)
    )


def _paper(p: float, r: int) -> list[Cell]:
    """What the paper prints: MNLI at four places, and its vanilla rows of the table of k and p."""
    if r == 1 and (p, 1) in SWEEP:
        return paper_cells(SWEEP[p, 1][:4], 4)
    return [Cell(REPEATED_MNLI.get((p, r))), *[Cell()] * 3]


def _row(family: Family, p: float, r: int, cells: list[Cell], paper: Sequence[Cell] = ()) -> Row:
    runs = family.cells.get(Setting("Vanilla MLM", 1, p, r), [])
    tunings = sorted({len(t.result["seeds"]) for (i, _), t in family.tunings.items() if i in {run.id for run in runs}})
    seeds = f"{len(runs)} × {'–'.join(map(str, tunings)) or 0}" if runs else ""
    start = [Cell(100 * p), Cell(r, digits=0), Cell(100 * p**r, digits=2)]
    ids = Cell(links=tuple(run.id for run in runs)) if runs else Cell()
    return Row((*start, *cells, Cell(text=seeds), ids, *paper))


def _measured_parts(family: Family, end: str) -> list[Table | Figure]:
    shares, entropy = estimates(family, CORRUPTION), estimates(family, ENTROPY)
    if not shares and not entropy:
        return []
    panels = []
    if shares:
        words = {place: _share_words(family, place) for place in shares}
        panels.append(HeatMap("Corrupted semantics, %", {(p, r): (100 * p**r) ** 0.5 for p, r in shares}, words))
    if entropy:
        panels.append(_panel("Entropy, bits", entropy, 2))
    caption = (
        f"Left: corrupted semantics ({family.label}), measured mean ± s.d. over sequences, below it pʳ and the s.d. of the "
        "appendix's formula. Right: entropy of the predictions of words without a visible copy, ± s.d. over seeds."
    )
    parts: list[Table | Figure] = [Figure(f"corruption{end}", caption, heat_maps(panels, *axes_of(family), VANISHING))]
    if len(entropy) > 1:
        parts.append(
            Figure(
                f"repeated-entropy{end}",
                f"Entropy against the share of corrupted semantics ({family.label}).",
                entropy_curve(_entropy_lines(entropy)),
            )
        )
    return [*parts, _measured_table(family, end)]


def _share_words(family: Family, place: Place) -> str:
    measured, predicted, formula = _corruption(family, place)
    return f"{measured.value:.1f} ± {measured.spread or 0:.1f}\n({predicted.value:.1f} ± {formula.value or 0:.1f})"


def _corruption(family: Family, place: Place) -> tuple[Cell, Cell, Cell]:
    """In percent: measured mean ± s.d. over sequences, pʳ, the formula's s.d.; the mean over seeds."""
    found = [m["corruption"] for m in measurements(family, place) if m.get("corruption")]
    mean = {key: 100 * fmean(m[key] for m in found) for key in ("mean", "std", "predicted", "predicted_std")}
    note = f"{sum(m['sequences'] for m in found)} sequences; a fixed number of masks: {100 * fmean(m['fixed_count'] for m in found):.3g} ± {100 * fmean(m['fixed_count_std'] for m in found):.3g}"
    return (
        Cell(mean["mean"], mean["std"], digits=2, note=note),
        Cell(mean["predicted"], digits=2),
        Cell(mean["predicted_std"], digits=2),
    )


def measurements(family: Family, place: Place) -> list[dict]:
    """Of all seeds of a cell."""
    return [run.measurements for run in family.cells[places(family)[place]] if run.measurements]


def _entropy_lines(found: dict[Place, Estimate]) -> list[Line]:
    lines = []
    for p in sorted({p for p, _ in found}):
        points = sorted((100 * p**r, e.value, e.spread or 0.0) for (q, r), e in found.items() if q == p)
        x, y, error = map(list, zip(*points, strict=True))
        lines.append(Line(f"{100 * p:.4g}%", x, y, error))
    return lines


def _measured_table(family: Family, end: str) -> Table:
    rows = []
    for p, r in sorted(places(family)):
        found = measurements(family, (p, r))
        shares = _corruption(family, (p, r)) if any(m.get("corruption") for m in found) else (Cell(), Cell(), Cell())
        entropy = family.estimate(places(family)[p, r], ENTROPY)
        of_entropy = [m["entropy"] for m in found if m.get("entropy")]
        tokens = Cell(sum(m["tokens"] for m in of_entropy), digits=0) if of_entropy else Cell()
        left_out = Cell(sum(m["left_out"] for m in of_entropy), digits=0) if of_entropy else Cell()
        rows.append(_row(family, p, r, [*shares, entropy.cell(2) if entropy else Cell(), tokens, left_out]))
    titles = ["p, %", "r", "pʳ, %", "corrupted, measured, %", "pʳ, %, by the run", "formula's s.d.", "entropy, bits"]
    titles += ["tokens", "left out", "seeds", "runs"]
    caption = (
        "Corrupted: mean ± s.d. over sequences. Entropy: mean ± s.d. over pre-training seeds; tokens with a visible copy are "
        "left out. The paper shows both as colours, without numbers."
    )
    title = f"Corrupted semantics and entropy, measured ({family.label})"
    return Table(f"measured{end}", title, caption, columns_of(titles, []), tuple(rows), folded=True)


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
        "Largest less smallest value among the cells of a line that were run. The paper's column is the difference of the "
        "two ends of a line where it prints both."
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
