"""Shows a case of `exlm explore`: as a page, which draws itself (`draw.js`, `events.js`), or as a figure."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from exlm.storage import replacing, write_text

Case = dict[str, Any]

TINTS, END_TINT = ("#BF9000", "#C55A11"), "#7F7F7F"  # the paper's, mask by mask, and of BOS and EOS
INK, PAPER = "#222222", "#FFFFFF"
LETTERS = 11  # of a word at most
NODE, LABEL = (0.31, 0.26), (0.12, 0.12)  # half the width and height of a state, and of an edge's value
LABELLED_EDGES = 24  # more values than these cannot be read
CELL, MATRIX = 0.38, 8.0  # inches of a cell, and of a matrix at most
READABLE = 0.2  # a cell that can hold a number

# Words are text, not formulas ($); letters stay letters in PDF.
STYLE: dict[Any, Any] = {"font.size": 8, "text.parse_math": False, "pdf.fonttype": 42, "text.color": INK}


def write(case: Case, path: Path) -> None:
    """Writes a page (.html) or a figure (.svg, .png or .pdf)."""
    if path.suffix == ".html":
        return write_text(path, page(case))
    with replacing(path) as partial, matplotlib.rc_context(STYLE):
        figure(case).savefig(partial, format=path.suffix[1:], dpi=200, bbox_inches="tight", facecolor=PAPER)


def page(case: Case) -> str:
    """The page, which loads nothing. Whatever the case holds is inert: it is JSON in which no tag can begin or end."""
    exact = json.dumps(case, allow_nan=False)
    rounded = json.loads(exact, parse_float=lambda number: float(f"{float(number):.6g}"))
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent))
    return templates.get_template("page.html").render(case=rounded)


def figure(case: Case) -> Figure:
    """The DAG of the states and, where the model has transitions, their matrix."""
    cells = len(case["states"]) - 1
    side = min(CELL * cells, MATRIX)
    height, widths = side + 2, [1.67 * (case["masks"] + 2.05), side + 2][: 2 if case["edges"] else 1]
    result = Figure((sum(widths), height), layout="constrained")
    space = "" if case["molecules"] else " "
    parts = [text if mask is None else f"{space}[MASK {mask + 1}]" for text, mask in case["pieces"]]
    title = " ".join("".join(parts).split())
    result.suptitle(title if len(title) <= 120 else f"{title[:119]}…", x=0.01, ha="left", fontsize=12)
    axes = result.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    _draw_dag(axes[0], case, height)
    if case["edges"]:
        _draw_matrix(axes[1], case, side / cells)
    return result


def _look(state: Case, masks: int) -> tuple[str, list[str]]:
    """The colour of a state and its top words, or its name where it emits none."""
    words = [word if len(word) <= LETTERS else f"{word[: LETTERS - 1]}…" for word, _ in state["words"][:3]]
    is_end = not 0 <= state["mask"] < masks
    return END_TINT if is_end else TINTS[state["mask"] % 2], words or ["[BOS]" if state["mask"] < 0 else "[EOS]"]


def _draw_dag(axes: Axes, case: Case, height: float) -> None:
    """A column of states for each mask, on `height` inches. A unit is from column to column, or from state to state."""
    masks = pd.Series([state["mask"] for state in case["states"]])
    column = masks.groupby(masks)
    centres = np.stack([masks, column.cumcount() - (column.transform("size") - 1) / 2], axis=1)
    tints, words = zip(*(_look(state, case["masks"]) for state in case["states"]), strict=True)
    for (x, y), tint, top in zip(centres, tints, words, strict=True):
        box = FancyBboxPatch((x - NODE[0], y - NODE[1]), 2 * NODE[0], 2 * NODE[1], "round,pad=0,rounding_size=0.06")
        axes.add_patch(box).set(facecolor=tint, edgecolor="none", zorder=2)
        axes.text(x, y, top[0], color=PAPER, weight="bold", fontsize=9, ha="center", va="center", zorder=3)
    tallest = max(centres[:, 1].max() + 0.9, height / 2)
    axes.set(xlim=(-1.4, case["masks"] + 0.65), ylim=(tallest, -tallest))
    axes.set_axis_off()

    taken = [(centre, NODE) for centre in centres]
    shown = sorted((edge for edge in case["edges"] if edge[2] >= case["threshold"]), key=lambda edge: edge[2])
    for u, v, p in shown:
        start, stop, bend = centres[u] + [NODE[0], 0], centres[v] - [NODE[0], 0], [0.0, 0.0]
        skipped = masks[v] - masks[u] - 1
        if skipped < 0:  # on the right past other states of its mask
            stop, bend = centres[v] + [NODE[0], 0], [0.08 + 0.1 * min(v - u, 4), 0]
        elif skipped:  # around the masks that it leaves out
            bend = [0, -1.6 if start[1] + stop[1] <= 0 else 1.6]
        curve = np.array([start, (start + stop) / 2 + bend, stop])
        path = Curve(curve, [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3])
        axes.add_patch(PathPatch(path, fill=False, edgecolor=tints[u], alpha=0.2 + 0.75 * p, linewidth=0.4 + 4 * p))
        if len(shown) <= LABELLED_EDGES:  # where the value hides no state and no other value, if there is such a spot
            t = np.array([0.36, 0.5, 0.25, 0.62, 0.75])
            spots = np.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], axis=1) @ curve
            gaps = [min((abs(spot - centre) / np.add(size, LABEL)).max() for centre, size in taken) for spot in spots]
            x, y = spots[np.clip(gaps, 0, 1).argmax()]
            taken.append((np.array([x, y]), LABEL))
            halo = dict(boxstyle="round,pad=0.1", facecolor=PAPER, edgecolor="none", alpha=0.85)
            axes.text(x, y, f"{p:.2f}", fontsize=6.5, ha="center", va="center", bbox=halo, zorder=4)


def _draw_matrix(axes: Axes, case: Case, cell: float) -> None:
    """Rows: where an edge starts. Columns: where it ends. EOS has no row, BOS no column. A cell has `cell` inches."""
    tints, words = zip(*(_look(state, case["masks"]) for state in case["states"]), strict=True)
    names, centres = [", ".join(top) for top in words], np.arange(len(words) - 1) + 0.5
    values = np.full((len(centres), len(centres)), np.nan)
    for u, v, p in case["edges"]:
        values[u, v - 1] = p
        if cell >= READABLE and p >= 0.005:  # an empty cell says nought as well
            tone = PAPER if p > 0.55 else INK
            axes.text(v - 0.5, u + 0.5, f"{p:.2f}", fontsize=18 * cell, ha="center", va="center", color=tone)
    mesh = axes.pcolormesh(values, cmap="YlOrBr", vmin=0, vmax=1, edgecolors="#EEEEEE", linewidth=0.5)
    axes.figure.colorbar(mesh, ax=axes, shrink=0.4, ticks=[0, 0.5, 1], label="transition probability")
    axes.set(aspect="equal", ylim=(len(centres), 0))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    font: dict[str, Any] = dict(fontsize=min(8.0, 50 * cell), weight="bold", rotation_mode="anchor")
    axes.set_xticks(centres, names[1:], rotation=52, ha="left", **font)
    axes.set_yticks(centres, names[:-1], **font)
    for label, tint in zip([*axes.get_xticklabels(), *axes.get_yticklabels()], tints[1:] + tints[:-1], strict=True):
        label.set_color(tint)
