"""Draws a case of `exlm explore`: the DAG of the states and the transition matrix, as a page or as a figure.

`lay_out` says once where everything stands, in CSS pixels (96 to an inch) with y downwards. The scripts of the page and
`figure` draw what it says, each in its own style.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.bezier import BezierSegment
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Curve

from exlm.storage import replacing, write_text

Case = dict[str, Any]

COLOURS = {"even": "#BF9000", "odd": "#C55A11", "end": "#7F7F7F"}  # the paper's, mask by mask, and of BOS and EOS
INK, PAPER = "#222222", "#FFFFFF"
NODE, END, PITCH = 100, 60, 160  # widths of states, and from one mask to the next
TALLEST_ROW = 96  # of a figure, whose states spread over the height of the matrix
MARGIN = 34  # to the middle of BOS, and above and below the states
LETTERS, LETTER = 11, 6.8  # of a word at most, and the mean width of one
CELL, MATRIX = 36, 768  # cells shrink so that the matrix has no more
SMALLEST_CELL = 15  # of the page, where people can scroll
READABLE = 20  # a cell of the figure that can hold a number
LABELLED_EDGES = 24  # more values than these cannot be read
TITLE = 48

# Words are text, not formulas ($); letters stay letters in PDF.
STYLE: dict[Any, Any] = {"font.family": "sans-serif", "text.parse_math": False, "pdf.fonttype": 42, "text.color": INK}


def write(case: Case, path: Path) -> None:
    """Writes a page (.html) or a figure (.svg, .png or .pdf)."""
    if path.suffix == ".html":
        write_text(path, page(case))
        return
    with replacing(path) as partial, matplotlib.rc_context(STYLE):
        form = path.suffix[1:]
        figure(case).savefig(partial, format=form, dpi=200, bbox_inches="tight", facecolor=PAPER)


def page(case: Case) -> str:
    """The page, which loads nothing. Whatever the case holds is inert: it is JSON in which no tag can begin or end."""
    data = json.dumps(lay_out(case), allow_nan=False)
    rounded = json.loads(data, parse_float=lambda number: float(f"{float(number):.6g}"))
    data = json.dumps(rounded, ensure_ascii=False, separators=(",", ":"))
    # "<!--" and "</script>" would change how the rest of the page is read.
    data = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", data)
    folder = Path(__file__).parent
    html, *scripts = ((folder / name).read_text("utf-8") for name in ("page.html", "draw.js", "events.js"))
    for script in scripts:
        html = html.replace("/*SCRIPT*/", script, 1)
    return html.replace("/*CASE*/", data, 1)


def lay_out(case: Case, for_figure: bool = False) -> Case:
    """The case (`explore.build_case`) with the coordinates of all that is drawn.

    Returns:
        `states` with name, colour (even, odd or end), label, words_label, middle x and y, and width; `edges` as
        [u, v, probability, curve], a curve being the x and y of the four points of a cubic Bezier curve; `dag` and
        `matrix`, their sizes.
    """
    cells = len(case["states"]) - 1
    cell = max(1 if for_figure else SMALLEST_CELL, min(CELL, MATRIX // cells))
    columns = Counter(state["mask"] for state in case["states"])
    most = max(columns.values())
    row, height = (40.0, 30) if most > 4 else (58.0, 40)
    if for_figure and case["edges"]:
        row = max(row, min(TALLEST_ROW, cell * cells / most))
    dag = {"width": 2 * MARGIN + PITCH * (case["masks"] + 1), "height": 2 * MARGIN + row * most, "node": height}
    states, seen = [], Counter[int]()
    for state in case["states"]:
        mask = state["mask"]
        seen[mask] += 1
        is_end = not 0 <= mask < case["masks"]
        title = f"mask {mask + 1}" if not is_end else "[BOS]" if mask < 0 else "[EOS]"
        words = [w if len(w) <= LETTERS else w[: LETTERS - 1] + "…" for w, _ in state["words"]] or [title]
        drawn = {
            "name": title + (f", state {seen[mask]}" if columns[mask] > 1 else ""),
            "colour": "end" if is_end else ("even", "odd")[mask % 2],
            "label": words[0],
            "words_label": ", ".join(words[:3]),
            "x": MARGIN + PITCH * (mask + 1),
            "y": MARGIN + row * (seen[mask] - 0.5 + (most - columns[mask]) / 2),
            "width": END if is_end else NODE,
        }
        states.append(state | drawn)
    edges = [(u, v, p, _curve(states[u], states[v], row, dag["height"] / 2, v - u)) for u, v, p in case["edges"]]
    left = 18 + LETTER * max(len(state["words_label"]) for state in states)
    top = 14 + 0.79 * (left - 10)
    sizes = {"cell": cell, "side": cell * cells, "left": left, "top": top}
    sizes |= {"width": left + cell * cells + 0.6 * top, "height": top + cell * cells + 10}
    return case | {"states": states, "edges": edges, "dag": dag, "matrix": sizes}


def _curve(start: Case, stop: Case, row: float, middle: float, distance: int) -> list[float]:
    """An edge: on the right past other states of its mask, or around the masks that it leaves out."""
    x, y = start["x"] + start["width"] / 2, start["y"]
    if start["mask"] == stop["mask"]:
        bulge = x + 10 + 9 * min(distance, 4)
        return [x, y, bulge, y, bulge, stop["y"], x, stop["y"]]
    skipped = stop["mask"] - start["mask"] - 1
    away = -1 if (y + stop["y"]) / 2 <= middle else 1
    lift = away * (0.9 * row + 8 * min(skipped, 4)) if skipped else 0
    end = stop["x"] - stop["width"] / 2
    reach = 0.45 * (end - x)
    return [x, y, x + reach, y + lift, end - reach, stop["y"] + lift, end, stop["y"]]


def figure(case: Case) -> Figure:
    """The DAG and, where the model has transitions, their matrix."""
    drawn = lay_out(case, for_figure=True)
    panels = [drawn["dag"], drawn["matrix"]][: 2 if case["edges"] else 1]
    widths, height = [panel["width"] for panel in panels], max(panel["height"] for panel in panels)
    result = Figure(figsize=(sum(widths) / 96, (TITLE + height) / 96))
    result.text(0.01, 0.99, _title(case), va="top", fontsize=12)
    result.subplots_adjust(left=0, right=1, bottom=0, top=height / (TITLE + height), wspace=0)
    all_axes = result.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for axes, panel, draw in zip(all_axes, panels, (_dag, _matrix), strict=False):
        margin = (height - panel["height"]) / 2
        axes.set(xlim=(0, panel["width"]), ylim=(panel["height"] + margin, -margin))
        axes.set_axis_off()
        draw(axes, drawn)
    return result


def _title(case: Case) -> str:
    space = "" if case["molecules"] else " "
    parts = [text if mask is None else f"{space}[MASK {mask + 1}]" for text, mask in case["pieces"]]
    title = " ".join("".join(parts).split())
    return title if len(title) <= 120 else title[:119] + "…"


def _dag(axes: Axes, case: Case) -> None:
    states, height = case["states"], case["dag"]["node"]
    shown = [edge for edge in case["edges"] if edge[2] >= case["threshold"]]
    for u, v, p, curve in sorted(shown, key=lambda edge: edge[2]):
        points = np.reshape(curve, (4, 2))
        look: dict[str, Any] = dict(edgecolor=COLOURS[states[u]["colour"]], alpha=0.2 + 0.75 * p, linewidth=0.4 + 4 * p)
        path = Curve(points, [Curve.MOVETO, *[Curve.CURVE4] * 3])
        axes.add_patch(PathPatch(path, fill=False, zorder=1, **look))
        if len(shown) <= LABELLED_EDGES:  # nearer to where the edge starts: those of one target stand apart
            x, y = BezierSegment(points).point_at_t(0.5 if states[u]["mask"] == states[v]["mask"] else 0.36)
            halo = dict(boxstyle="round,pad=0.1", facecolor=PAPER, edgecolor="none", alpha=0.8)
            axes.text(x, y, f"{p:.2f}", fontsize=6.5, ha="center", va="center", bbox=halo, zorder=2)
    for state in states:
        x, y, width, tint = state["x"], state["y"], state["width"], COLOURS[state["colour"]]
        box = FancyBboxPatch((x - width / 2, y - height / 2), width, height, "round,pad=0,rounding_size=10", zorder=3)
        box.set(facecolor=tint, edgecolor="none")
        axes.add_patch(box)
        axes.text(x, y, state["label"], color=PAPER, weight="bold", fontsize=9, ha="center", va="center", zorder=4)


def _matrix(axes: Axes, case: Case) -> None:
    """Rows: where an edge starts. Columns: where it ends. EOS has no row, BOS no column."""
    states, sizes = case["states"], case["matrix"]
    count, cell, left, top = len(states) - 1, sizes["cell"], sizes["left"], sizes["top"]
    values = np.full((count, count), np.nan)
    for u, v, p, _ in case["edges"]:
        values[u, v - 1] = p
        if cell >= READABLE and p >= 0.005:  # an empty cell says nought as well
            x, y, tone = left + cell * (v - 0.5), top + cell * (u + 0.5), PAPER if p > 0.55 else INK
            axes.text(x, y, f"{p:.2f}", fontsize=0.19 * cell, ha="center", va="center", color=tone)
    borders = cell * np.arange(count + 1)
    x, y = left + borders, top + borders
    mesh = axes.pcolormesh(x, y, values, cmap="YlOrBr", vmin=0, vmax=1, edgecolors="#EEEEEE", linewidth=0.5)
    label: dict[str, Any] = dict(fontsize=min(8.0, 0.52 * cell), weight="bold", rotation_mode="anchor")
    for i in range(count):
        middle, row, column = cell * (i + 0.5), states[i], states[i + 1]
        tints = COLOURS[row["colour"]], COLOURS[column["colour"]]
        axes.text(left - 8, top + middle, row["words_label"], color=tints[0], ha="right", va="center", **label)
        axes.text(left + middle, top - 8, column["words_label"], color=tints[1], rotation=52, **label)
    side, figure = sizes["side"], axes.get_figure()
    assert figure is not None
    inset = axes.inset_axes((left + 0.05 * side, top + 0.86 * side, 0.35 * side, 8), transform=axes.transData)
    bar = figure.colorbar(mesh, cax=inset, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label("transition probability", fontsize=7.5)
    bar.outline.set_visible(False)
