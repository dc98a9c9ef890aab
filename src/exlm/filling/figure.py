"""A case of `exlm explore` as a figure for papers: the DAG of the states and the transition matrix side by side."""

import math
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

Case = dict[str, Any]
Point = tuple[float, float]

MASK_COLOURS = "#BF9000", "#C55A11"  # the paper's yellow and brown nodes, mask by mask
GREY, INK, PAPER = "#7F7F7F", "#222222", "#FFFFFF"
COLUMN, ROW, WIDE_ROW = 1.75, 0.58, 1.0  # inches between masks, and between states of one mask at least and at most
NODE = 1.1, 0.4  # inches
CELL, MATRIX = 0.44, 8.0  # inches; cells shrink so that the matrix has no more
READABLE = 0.2  # a cell that can hold a number
LETTER = 0.072  # inches, on average
LABELLED_EDGES = 24  # more values than these cannot be read
LETTERS = 10  # of a word

# Words are text, not formulas ($); letters stay letters in PDF.
STYLE: dict[Any, Any] = {"font.family": "sans-serif", "text.parse_math": False, "pdf.fonttype": 42, "text.color": INK}


def draw(case: Case, path: Path, form: str) -> None:
    """Writes the figure; `form` is svg, png or pdf."""
    with matplotlib.rc_context(STYLE):
        figure(case).savefig(path, format=form, dpi=200, bbox_inches="tight", facecolor=PAPER)


def figure(case: Case) -> Figure:
    """The DAG and, where the model has transitions, their matrix."""
    states = case["states"]
    side = min(CELL * (len(states) - 1), MATRIX) if case["edges"] else 0.0
    places = layout(states, side)
    width, height = (max(place[i] for place in places) + NODE[0] + 0.2 for i in (0, 1))
    room = 0.3 + LETTER * max(len(names(case, state, 3)) for state in states) if side else 0.0  # words of the rows
    total = width + room + side, max(height, side) + 0.5
    result = Figure(figsize=total)
    result.text(0.01, 0.99, _title(case), va="top", fontsize=12)
    _dag(result.add_axes(_box(0, (total[1] - 0.5 - height) / 2, width, height, total)), case, places)
    if side:
        _matrix(result.add_axes(_box(width + room, (total[1] - 0.5 - side) / 2, side, side, total)), case, side)
    return result


def layout(states: list[Case], height: float = 0.0) -> list[Point]:
    """Where the middle of each state stands, in inches: a column for BOS, for each mask, and for EOS.

    `height` is what there is to fill, the matrix's.
    """
    columns: dict[int, list[int]] = {}
    for u, state in enumerate(states):
        columns.setdefault(state["mask"], []).append(u)
    most = max(map(len, columns.values()))
    row = min(max(height / most, ROW), WIDE_ROW)
    return [
        (COLUMN * (state["mask"] + 1), row * ((most + len(column)) / 2 - 1 - column.index(u)))
        for u, state in enumerate(states)
        for column in (columns[state["mask"]],)
    ]


def colour(case: Case, state: Case) -> str:
    """Of a state: its mask's, or grey for BOS and EOS."""
    return MASK_COLOURS[state["mask"] % 2] if 0 <= state["mask"] < case["masks"] else GREY


def names(case: Case, state: Case, count: int = 1) -> str:
    """The top words of a state, or which end it is."""
    if not state["words"]:
        return "[BOS]" if state["mask"] < 0 else "[EOS]"
    return ", ".join(_cut(word) for word, _ in state["words"][:count])


def _cut(word: str) -> str:
    return word if len(word) <= LETTERS else word[: LETTERS - 1] + "…"


def _title(case: Case) -> str:
    space = "" if case["molecules"] else " "
    parts = [text if mask is None else f"{space}[MASK {mask + 1}]" for text, mask in case["pieces"]]
    title = " ".join("".join(parts).split())
    return title if len(title) <= 120 else title[:119] + "…"


def _box(x: float, y: float, width: float, height: float, total: Point) -> tuple[float, float, float, float]:
    """Inches as fractions of the figure."""
    return x / total[0], y / total[1], width / total[0], height / total[1]


def _dag(axes: Axes, case: Case, places: list[Point]) -> None:
    xs, ys = zip(*places, strict=True)
    margin = NODE[0] / 2 + 0.1
    axes.set(xlim=(min(xs) - margin, max(xs) + margin), ylim=(min(ys) - margin, max(ys) + margin))
    axes.set_axis_off()
    shown = [edge for edge in case["edges"] if edge[2] >= case["threshold"]]
    for u, v, p in sorted(shown, key=lambda edge: edge[2]):
        _edge(axes, case, places, u, v, p, label=len(shown) <= LABELLED_EDGES)
    for state, place in zip(case["states"], places, strict=True):
        _node(axes, case, state, place)


