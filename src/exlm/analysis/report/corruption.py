"""Repeated MLM: the share of corrupted semantics and the entropy, as measured."""

from statistics import fmean

from exlm.analysis.report.cells import CORRUPTION, ENTROPY, Family
from exlm.analysis.report.document import Cell, Figure, Table, row
from exlm.analysis.report.estimates import Estimate
from exlm.analysis.report.figures import HeatMap, Line, Place, entropy_curve, heat_maps
from exlm.analysis.report.grid import axes_of, estimates, measured, panel_of, places
from exlm.analysis.report.paper_values import VANISHING
from exlm.analysis.report.runs import Json


def measured_parts(family: Family) -> list[Table | Figure]:
    shares, entropy = estimates(family, CORRUPTION), estimates(family, ENTROPY)
    panels = [_share_panel(family, list(shares))] if shares else []
    panels += [panel_of("Entropy, bits", entropy, 2)] if entropy else []
    if not panels:
        return []
    caption = (
        f"Left: corrupted semantics ({family.label}), measured mean ± s.d. over sequences, below it pʳ and the s.d. of "
        "the appendix's formula. Right: entropy of the predictions of words without a visible copy, ± s.d. over seeds."
    )
    parts: list[Table | Figure] = [Figure("corruption", caption, heat_maps(panels, *axes_of(family), VANISHING))]
    if len(entropy) > 1:
        words = f"Entropy against the share of corrupted semantics ({family.label})."
        parts.append(Figure("repeated-entropy", words, entropy_curve(_entropy_lines(entropy))))
    return [*parts, _table(family)]


def _share_panel(family: Family, found: list[Place]) -> HeatMap:
    words = {}
    for place in found:
        share = _share(measured(family, place, "corruption"))
        words[place] = (
            f"{share['mean']:.1f} ± {share['std']:.1f}\n({share['predicted']:.1f} ± {share['predicted_std']:.1f})"
        )
    return HeatMap("Corrupted semantics, %", {(p, r): (100 * p**r) ** 0.5 for p, r in found}, words)


def _share(found: list[Json]) -> dict[str, float]:
    """In percent, the mean over seeds."""
    return {key: 100 * fmean(m[key] for m in found) for key in ("mean", "std", "predicted", "predicted_std")}


def _entropy_lines(found: dict[Place, Estimate]) -> list[Line]:
    lines = []
    for p in sorted({p for p, _ in found}):
        points = sorted((100 * p**r, e.value, e.spread or 0.0) for (q, r), e in found.items() if q == p)
        x, y, error = map(list, zip(*points, strict=True))
        lines.append(Line(f"{100 * p:.4g}%", x, y, error))
    return lines


def _table(family: Family) -> Table:
    rows = []
    for (p, r), cell in sorted(places(family).items()):
        shares, entropies = (measured(family, (p, r), section) for section in ("corruption", "entropy"))
        share = _share(shares) if shares else {}
        corrupted = Cell(share.get("mean"), share.get("std"), digits=2)
        counts = [sum(m[key] for m in entropies) if entropies else None for key in ("tokens", "left_out")]
        theory = [Cell(100 * p**r, digits=2), Cell(share.get("predicted_std"), digits=2)]
        entropy = family.cell(cell, ENTROPY)
        rows.append(row(100 * p, r, corrupted, *theory, entropy, *counts, *family.sources(cell)))
    columns = ("p, %", "r", "corrupted, %", "pʳ, %", "its s.d.", "entropy, bits", "tokens", "left out", "seeds", "runs")
    caption = (
        "Corrupted: mean ± s.d. over sequences, beside pʳ and the s.d. of the appendix's formula. Entropy: mean ± s.d. "
        "over pre-training seeds; tokens with a visible copy are left out. The paper shows both as colours alone."
    )
    return Table(
        "measured", f"Corrupted semantics and entropy, measured ({family.label})", caption, columns, tuple(rows)
    )
