"""The figures of the report: heat maps over mask ratio and repetitions, training curves, entropy."""

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plot
from matplotlib.patches import Rectangle

from exlm.paper.cells import ACCURACY, CORRUPTION, ENTROPY, STATE_ENTROPY, Estimate, Setting
from exlm.paper.families import Family
from exlm.paper.values import TEXTS, VANISHING, percent
from exlm.storage import replacing
from exlm.train.tracking import read_log

INK = "#20242a"  # becomes the page's text colour in the HTML
LARGEST = 190_000  # bytes of a PNG
POINTS = 100  # of a curve, so that the files stay small
COLOURS = ("#3b7dd8", "#e07b39", "#2fa36b", "#a05fc4", "#c7a72c", "#d1495b")
STYLE: dict[Any, Any] = {
    "font.size": 9.5, "font.family": "sans-serif", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 10.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "font.sans-serif": ["DejaVu Sans"], "hatch.linewidth": 0.6,
}  # fmt: skip
styled = matplotlib.rc_context(STYLE)  # as a decorator, it holds within the function alone
Panel = tuple[str, dict[Setting, tuple[float, str]]]  # a title; the number that chooses a cell's colour, and its words
CURVES = {  # titles of training curves: kind and key of the records in the log
    "training loss": ("train", "loss"),
    "held-out accuracy": ("eval", "accuracy"),
    "held-out perplexity": ("eval", "perplexity"),
    "joint perplexity": ("eval", "joint_perplexity"),
    "own mask": ("eval", "own_states"),
}


