"""What a report consists of, before it becomes Markdown, HTML, LaTeX or CSV."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from matplotlib.figure import Figure as Plot

Kind = Literal["ours", "paper", "quoted", "heading"]
PAPER = "paper: "  # begins the title of a column whose numbers are the paper's


@dataclass(frozen=True)
class Cell:
    """A number with its spread, or a text; nothing at all is a cell that has not been run."""

    value: float | None = None  # as it is printed, mostly in percent
    spread: float | None = None  # its standard deviation
    text: str = ""  # in place of a number
    digits: int = 1  # after the point
    note: str = ""  # seeds and runs, for those who look closer
    links: tuple[str, ...] = ()  # ids of runs, in place of a text
    mark: str = ""  # behind the number, explained in the caption


Value = Cell | str | float | None  # of a cell; None has not been run
BLANK = Cell(text=" ")  # where a number would make no sense


@dataclass(frozen=True)
class Row:
    """Cells under the columns. `quoted` rows are other systems' results, taken from the paper; `paper` its own."""

    cells: tuple[Cell, ...]
    kind: Kind = "ours"


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    plot: Plot


@dataclass(frozen=True)
class Drawing:
    """An SVG file made by others."""

    name: str
    caption: str
    svg: bytes


class Missing(NamedTuple):
    """Cells without a number, and the command that fills them."""

    cells: str
    command: str


@dataclass
class Section:
    """One experiment: a heading, a sentence, then tables and figures by family, and what is missing."""

    title: str
    about: str
    start: str = ""  # the command for an experiment of which there is nothing yet
    parts: list[Table | Figure | Drawing] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


def row(*values: Value) -> Row:
    """Words, numbers and what has not been run, as cells."""
    return Row(cells(values))


def cells(values: Iterable[Value]) -> tuple[Cell, ...]:
    """A whole number has no digits after the point, another one."""
    made = []
    for value in values:
        if isinstance(value, str):
            value = Cell(text=value)
        elif not isinstance(value, Cell):
            value = Cell(value, digits=0 if isinstance(value, int) else 1)
        made.append(value)
    return tuple(made)


def heading(text: str) -> Row:
    """Names the rows below it."""
    return Row((Cell(text=text),), "heading")
