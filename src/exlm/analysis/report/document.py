"""What a report consists of, before it becomes Markdown, HTML, LaTeX or CSV."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from matplotlib.figure import Figure as Plot

Kind = Literal["ours", "paper", "quoted", "heading"]


@dataclass(frozen=True)
class Cell:
    """A number with its spread, or a text; nothing at all is a cell that has not been run.

    Attributes:
        value: as it is printed, mostly in percent.
        spread: its standard deviation.
        text: in place of a number.
        digits: after the point.
        note: seeds and runs, for those who look closer.
        links: ids of runs, in place of a text.
        mark: behind the number, explained in the caption.
    """

    value: float | None = None
    spread: float | None = None
    text: str = ""
    digits: int = 1
    note: str = ""
    links: tuple[str, ...] = ()
    mark: str = ""


BLANK = Cell(text=" ")  # where a number would make no sense


@dataclass(frozen=True)
class Row:
    """Cells under the columns. `quoted` rows are other systems' results, taken from the paper; `paper` its own."""

    cells: tuple[Cell, ...]
    kind: Kind = "ours"


@dataclass(frozen=True)
class Column:
    """A title, and whether all that stands below it is the paper's."""

    title: str
    paper: bool = False


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    folded: bool = False  # closed until asked for


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    plot: Plot


@dataclass(frozen=True)
class Missing:
    """Cells without a number, and the command that fills them."""

    cells: str
    command: str


@dataclass
class Section:
    """One experiment: a heading, a sentence, then tables and figures by family, and what is missing."""

    title: str
    about: str
    parts: list[Table | Figure | str] = field(default_factory=list)  # a str is a heading below the section's
    missing: list[Missing] = field(default_factory=list)


def heading(text: str, columns: int) -> Row:
    """A row that groups those below it."""
    return Row((Cell(text=text), *[Cell()] * (columns - 1)), "heading")


def columns_of(ours: Sequence[str], paper: Sequence[str] = (), last: Sequence[str] = ()) -> tuple[Column, ...]:
    """Our columns, then the paper's, then what says where ours come from."""
    return tuple(
        [Column(title) for title in ours] + [Column(title, True) for title in paper] + [Column(title) for title in last]
    )


def paper_cells(values: tuple[float | None, ...] | None, count: int) -> list[Cell]:
    """The paper's numbers, or as many empty cells."""
    return [Cell(value) for value in values] if values else [Cell()] * count