@dataclass(frozen=True)
class Figure:
    """A plot of ours, or an SVG drawing made by others, with the name of its files."""

    name: str
    caption: str
    plot: Plot | bytes

    @property
    def kind(self) -> str:
        """The file type that a Markdown page shows."""
        return "svg" if isinstance(self.plot, bytes) else "png"

    @styled
    def write(self, directory: Path) -> None:
        """NAME.svg and, of a plot, NAME.png, on white."""
        with replacing(directory / f"{self.name}.svg") as partial:
            partial.write_bytes(self.plot if isinstance(self.plot, bytes) else self._svg(self.plot).encode())
        if not isinstance(self.plot, bytes):
            with replacing(directory / f"{self.name}.png") as partial:
                for dpi in (130, 110, 90, 70):  # as fine as a small file allows
                    self.plot.savefig(partial, format="png", dpi=dpi, metadata={"Software": None})
                    if partial.stat().st_size < LARGEST:
                        break

    @styled
    def html(self) -> str:
        """For a page: a plot with the page's text colour and ids of its own, a drawing as data with its own styles."""
        if isinstance(self.plot, bytes):
            data = base64.b64encode(self.plot).decode()
            return f'<img alt="{html.escape(self.caption)}" src="data:image/svg+xml;base64,{data}">'
        text = self._svg(self.plot, transparent=True)
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text = re.sub(r'id="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'(url\(#|href="#)', rf"\g<1>{self.name}-", text)
        return text.replace(INK, "currentColor").strip()

    def _svg(self, plot: Plot, transparent: bool = False) -> str:
        stream = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            plot.savefig(stream, format="svg", transparent=transparent, metadata=nothing)
        return stream.getvalue()


def _figure(name: str, family: Family, plot: Plot) -> Figure:
    return Figure(name, TEXTS["figures"][name].format(label=family.label), plot)


def repeated_figures(family: Family) -> list[Figure]:
    """Heat maps of scores, of corrupted semantics and of entropy; entropy against corruption; training curves."""
    found = [(score.title, family.estimates(family.grid, score)) for score in family.scores]
    found.append(("Held-out accuracy, %", family.estimates(family.grid, ACCURACY)))
    panels = [_panel(title, estimates) for title, estimates in found if estimates]
    figures = [_figure("repeated-mlm", family, _heat_maps(family, panels))]
    shares, entropy = (family.estimates(family.grid, score) for score in (CORRUPTION, ENTROPY))
    panels = [_corruption_panel(family, list(shares))] if shares else []
    panels += [_panel("Entropy, bits", entropy, digits=2)] if entropy else []
    figures += [_figure("corruption", family, _heat_maps(family, panels))] if panels else []
    if len(entropy) > 1:
        figures.append(_figure("repeated-entropy", family, _entropy_curve(family, entropy)))
    names = {cell: f"r = {cell.r}" for cell in family.grid}
    return figures + _training_curves("repeated-curves", family, names, list(CURVES)[:3])


def _panel(title: str, estimates: Mapping[Setting, Estimate], digits: int = 1) -> Panel:
    spreads = {cell: "" if e.spread is None else f"\n± {e.spread:.{digits}f}" for cell, e in estimates.items()}
    return title, {cell: (e.value, f"{e.value:.{digits}f}{spreads[cell]}") for cell, e in estimates.items()}


def _corruption_panel(family: Family, cells: Sequence[Setting]) -> Panel:
    """In percent, means over seeds."""
    found = {}
    for cell in cells:
        seeds = family.measured(cell, "corruption")
        means = (100 * fmean(seed[key] for seed in seeds) for key in ("mean", "std", "predicted", "predicted_std"))
        found[cell] = ((100 * cell.hidden) ** 0.5, "{:.1f} ± {:.1f}\n({:.1f} ± {:.1f})".format(*means))
    return "Corrupted semantics, %", found


@styled
def _heat_maps(family: Family, panels: Sequence[Panel]) -> Plot:
    """Rows p, columns r. Grey and blank: the share of corrupted semantics vanishes; a dash: not run."""
    ratios, repeats = family.axes
    across = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    down = -(-len(panels) // across)
    longest = max(len(line) for _, cells in panels for _, words in cells.values() for line in words.split("\n"))
    width, height = 3.6 + 0.16 * max(0, longest - 8), 0.72 * len(ratios) + 0.95
    plot = Plot(figsize=(width * across, height * down), layout="constrained")
    axes = plot.subplots(down, across, squeeze=False).ravel()
    for axis, (title, cells) in zip(axes, panels, strict=False):
        _draw_cells(axis, {(cell.p, cell.r): found for cell, found in cells.items()}, ratios, repeats)
        axis.set(xlim=(0, len(repeats)), ylim=(len(ratios), 0), title=title)
        axis.set(xlabel="r, repetitions", ylabel="p, mask ratio")
        axis.set_xticks(np.arange(len(repeats)) + 0.5, [str(r) for r in repeats])
        axis.set_yticks(np.arange(len(ratios)) + 0.5, [percent(p) for p in ratios])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.remove()
    return plot


def _draw_cells(
    axis: Axes, cells: Mapping[tuple[float, int], tuple[float, str]], ratios: Sequence[float], repeats: Sequence[int]
) -> None:
    values = [value for value, _ in cells.values()]
    low, high = min(values), max(values)
    for y, p in enumerate(ratios):
        for x, r in enumerate(repeats):
            text, ink = "" if p**r < VANISHING else "–", INK
            colour: Any = "#9aa3ad55"
            if (p, r) in cells:
                value, text = cells[p, r]
                share = 0.5 if high == low else (value - low) / (high - low)
                colour = matplotlib.colormaps["YlGnBu"](0.08 + 0.75 * share)
                ink = "#ffffff" if share > 0.62 else "#101418"
            axis.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#ffffff", linewidth=1.5))
            axis.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8.5, linespacing=1.25)


@styled
def _entropy_curve(family: Family, entropy: Mapping[Setting, Estimate]) -> Plot:
    """Entropy against the share of corrupted semantics, one line per mask ratio."""
    plot = Plot(figsize=(5.4, 3.3), layout="constrained")
    axis = plot.subplots()
    for p, colour in zip(sorted({cell.p for cell in entropy}), COLOURS, strict=False):
        cells = sorted((cell for cell in entropy if cell.p == p), key=lambda cell: -cell.r)
        x, y = [100 * cell.hidden for cell in cells], [entropy[cell].value for cell in cells]
        errors = [family.entropy_error(cell, ENTROPY) for cell in cells]
        axis.errorbar(x, y, errors, label=percent(p), color=colour, marker="o", ms=4.5, capsize=3)
    axis.set(xlabel="pʳ, corrupted semantics, %", ylabel="entropy, bits", xscale="log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter("")
    axis.grid(alpha=0.25)
    axis.legend(title="mask ratio p", fontsize=8.5)
    return plot


@styled
def entropy_bars(family: Family, cells: Sequence[Setting]) -> Figure:
    """Groups of bars by mask ratio: filled the marginal entropy, hatched that of each state."""
    ratios, counts = sorted({cell.p for cell in cells}), sorted({cell.k for cell in cells})
    series = [(k, score) for k in counts for score in (ENTROPY, STATE_ENTROPY)]
    kept = [(k, score, family.estimates((c for c in cells if c.k == k), score)) for k, score in series]
    kept = [(k, score, found) for k, score, found in kept if found and (k > 1 or score == ENTROPY)]
    width = 0.84 / len(kept)
    plot = Plot(figsize=(max(4.6, 3.0 + 0.42 * len(kept) * len(ratios)), 3.3), layout="constrained")
    axis = plot.subplots()
    for i, (k, score, found) in enumerate(kept):
        colour, name = COLOURS[counts.index(k) % len(COLOURS)], "MLM" if k == 1 else f"ExLM, k = {k}"
        style: dict[str, Any] = {"label": name, "color": colour}
        if score == STATE_ENTROPY:
            style = {"label": f"{name}, per state", "color": "none", "hatch": "////"}
        x = [ratios.index(cell.p) + (i - (len(kept) - 1) / 2) * width for cell in found]
        style |= {"edgecolor": colour, "ecolor": INK, "capsize": 2, "error_kw": {"elinewidth": 1}}
        errors = [family.entropy_error(cell, score) for cell in found]
        axis.bar(x, [e.value for e in found.values()], 0.92 * width, yerr=errors, **style)
    axis.set_xticks(range(len(ratios)), [f"p = {percent(p)}" for p in ratios])
    axis.set(xlim=(-0.5, len(ratios) - 0.5), ylabel="entropy, bits")
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _figure("entropy", family, plot)


def sweep_curves(family: Family) -> list[Figure]:
    names = {cell: cell.label for cell in family.compared()}
    return _training_curves("sweep-curves", family, names, list(CURVES)[1:])


@styled
def _training_curves(name: str, family: Family, names: Mapping[Setting, str], titles: Sequence[str]) -> list[Figure]:
    """Logs against updates: a row of panels per mask ratio with several cells; nothing if there are no logs of them.

    `names` are those of the lines. A number that no log has takes no column.
    """
    curves = {(cell, title): _curve(family, cell, *CURVES[title]) for cell in names for title in titles}
    rows = {p: [cell for cell in names if cell.p == p] for p in sorted({cell.p for cell in names})}
    rows = {p: cells for p, cells in rows.items() if len(cells) > 1 and any(len(curves[c, titles[0]]) for c in cells)}
    kept = [title for title in titles if any(len(curves[c, title]) for cells in rows.values() for c in cells)]
    if not rows:
        return []
    plot = Plot(figsize=(3.7 * len(kept), 2.2 * len(rows) + 0.3), layout="constrained")
    grid = plot.subplots(len(rows), len(kept), squeeze=False, sharex=True)
    for (p, title), axis in zip(product(rows, kept), grid.flat, strict=True):
        for cell, colour in zip(rows[p], COLOURS, strict=False):
            curve = curves[cell, title]
            if len(curve):  # else the cell keeps its colour for the other panels
                axis.plot(curve[:: max(1, -(-len(curve) // POINTS))], label=names[cell], color=colour, linewidth=1.4)
        logarithmic = title.endswith("perplexity")
        axis.set(title=f"{title}, p = {percent(p)}", yscale="log" if logarithmic else "linear")
        low, high = axis.get_ylim()
        if not logarithmic and high - low < 0.01:  # a share of all but 1: its last digits are no news
            axis.set_ylim(low - 0.05, high + 0.05)
        axis.grid(alpha=0.25)
    for axis in grid[:, 0]:
        axis.legend(fontsize=8.5)
    for axis in grid[-1]:
        axis.set_xlabel("updates")
    return [_figure(name, family, plot)]


def _curve(family: Family, cell: Setting, kind: str, key: str) -> pd.Series:
    """A number of the logs by update, averaged over seeds; empty where no log has it."""
    records = [record for run in family.cells[cell] for record in read_log(run.path / "log.jsonl")]
    found = [(r["step"], r[key]) for r in records if r.get("kind") == kind and isinstance(r.get(key), int | float)]
    return pd.DataFrame(found, columns=["step", key]).groupby("step")[key].mean()
