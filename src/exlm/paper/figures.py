"""The figures of the report: heat maps by mask ratio and repetitions, training curves, and entropy
plots."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exlm.paper.estimates import Number
from exlm.paper.families import Family
from exlm.paper.page import Drawing
from exlm.paper.records import PretrainedRun
from exlm.paper.values import (
    ACCURACY,
    CORRUPTION,
    ENTROPY,
    MLM,
    PLUS,
    STATE_ENTROPY,
    TEXTS,
    VALUES,
    Cell,
    percent,
    title,
)
from exlm.storage.files import read_log

POINTS = 100  # drawn of a curve, about; few, so that the files stay small
COLOURS = ("#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b")
CURVES: dict[str, str] = VALUES["curves"]
# As a decorator, it changes the style inside that function only.
styled = matplotlib.rc_context(VALUES["style"])


def _figure(name: str, family: Family, plot: Figure) -> Drawing:
    """Saves a plot as SVG and PNG. Under the style, the same plot always gives the same bytes."""
    svg = io.BytesIO()
    png = io.BytesIO()
    plot.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    plot.savefig(png, format="png", metadata={"Software": None}, dpi=130)
    caption = TEXTS["figures"][name].format(label=family.label)
    return Drawing(name, caption, svg.getvalue(), png.getvalue())


@styled
def repeated_figures(family: Family) -> list[Drawing]:
    """The figures of Repeated MLM: heat maps by p and r, and training curves."""
    grid = family.grid()
    panels = {}
    for score in (*family.tasks, ACCURACY, CORRUPTION, ENTROPY):
        if numbers := family.results.numbers(grid, score):
            panels[title(score)] = numbers
    labels = {cell: f"r = {cell.r}" for cell in grid if cell in family.cells}
    curves = _training_curves("repeated-curves", family, labels, list(CURVES)[:3])
    if not panels:
        return curves
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    height = 0.72 * len({cell.p for cell in grid}) + 0.95
    plot = Figure(figsize=(4.0 * across, height * down))
    for number, (heading, numbers) in enumerate(panels.items(), 1):
        axis = plot.add_subplot(down, across, number)
        axis.set_title(heading)
        _heat_map(axis, grid, numbers)
    return [_figure("repeated-mlm", family, plot), *curves]


def _heat_map(axis: Axes, grid: Sequence[Cell], numbers: Mapping[Cell, Number]) -> None:
    """Draws one heat map. A grey square with a dash was not run. An empty grey square is left out,
    since its pʳ is almost 0."""
    ratios = sorted({cell.p for cell in grid})
    repeats = sorted({cell.r for cell in grid})
    values = np.full((len(ratios), len(repeats)), np.nan)
    for cell, number in numbers.items():
        values[ratios.index(cell.p), repeats.index(cell.r)] = number.value
    low = float(np.nanmin(values))
    span = float(np.nanmax(values)) - low or 1.0
    axis.pcolormesh(
        values,
        cmap="YlGnBu",
        vmin=low - 0.1 * span,
        vmax=low + 1.2 * span,
        edgecolor="white",
        linewidth=1.5,
    )
    axis.set_facecolor("#e3e6e9")
    for cell in grid:
        x = repeats.index(cell.r) + 0.5
        y = ratios.index(cell.p) + 0.5
        text = str(numbers.get(cell, "–")).replace(" ± ", "\n± ")
        is_dark = cell in numbers and numbers[cell].value > low + 0.62 * span
        ink = "white" if is_dark else "#101418"
        axis.text(x, y, text, ha="center", va="center", color=ink, fontsize=8.5)
    axis.invert_yaxis()
    axis.set(xlabel="r, repetitions", ylabel="p, mask ratio")
    axis.set_xticks(np.arange(len(repeats)) + 0.5, [str(r) for r in repeats])
    axis.set_yticks(np.arange(len(ratios)) + 0.5, [percent(p) for p in ratios])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


@styled
def entropy_bars(family: Family) -> list[Drawing]:
    """A group of bars for each mask ratio. Filled bars are the marginal entropy, hatched bars the
    entropy per state."""
    cells = family.sweep()
    ratios = sorted({cell.p for cell in cells})
    states = sorted({cell.k for cell in cells})
    series = []
    for k, score in product(states, (ENTROPY, STATE_ENTROPY)):
        numbers = family.results.numbers([cell for cell in cells if cell.k == k], score)
        if numbers:
            series.append((k, score, numbers))
    width = 0.84 / len(series)
    plot = Figure(figsize=(max(4.6, 3.0 + 0.42 * len(series) * len(ratios)), 3.3))
    axis = plot.subplots()
    for i, (k, score, numbers) in enumerate(series):
        colour = COLOURS[states.index(k) % len(COLOURS)]
        is_per_state = score == STATE_ENTROPY
        name = "MLM" if k == 1 else f"ExLM, k = {k}"
        shift = (i - (len(series) - 1) / 2) * width
        axis.bar(
            x=[ratios.index(cell.p) + shift for cell in numbers],
            height=[number.value for number in numbers.values()],
            width=0.92 * width,
            yerr=[number.spread or 0.0 for number in numbers.values()],
            label=f"{name}, per state" if is_per_state else name,
            color="none" if is_per_state else colour,
            hatch="////" if is_per_state else None,
            edgecolor=colour,
            capsize=2,
        )
    axis.set_xticks(range(len(ratios)), [f"p = {percent(p)}" for p in ratios])
    axis.set(xlim=(-0.5, len(ratios) - 0.5), ylabel="entropy, bits")
    axis.grid(axis="y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return [_figure("entropy", family, plot)]


@styled
def sweep_curves(family: Family) -> list[Drawing]:
    """Training curves of ExLM and the vanilla MLM at the same mask ratios."""
    labels = {cell: cell.label for cell in family.sweep()}
    return _training_curves("sweep-curves", family, labels, list(CURVES)[1:])


@styled
def cost_curves(family: Family) -> list[Drawing]:
    """Joint perplexity over the hours of training, of ExLM, the MLM and MLM++ at the mask ratios
    that have MLM++."""
    ratios = {cell.p for cell in family.select(PLUS)}
    cells = [cell for cell in family.select("ExLM", MLM, PLUS) if cell.p in ratios]
    labels = {cell: cell.label for cell in cells}
    return _training_curves("cost-curves", family, labels, ["joint perplexity"], over_hours=True)


def _training_curves(
    name: str,
    family: Family,
    labels: Mapping[Cell, str],
    headings: Sequence[str],
    over_hours: bool = False,
) -> list[Drawing]:
    """Plots the logged numbers over updates or hours: a row of panels for each mask ratio of
    several cells with logs. `labels` are those of the lines. A number without any log gets no
    column, without columns there is no figure."""
    logs = {cell: _mean_log(family.cells[cell], over_hours) for cell in labels}
    logs = {cell: log for cell, log in logs.items() if not log.empty}
    cells_at = Counter(cell.p for cell in logs)
    ratios = sorted(p for p in cells_at if cells_at[p] > 1)
    logged = {heading for cell in logs if cell.p in ratios for heading in logs[cell]}
    columns = [heading for heading in headings if heading in logged]
    if not columns:
        return []
    plot = Figure(figsize=(3.7 * len(columns), 2.2 * len(ratios) + 0.3))
    axes = plot.subplots(len(ratios), len(columns), squeeze=False, sharex=True)
    for axis, (p, heading) in zip(axes.flat, product(ratios, columns), strict=True):
        cells = [cell for cell in logs if cell.p == p]
        for cell, colour in zip(cells, COLOURS, strict=False):
            if heading in logs[cell]:
                line = logs[cell][heading].dropna()
                line = line[:: max(1, len(line) // POINTS)]
                axis.plot(line, label=labels[cell], color=colour, linewidth=1.4)
        axis.set_title(f"{heading}, p = {percent(p)}")
        axis.set_yscale("log" if heading.endswith("perplexity") else "linear")
        # 2.5, and neither 2.5 x 10^0 nor a distance from 0.9999
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        if heading == "own mask":
            axis.set_ylim(0, 1.05)
        axis.grid()
    for axis in axes[:, 0]:
        axis.legend()
    for axis in axes[-1]:
        axis.set_xlabel("hours of training" if over_hours else "updates")
    return [_figure(name, family, plot)]


def _mean_log(members: Sequence[PretrainedRun], over_hours: bool) -> pd.DataFrame:
    """The logs of a cell, as means over its seeds: a row per update or hour, a column per curve.
    All updates of a run are taken as equally long."""
    records = pd.DataFrame([row for run in members for row in read_log(run.path / "log.jsonl")])
    if records.empty:
        return records
    # A loss is logged under the name of its objective, in earlier runs as `loss`.
    losses = records.filter(regex="loss$").mean(axis=1)
    records["loss"] = losses.where(records["kind"] == "train")
    means = records.groupby("step").mean(numeric_only=True)
    log = means.reindex(columns=list(CURVES.values())).dropna(axis=1, how="all")
    log = log.rename(columns={key: heading for heading, key in CURVES.items()})
    if over_hours:
        log.index *= fmean(run.hours / run.steps for run in members)
    return log
