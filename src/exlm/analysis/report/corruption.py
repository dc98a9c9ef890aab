"""Repeated MLM: the share of corrupted semantics and the entropy, as measured."""

from statistics import fmean

from exlm.analysis.report.cells import CORRUPTION, ENTROPY, Family
from exlm.analysis.report.document import Cell, Figure, Table, columns_of
from exlm.analysis.report.estimates import Estimate
from exlm.analysis.report.figures import HeatMap, Line, Place, entropy_curve, heat_maps
from exlm.analysis.report.grid import axes_of, estimates, grid_row, panel_of, places
from exlm.analysis.report.paper_values import VANISHING


def measured_parts(family: Family, end: str) -> list[Table | Figure]:
    shares, entropy = estimates(family, CORRUPTION), estimates(family, ENTROPY)
    if not shares and not entropy:
        return []
    panels = []
    if shares:
        words = {place: _share_words(family, place) for place in shares}
        panels.append(HeatMap("Corrupted semantics, %", {(p, r): (100 * p**r) ** 0.5 for p, r in shares}, words))
    if entropy:
        panels.append(panel_of("Entropy, bits", entropy, 2))
    caption = (
        f"Left: corrupted semantics ({family.label}), measured mean ± s.d. over sequences, below it pʳ and the s.d. of "
        "the appendix's formula. Right: entropy of the predictions of words without a visible copy, ± s.d. over seeds."
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
    fixed = [100 * fmean(m[key] for m in found) for key in ("fixed_count", "fixed_count_std")]
    note = (
        f"{sum(m['sequences'] for m in found)} sequences; of a fixed number of masks: {fixed[0]:.3g} ± {fixed[1]:.3g}"
    )
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
        rows.append(grid_row(family, p, r, [*shares, entropy.cell(2) if entropy else Cell(), tokens, left_out]))
    titles = ["p, %", "r", "pʳ, %", "corrupted, measured, %", "pʳ, %, by the run", "formula's s.d.", "entropy, bits"]
    titles += ["tokens", "left out", "seeds", "runs"]
    caption = (
        "Corrupted: mean ± s.d. over sequences. Entropy: mean ± s.d. over pre-training seeds; tokens with a visible "
        "copy are left out. The paper shows both as colours, without numbers."
    )
    title = f"Corrupted semantics and entropy, measured ({family.label})"
    return Table(f"measured{end}", title, caption, columns_of(titles), tuple(rows), folded=True)
