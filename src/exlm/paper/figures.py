"""The figures of the report: heat maps over mask ratio and repetitions, training curves, entropy."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.patches import Rectangle

from exlm.paper.families import Estimate, Family
from exlm.paper.page import INK, Figure, styled
from exlm.paper.values import MLM, TEXTS, HeldOut, Setting, percent, title
from exlm.train.tracking import read_log

POINTS = 100  # of a curve, so that the files stay small
COLOURS = ("#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b")
CURVES = {  # titles of training curves: kind and key of the records in the log
    "training loss": ("train", "loss"),
    "held-out accuracy": ("eval", "accuracy"),
    "held-out perplexity": ("eval", "perplexity"),
    "joint perplexity": ("eval", "joint_perplexity"),
    "own mask": ("eval", "own_states"),
}
Panel = dict[Setting, tuple[float, str]]  # the number that chooses the colour of a cell, and its words


def _figure(name: str, family: Family, plot: Plot) -> Figure:
    return Figure(name, TEXTS["figures"][name].format(label=family.label), plot)


def repeated_figures(family: Family) -> list[Figure]:
    """Heat maps of scores, of corrupted semantics and of entropy; entropy against corruption; training curves."""
    scores = {title(task): task for task in family.tasks} | {"Held-out accuracy, %": HeldOut.ACCURACY}
    panels = {name: _panel(family.estimates(family.grid, score)) for name, score in scores.items()}
    figures = [_figure("repeated-mlm", family, _heat_maps(family, panels))]
    entropy = family.estimates(family.grid, HeldOut.ENTROPY)
    panels = {"Corrupted semantics, %": _corruption(family), "Entropy, bits": _panel(entropy, digits=2)}
    if any(panels.values()):
        figures.append(_figure("corruption", family, _heat_maps(family, panels)))
    if len(entropy) > 1:
        figures.append(_figure("repeated-entropy", family, _entropy_curve(entropy)))
    names = {cell: f"r = {cell.r}" for cell in family.grid}
    return figures + _training_curves("repeated-curves", family, names, list(CURVES)[:3])


def _panel(estimates: Mapping[Setting, Estimate], digits: int = 1) -> Panel:
    """Means over seeds with their standard deviation."""
    spreads = {c: f"\n± {e.spread:.{digits}f}" if sum(map(len, e.groups)) > 1 else "" for c, e in estimates.items()}
    return {cell: (e.value, f"{e.value:.{digits}f}{spreads[cell]}") for cell, e in estimates.items()}


def _corruption(family: Family) -> Panel:
    """In percent, means over seeds: as measured, and below it as the appendix has it."""
    found: Panel = {}
    for cell in family.estimates(family.grid, HeldOut.CORRUPTION):
        estimates = (family.estimate(cell, f"corruption {n}") for n in ("mean", "std", "predicted", "predicted_std"))
        words = "{:.1f} ± {:.1f}\n({:.1f} ± {:.1f})".format(*(100 * e.value for e in estimates if e))
        found[cell] = ((100 * cell.hidden) ** 0.5, words)
    return found


@styled
def _heat_maps(family: Family, panels: Mapping[str, Panel]) -> Plot:
    """Rows p, columns r. Grey and blank: the share of corrupted semantics vanishes; a dash: not run."""
    panels = {name: cells for name, cells in panels.items() if cells}
    ratios, repeats = sorted({cell.p for cell in family.full_grid}), sorted({cell.r for cell in family.full_grid})
    across = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    down = -(-len(panels) // across)
    longest = max(len(line) for cells in panels.values() for _, words in cells.values() for line in words.split("\n"))
    width, height = 3.6 + 0.16 * max(0, longest - 8), 0.72 * len(ratios) + 0.95
    plot = Plot(figsize=(width * across, height * down), layout="constrained")
    axes = plot.subplots(down, across, squeeze=False).ravel()
    for axis, (name, cells) in zip(axes, panels.items(), strict=False):
        low, high = (function(value for value, _ in cells.values()) for function in (min, max))
        for (y, p), (x, r) in product(enumerate(ratios), enumerate(repeats)):
            cell, ink = Setting(MLM, 1, p, r), INK
            text, colour = "–" if cell in family.full_grid else "", matplotlib.colors.to_rgba("#9aa3ad55")
            if cell in cells:
                value, text = cells[cell]
                share = 0.5 if high == low else (value - low) / (high - low)
                colour = matplotlib.colormaps["YlGnBu"](0.08 + 0.75 * share)
                ink = "#ffffff" if share > 0.62 else "#101418"
            axis.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#ffffff", linewidth=1.5))
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5, linespacing=1.25)
        axis.set(xlim=(0, len(repeats)), ylim=(len(ratios), 0), title=name)
        axis.set(xlabel="r, repetitions", ylabel="p, mask ratio")
        axis.set_xticks([i + 0.5 for i in range(len(repeats))], [str(r) for r in repeats])
        axis.set_yticks([i + 0.5 for i in range(len(ratios))], [percent(p) for p in ratios])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.remove()
    return plot


@styled
def _entropy_curve(entropy: Mapping[Setting, Estimate]) -> Plot:
    """Entropy against the share of corrupted semantics, one line per mask ratio."""
    plot = Plot(figsize=(5.4, 3.3), layout="constrained")
    axis = plot.subplots()
    for p, colour in zip(sorted({cell.p for cell in entropy}), COLOURS, strict=False):
        cells = sorted((cell for cell in entropy if cell.p == p), key=lambda cell: -cell.r)
        x, y = [100 * cell.hidden for cell in cells], [entropy[cell].value for cell in cells]
        errors = [entropy[cell].spread or 0.0 for cell in cells]
        axis.errorbar(x, y, errors, label=percent(p), color=colour, marker="o", ms=4.5, capsize=3)
    axis.set(xlabel="pʳ, corrupted semantics, %", ylabel="entropy, bits", xscale="log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter("")
    axis.grid(alpha=0.25)
    axis.legend(title="mask ratio p", fontsize=8.5)
    return plot


@styled
def entropy_bars(family: Family) -> list[Figure]:
    """Groups of bars by mask ratio: filled the marginal entropy, hatched that of each state."""
    marginal, own = (family.estimates(family.compared(), score) for score in (HeldOut.ENTROPY, HeldOut.STATE_ENTROPY))
    ratios, counts = sorted({cell.p for cell in marginal}), sorted({cell.k for cell in marginal})
    found = {
        (k, score): {cell: estimate for cell, estimate in estimates.items() if cell.k == k}
        for k, (score, estimates) in product(counts, ((HeldOut.ENTROPY, marginal), (HeldOut.STATE_ENTROPY, own)))
    }
    found = {key: estimates for key, estimates in found.items() if estimates}
    width = 0.84 / len(found)
    plot = Plot(figsize=(max(4.6, 3.0 + 0.42 * len(found) * len(ratios)), 3.3), layout="constrained")
    axis = plot.subplots()
    for i, ((k, score), estimates) in enumerate(found.items()):
        colour, name = COLOURS[counts.index(k) % len(COLOURS)], "MLM" if k == 1 else f"ExLM, k = {k}"
        style: dict[str, Any] = {"label": name, "color": colour}
        if score == HeldOut.STATE_ENTROPY:
            style = {"label": f"{name}, per state", "color": "none", "hatch": "////"}
        style |= {"edgecolor": colour, "ecolor": INK, "capsize": 2, "error_kw": {"elinewidth": 1}}
        x = [ratios.index(cell.p) + (i - (len(found) - 1) / 2) * width for cell in estimates]
        errors = [e.spread or 0.0 for e in estimates.values()]
        axis.bar(x, [e.value for e in estimates.values()], 0.92 * width, yerr=errors, **style)
    axis.set_xticks(range(len(ratios)), [f"p = {percent(p)}" for p in ratios])
    axis.set(xlim=(-0.5, len(ratios) - 0.5), ylabel="entropy, bits")
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return [_figure("entropy", family, plot)]


def sweep_curves(family: Family) -> list[Figure]:
    names = {cell: cell.label for cell in family.compared()}
    return _training_curves("sweep-curves", family, names, list(CURVES)[1:])


@styled
def _training_curves(name: str, family: Family, names: Mapping[Setting, str], titles: Sequence[str]) -> list[Figure]:
    """Logs against updates: a row of panels per mask ratio with several cells; nothing if there are no logs of them.

    `names` are those of the lines. A number that no log has takes no column.
    """
    curves = {cell: _curves(family, cell, titles) for cell in names}
    rows = {p: [cell for cell in names if cell.p == p] for p in sorted({cell.p for cell in names})}
    rows = {p: cells for p, cells in rows.items() if len(cells) > 1 and any(len(curves[cell]) for cell in cells)}
    kept = [t for t in titles if any(t in curves[cell] for cells in rows.values() for cell in cells)]
    if not rows:
        return []
    plot = Plot(figsize=(3.7 * len(kept), 2.2 * len(rows) + 0.3), layout="constrained")
    grid = plot.subplots(len(rows), len(kept), squeeze=False, sharex=True)
    for (p, column), axis in zip(product(rows, kept), grid.flat, strict=True):
        for cell, colour in zip(rows[p], COLOURS, strict=False):
            if column in curves[cell]:  # else the cell keeps its colour for the other panels
                curve = curves[cell][column].dropna()
                axis.plot(curve[:: max(1, -(-len(curve) // POINTS))], label=names[cell], color=colour, linewidth=1.4)
        logarithmic = column.endswith("perplexity")
        axis.set(title=f"{column}, p = {percent(p)}", yscale="log" if logarithmic else "linear")
        low, high = axis.get_ylim()
        if not logarithmic and high - low < 0.01:  # a share of all but 1: its last digits are no news
            axis.set_ylim(low - 0.05, high + 0.05)
        axis.grid(alpha=0.25)
    for axis in grid[:, 0]:
        axis.legend(fontsize=8.5)
    for axis in grid[-1]:
        axis.set_xlabel("updates")
    return [_figure(name, family, plot)]


def _curves(family: Family, cell: Setting, titles: Sequence[str]) -> pd.DataFrame:
    """Those numbers of CURVES that the logs of a cell have, by update, averaged over seeds."""
    found = [
        {"step": record["step"], column: record[key]}
        for run in family.cells[cell]
        for record in read_log(run.path / "log.jsonl")
        for column, (kind, key) in ((column, CURVES[column]) for column in titles)
        if record.get("kind") == kind and isinstance(record.get(key), int | float)
    ]
    return pd.DataFrame(found, columns=["step", *titles]).groupby("step").mean().dropna(axis=1, how="all")
