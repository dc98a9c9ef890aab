"""The figures: heat maps over mask ratio and repetitions, training curves, entropy, cost."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.patches import Rectangle

from exlm.paper.report.document import Figure
from exlm.storage import replacing

INK = "#20242a"  # becomes the page's text colour in the HTML
LARGEST = 190_000  # bytes of a PNG
POINTS = 100  # of a curve, so that the files stay small
COLOURS = ("#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b")
STYLE: dict[Any, Any] = {
    "font.size": 9.5, "font.family": "sans-serif", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 10.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "font.sans-serif": ["DejaVu Sans"],
}  # fmt: skip
Place = tuple[float, int]  # p, r


@dataclass(frozen=True)
class HeatMap:
    """One panel: values that choose the colours, and what is written in each cell."""

    title: str
    values: Mapping[Place, float]
    words: Mapping[Place, str]


@dataclass(frozen=True)
class Line:
    """Points with a name, and how far each may be off."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    hatched: bool = False


Panel = tuple[str, bool, list[Line]]  # title, logarithmic, lines


def heat_maps(panels: Sequence[HeatMap], ratios: Sequence[float], repeats: Sequence[int], vanishing: float) -> Plot:
    """Rows p, columns r. Grey and blank: the share of corrupted semantics vanishes; a dash: not run."""
    across = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    down = -(-len(panels) // across)
    longest = max(len(line) for panel in panels for text in panel.words.values() for line in text.split("\n"))
    width, height = 3.6 + 0.16 * max(0, longest - 8), 0.72 * len(ratios) + 0.95
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(width * across, height * down), layout="constrained")
        axes = plot.subplots(down, across, squeeze=False).ravel()
        for axis, panel in zip(axes, panels, strict=False):
            _heat_map(axis, panel, ratios, repeats, vanishing)
        for axis in axes[len(panels) :]:
            axis.remove()
    return plot


def _heat_map(axis: Axes, panel: HeatMap, ratios: Sequence[float], repeats: Sequence[int], vanishing: float) -> None:
    colours = matplotlib.colormaps["YlGnBu"]
    low, high = min(panel.values.values()), max(panel.values.values())
    for y, p in enumerate(ratios):
        for x, r in enumerate(repeats):
            value = panel.values.get((p, r))
            share = 0.5 if value is None or high == low else (value - low) / (high - low)
            colour = "#9aa3ad55" if value is None else colours(0.08 + 0.75 * share)
            axis.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#ffffff", linewidth=1.5))
            blank = "" if p**r < vanishing else "–"
            ink = INK if value is None else "#ffffff" if share > 0.62 else "#101418"
            text = blank if value is None else panel.words[p, r]
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5, linespacing=1.25)
    axis.set(xlim=(0, len(repeats)), ylim=(len(ratios), 0), title=panel.title, xlabel="r, repetitions")
    axis.set_xticks(np.arange(len(repeats)) + 0.5, [str(r) for r in repeats])
    axis.set_yticks(np.arange(len(ratios)) + 0.5, [f"{100 * p:.4g}%" for p in ratios])
    axis.set_ylabel("p, mask ratio")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def curves(rows: Sequence[Sequence[Panel]]) -> Plot:
    """Rows of panels against updates."""
    across = max(map(len, rows))
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(3.7 * across, 2.2 * len(rows) + 0.3), layout="constrained")
        grid = plot.subplots(len(rows), across, squeeze=False, sharex=True)
        for axes, panels in zip(grid, rows, strict=True):
            for axis, (title, logarithmic, lines) in zip(axes, panels, strict=True):
                for line, colour in (pair for pair in zip(lines, COLOURS, strict=False) if pair[0].x):
                    step = max(1, -(-len(line.x) // POINTS))
                    axis.plot(line.x[::step], line.y[::step], label=line.name, color=colour, linewidth=1.4)
                axis.set(title=title, yscale="log" if logarithmic else "linear")
                low, high = axis.get_ylim()
                if not logarithmic and high - low < 0.01:  # a share of all but 1: its last digits are no news
                    axis.set_ylim(low - 0.05, high + 0.05)
                axis.grid(alpha=0.25)
            axes[0].legend(fontsize=8.5)
        for axis in grid[-1]:
            axis.set_xlabel("updates")
    return plot


def entropy_curve(lines: Sequence[Line]) -> Plot:
    """Entropy against the share of corrupted semantics, one line per mask ratio."""
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(5.4, 3.3), layout="constrained")
        axis = plot.subplots()
        for line, colour in zip(lines, COLOURS, strict=False):
            axis.errorbar(line.x, line.y, line.error, label=line.name, color=colour, marker="o", ms=4.5, capsize=3)
        axis.set(xlabel="pʳ, corrupted semantics, %", ylabel="entropy, bits", xscale="log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter("")
        axis.grid(alpha=0.25)
        axis.legend(title="mask ratio p", fontsize=8.5)
    return plot


def bars(groups: Sequence[str], series: Sequence[Line], ylabel: str) -> Plot:
    """Bars side by side; a series' x says the group of each bar. A hatched one has the colour of the one before."""
    with matplotlib.rc_context(STYLE | {"hatch.linewidth": 0.6}):
        width = 0.84 / len(series)
        plot = Plot(figsize=(max(4.6, 1.1 + 0.42 * len(series) * len(groups) + 1.9), 3.3), layout="constrained")
        axis = plot.subplots()
        for i, line in enumerate(series):
            colour = COLOURS[sum(not other.hatched for other in series[: i + 1]) - 1]
            place = np.asarray(line.x, dtype=float) + (i - (len(series) - 1) / 2) * width
            style: dict[str, Any] = dict(color="none", hatch="////") if line.hatched else dict(color=colour)
            style |= dict(edgecolor=colour, yerr=line.error, ecolor=INK, capsize=2, error_kw={"elinewidth": 1})
            axis.bar(place, line.y, 0.92 * width, label=line.name, **style)
        axis.set_xticks(range(len(groups)), groups)
        axis.set_xlim(-0.5, len(groups) - 0.5)
        axis.set_ylabel(ylabel)
        axis.grid(axis="y", alpha=0.25)
        axis.set_axisbelow(True)
        axis.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return plot


def _svg(figure: Figure, transparent: bool) -> str:
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": figure.name}):
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.plot.savefig(stream, format="svg", transparent=transparent, metadata=nothing)
    return stream.getvalue()


def inline_svg(figure: Figure) -> str:
    """For a page: its text colour, no background, names that no other figure has."""
    text = _svg(figure, transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'id="([^"]+)"', rf'id="{figure.name}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{figure.name}-", text)
    return text.replace(INK, "currentColor").strip()


def write_figure(figure: Figure, folder: Path) -> None:
    """NAME.svg and NAME.png, on white."""
    with replacing(folder / f"{figure.name}.svg") as partial:
        partial.write_text(_svg(figure, transparent=False), encoding="utf-8")
    with matplotlib.rc_context(STYLE), replacing(folder / f"{figure.name}.png") as partial:
        for dpi in (130, 110, 90, 70):  # as fine as a small file allows
            figure.plot.savefig(partial, format="png", dpi=dpi, metadata={"Software": None})
            if partial.stat().st_size < LARGEST:
                break
