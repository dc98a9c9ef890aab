"""The figures of the report: heat maps by mask ratio and repetitions, training curves, and entropy
plots."""

import io
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure as Plot
from matplotlib.patches import Rectangle

from exlm.paper.families import Family
from exlm.paper.page import Figure
from exlm.paper.values import CURVES, MLM, PLUS, STYLE, TEXTS, HeldOut, Setting, percent, title
from exlm.train.tracking import read_log

POINTS = 100  # drawn points of a curve, about; few, so that the files stay small
COLOURS = ("#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b")
# as a decorator, it changes the style inside that function only
styled = matplotlib.rc_context(STYLE)


def _figure(name: str, family: Family, plot: Plot) -> Figure:
    """Saves a plot as SVG and PNG. Under STYLE, the same plot always gives the same bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    plot.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    plot.savefig(png, format="png", metadata={"Software": None}, dpi=130)
    return Figure(
        name, TEXTS["figures"][name].format(label=family.label), svg.getvalue(), png.getvalue()
    )


@styled
def repeated_figures(family: Family) -> list[Figure]:
    """The figures of Repeated MLM: heat maps by p and r, and training curves."""
    names = {cell: f"r = {cell.r}" for cell in family.grid if cell in family.cells}
    curves = _training_curves("repeated-curves", family, names, list(CURVES)[:3])
    return [_figure("repeated-mlm", family, _heat_maps(family)), *curves]


def _heat_maps(family: Family) -> Plot:
    """Heat maps with rows p and columns r. Grey with a dash: not run. Empty grey: left out, since
    pʳ is almost 0."""
    scores = (*family.tasks, HeldOut.ACCURACY, HeldOut.CORRUPTION, HeldOut.ENTROPY)
    panels = [(score, found) for score in scores if (found := family.estimates(family.grid, score))]
    ratios, repeats = (
        sorted({cell.p for cell in family.grid}),
        sorted({cell.r for cell in family.grid}),
    )
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    plot = Plot(figsize=(4.0 * across, (0.72 * len(ratios) + 0.95) * down))
    axes = plot.subplots(down, across, squeeze=False).ravel()
    for axis, (score, found) in zip(axes, panels, strict=False):
        values = [estimate.value for estimate in found.values()]
        low, width = min(values), max(values) - min(values) or 1.0
        for (y, p), (x, r) in product(enumerate(ratios), enumerate(repeats)):
            cell = Setting(MLM, 1, p, r)
            share = (found[cell].value - low) / width if cell in found else 0.0
            colour = (
                matplotlib.colormaps["YlGnBu"](0.08 + 0.75 * share) if cell in found else "#e3e6e9"
            )
            text = (
                str(found[cell]).replace(" ± ", "\n± ")
                if cell in found
                else "–"
                if cell in family.grid
                else ""
            )
            axis.add_patch(
                Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#ffffff", linewidth=1.5)
            )
            ink = "#ffffff" if share > 0.62 else "#101418"
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5)
        axis.set(xlim=(0, len(repeats)), ylim=(len(ratios), 0), title=title(score))
        axis.set(xlabel="r, repetitions", ylabel="p, mask ratio")
        axis.set_xticks([i + 0.5 for i in range(len(repeats))], [str(r) for r in repeats])
        axis.set_yticks([i + 0.5 for i in range(len(ratios))], [percent(p) for p in ratios])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.remove()
    return plot


@styled
def entropy_bars(family: Family) -> list[Figure]:
    """A group of bars for each mask ratio. Filled bars are the marginal entropy, hatched bars the
    entropy per state."""
    cells = family.compared()
    ratios, counts = sorted({cell.p for cell in cells}), sorted({cell.k for cell in cells})
    series = [
        (k, score, estimates)
        for k, score in product(counts, (HeldOut.ENTROPY, HeldOut.STATE_ENTROPY))
        if (estimates := family.estimates([cell for cell in cells if cell.k == k], score))
    ]
    width = 0.84 / len(series)
    plot = Plot(figsize=(max(4.6, 3.0 + 0.42 * len(series) * len(ratios)), 3.3))
    axis = plot.subplots()
    for i, (k, score, estimates) in enumerate(series):
        colour, name = (
            COLOURS[counts.index(k) % len(COLOURS)],
            "MLM" if k == 1 else f"ExLM, k = {k}",
        )
        style: dict[str, Any] = {"label": name, "color": colour}
        if score == HeldOut.STATE_ENTROPY:
            style = {"label": f"{name}, per state", "color": "none", "hatch": "////"}
        x = [ratios.index(cell.p) + (i - (len(series) - 1) / 2) * width for cell in estimates]
        values, errors = zip(*((e.value, e.spread or 0.0) for e in estimates.values()), strict=True)
        axis.bar(x, values, 0.92 * width, yerr=errors, edgecolor=colour, capsize=2, **style)
    axis.set_xticks(range(len(ratios)), [f"p = {percent(p)}" for p in ratios])
    axis.set(xlim=(-0.5, len(ratios) - 0.5), ylabel="entropy, bits")
    axis.grid(axis="y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return [_figure("entropy", family, plot)]


@styled
def sweep_curves(family: Family) -> list[Figure]:
    names = {cell: cell.label for cell in family.compared()}
    return _training_curves("sweep-curves", family, names, list(CURVES)[1:])


@styled
def cost_curves(family: Family) -> list[Figure]:
    """Joint perplexity over the hours of training, of ExLM, the MLM and MLM++ at the mask ratios
    that have MLM++."""
    ratios = {cell.p for cell in family.select(PLUS)}
    names = {cell: cell.label for cell in family.select("ExLM", MLM, PLUS) if cell.p in ratios}
    return _training_curves(
        "cost-curves", family, names, ["joint perplexity"], over="hours of training"
    )


def _training_curves(
    name: str,
    family: Family,
    names: Mapping[Setting, str],
    titles: Sequence[str],
    over: str = "updates",
) -> list[Figure]:
    """Plots the logged numbers over updates or hours: a row of panels for each mask ratio of
    several cells with logs. `names` are the labels of the lines. A number without any log gets no
    column, without columns there is no figure."""
    # of each cell, means over seeds: a row per update, a column per key and kind of record
    curves = {}
    for cell in names:
        if records := [
            record for run in family.cells[cell] for record in read_log(run.path / "log.jsonl")
        ]:
            # A loss is logged under the name of its objective, in earlier runs as `loss`.
            named = [
                {"loss" if key.endswith("_loss") else key: value for key, value in r.items()}
                for r in records
            ]
            means = pd.DataFrame(named).groupby(["step", "kind"]).mean(numeric_only=True)
            curves[cell] = pd.DataFrame(means.unstack()).dropna(axis=1, how="all")
            if over != "updates":  # all updates of a run are taken as equally long
                curves[cell].index *= fmean(
                    run.scores[HeldOut.HOURS] / run.steps for run in family.cells[cell]
                )
    rows = {
        p: [cell for cell in curves if cell.p == p] for p in sorted({cell.p for cell in curves})
    }
    rows = {p: cells for p, cells in rows.items() if len(cells) > 1}
    shown = [cell for cells in rows.values() for cell in cells]
    columns = [title for title in titles if any(CURVES[title] in curves[cell] for cell in shown)]
    if not columns:
        return []
    plot = Plot(figsize=(3.7 * len(columns), 2.2 * len(rows) + 0.3))
    grid = plot.subplots(len(rows), len(columns), squeeze=False, sharex=True)
    for (p, column), axis in zip(product(rows, columns), grid.flat, strict=True):
        for cell, colour in zip(rows[p], COLOURS, strict=False):
            if CURVES[column] in curves[cell]:
                line = curves[cell][CURVES[column]].dropna()
                axis.plot(
                    line[:: max(1, len(line) // POINTS)],
                    label=names[cell],
                    color=colour,
                    linewidth=1.4,
                )
        axis.set(
            title=f"{column}, p = {percent(p)}",
            yscale="log" if column.endswith("perplexity") else "linear",
        )
        axis.grid()
    for axis in grid[:, 0]:
        axis.legend()
    for axis in grid[-1]:
        axis.set_xlabel(over)
    return [_figure(name, family, plot)]
