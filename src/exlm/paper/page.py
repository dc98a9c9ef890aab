"""What a report consists of, and its files: Markdown, HTML and LaTeX by the templates beside this file, and CSV."""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from exlm.paper.figures import Figure
from exlm.storage import write_text

PAPER = "paper: "  # begins the title of a column whose numbers are the paper's
NOT_RUN = "–"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "ρ": r"$\rho$",
    "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "−": "$-$", "²": r"$^2$",
    "ʳ": r"$^r$", "√": r"$\surd$", "“": "``", "”": "''", "≈": r"$\approx$", "†": r"$\dagger$",
}  # fmt: skip
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals["zip"] = zip
TEMPLATES.filters["latex"] = lambda text: "".join(LATEX.get(letter, letter) for letter in str(text))
TEMPLATES.filters["markdown"] = lambda text: re.sub(r"([|*_<>])", r"\\\1", str(text))
TEMPLATES.filters["anchor"] = lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a number with its spread, or a text. With neither, it has not been run."""

    value: float | None = None  # as it is printed, mostly in percent
    spread: float | None = None  # its standard deviation
    text: str = ""  # in place of a number
    digits: int = 1  # after the decimal point
    note: str = ""  # seeds and runs, shown where the pointer rests
    runs: tuple[str, ...] = ()  # ids of runs, in place of a text
    mark: str = ""  # behind the number, explained in the caption

    def __str__(self) -> str:
        if self.runs or self.text:
            return " ".join(self.runs) or self.text
        if self.value is None:
            return NOT_RUN
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.value:,.{self.digits}f}{spread}{self.mark}"

    @property
    def tone(self) -> str:
        """The colour of a verdict, as a class of the page's style."""
        undecided = self.text.startswith(("within", "not decided")) or self.text.endswith("one pre-training seed")
        return {"shows": "good", "does not show": "bad"}.get(self.text, "soft" * undecided)


Value = Cell | str | float | None  # of a cell; None has not been run
BLANK = Cell(text=" ")  # where a number would make no sense


Values = dict[str, Any]  # a row of a table: a Value by the title of every column


class Row(NamedTuple):
    """A row as it is printed."""

    group: str
    source: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """A table with a caption; `name` is that of its files.

    All rows have the same titles in the same order. Two of them are no columns: rows of one `group` stand below its
    name, and `source` is `paper` for the paper's own results, `quoted` for other systems' in the paper, else `ours`.
    """

    name: str
    title: str
    caption: str
    values: list[Values]

    @cached_property
    def columns(self) -> list[str]:
        return [title for title in self.values[0] if title not in ("group", "source")]

    @cached_property
    def rows(self) -> list[Row]:
        found = [(str(row.get("group", "")), str(row.get("source", "ours")), row) for row in self.values]
        return [Row(group, source, [_cell(row[title]) for title in self.columns]) for group, source, row in found]

    def numeric(self, column: int) -> bool:
        return any(row.cells[column].value is not None for row in self.rows)

    def width(self, column: int) -> int:
        """Letters of the longest cell."""
        return max(len(str(row.cells[column])) for row in self.rows)

    def csv(self) -> str:
        """Numbers in full, each with its standard deviation and note; the group and the source of every row."""
        lines = []
        for row in self.rows:
            line: dict[str, str | float | None] = {"group": row.group, "source": row.source}
            for title, cell in zip(self.columns, row.cells, strict=True):
                number = None if cell.value is None else float(cell.value)
                line[title] = " ".join(cell.runs) or cell.text.strip() or number
                line |= {f"{title} s.d.": cell.spread, f"{title} note": cell.note or None}
            lines.append(line)
        frame = pd.DataFrame(lines)
        extra = [name for name in frame if name not in ("group", "source", *self.columns)]
        return frame.drop(columns=[name for name in extra if frame[name].isna().all()]).to_csv(index=False)

    def latex(self) -> str:
        """A booktabs table to include; quoted rows and the paper's columns are in italics."""
        return TEMPLATES.get_template("table.tex").render(table=self, paper=PAPER)


def _cell(value: Value) -> Cell:
    """A whole number has no digits after the point, another one."""
    if isinstance(value, Cell):
        return value
    return Cell(text=value) if isinstance(value, str) else Cell(value, digits=0 if isinstance(value, int) else 1)


@dataclass
class Section:
    """One experiment: a heading, a sentence, then tables and figures by family.

    `start` is the command for an experiment of which there is nothing yet; `missing` are further commands, each
    with what it makes.
    """

    title: str
    about: str
    start: str = ""
    blocks: list[Table | Figure] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)


def write_report(directory: Path, title: str, lead: list[str], sections: list[Section]) -> None:
    """report.md, index.html (with figures and styles inside), and a file of each table and figure in each format."""
    seen: Counter[tuple[type, str]] = Counter()
    for section in sections:
        for i, block in enumerate(section.blocks):
            seen[type(block), block.name] += 1
            if (count := seen[type(block), block.name]) > 1:  # the second family's files end in -2
                block = section.blocks[i] = replace(block, name=f"{block.name}-{count}")
            if isinstance(block, Table):
                write_text(directory / "tables" / f"{block.name}.csv", block.csv())
                write_text(directory / "tables" / f"{block.name}.tex", block.latex())
            else:
                block.write(directory / "figures")
    for template, name in (("report.md", "report.md"), ("report.html", "index.html")):
        page = TEMPLATES.get_template(template)
        write_text(directory / name, page.render(title=title, lead=lead, sections=sections, paper=PAPER))