def _edge(axes: Axes, case: Case, places: list[Point], u: int, v: int, p: float, label: bool) -> None:
    bend = arc(case["states"], places, u, v)
    half = NODE[0] / 2
    start = places[u][0] + half, places[u][1]
    end = places[v][0] + (half if places[u][0] == places[v][0] else -half), places[v][1]
    patch = FancyArrowPatch(
        start,
        end,
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-",
        linewidth=0.4 + 4 * p,
        alpha=0.2 + 0.75 * p,
        color=colour(case, case["states"][u]),
        shrinkA=0,
        shrinkB=0,
        zorder=1,
    )
    axes.add_patch(patch)
    if label:
        _value(axes, start, end, bend, p)


def arc(states: list[Case], places: list[Point], u: int, v: int) -> float:
    """How far an edge bends: past other states of its mask, or over the masks that it leaves out."""
    if states[u]["mask"] == states[v]["mask"]:
        return -0.35 / max(0.5, abs(places[u][1] - places[v][1]))  # at most 0.35 inches
    skipped = states[v]["mask"] - states[u]["mask"] - 1
    return 0.0 if not skipped else math.copysign(0.18, -(places[u][1] + places[v][1]) + places[0][1] * 2 - 1e-9)


def _value(axes: Axes, start: Point, end: Point, bend: float, p: float) -> None:
    """The probability on its edge, nearer to where the edge starts, so that those of one target stand apart."""
    t = 0.5 if start[0] == end[0] else 0.36
    control = (start[0] + end[0]) / 2 + bend * (end[1] - start[1]), (start[1] + end[1]) / 2 - bend * (end[0] - start[0])
    x, y = (((1 - t) ** 2) * a + 2 * t * (1 - t) * c + t * t * b for a, c, b in zip(start, control, end, strict=True))
    halo = dict(boxstyle="round,pad=0.1", facecolor=PAPER, edgecolor="none", alpha=0.8)
    axes.text(x, y, f"{p:.2f}", fontsize=6.5, ha="center", va="center", bbox=halo, zorder=2)


def _node(axes: Axes, case: Case, state: Case, place: Point) -> None:
    tint, (x, y) = colour(case, state), place
    box = FancyBboxPatch(
        (x - NODE[0] / 2, y - NODE[1] / 2),
        *NODE,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=tint,
        edgecolor="none",
        zorder=3,
    )
    axes.add_patch(box)
    axes.text(x, y, names(case, state), color=PAPER, weight="bold", fontsize=9, ha="center", va="center", zorder=4)


def _matrix(axes: Axes, case: Case, side: float) -> None:
    """Rows: where an edge starts. Columns: where it ends. EOS has no row, BOS no column."""
    count = len(case["states"]) - 1
    values = [[math.nan] * count for _ in range(count)]
    for u, v, p in case["edges"]:
        values[u][v - 1] = p
    mesh = axes.pcolormesh(values, cmap="YlOrBr", vmin=0, vmax=1, edgecolors="#EEEEEE", linewidth=0.5)
    axes.invert_yaxis()
    cell = side / count
    for u, v, p in case["edges"]:
        if cell >= READABLE and p >= 0.005:  # an empty cell says nought as well
            tone = PAPER if p > 0.55 else INK
            axes.text(v - 0.5, u + 0.5, f"{p:.2f}", fontsize=18 * cell, ha="center", va="center", color=tone)
    _ticks(axes, case, count, min(8.0, 50 * cell))
    _scale(axes, mesh)


def _ticks(axes: Axes, case: Case, count: int, size: float) -> None:
    middles = [i + 0.5 for i in range(count)]
    rows, columns = case["states"][:-1], case["states"][1:]
    axes.set_yticks(middles, [names(case, state, 3) for state in rows], fontsize=size)
    axes.set_xticks(middles, [names(case, state, 3) for state in columns], fontsize=size, rotation=50, ha="right")
    for labels, states in ((axes.get_yticklabels(), rows), (axes.get_xticklabels(), columns)):
        for label, state in zip(labels, states, strict=True):
            label.set(color=colour(case, state), rotation_mode="anchor", weight="bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _scale(axes: Axes, mesh: QuadMesh) -> None:
    inset = axes.inset_axes((0.05, 0.12, 0.35, 0.03))
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(mesh, cax=inset, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=7, length=2)
    bar.set_label("transition probability", fontsize=7.5)
    bar.outline.set_visible(False)
