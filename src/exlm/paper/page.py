"""What a report consists of, and its files: Markdown, HTML and LaTeX by the templates beside this file, CSV, plots."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from exlm.storage import replacing, write_text

PAPER = "paper: "  # begins the title of a column whose numbers are the paper's
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$",
    "ʳ": r"$^r$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "–": "--", "“": "``", "”": "''",
}  # fmt: skip
Row = dict[str, Any]  # a number, a Number, a text, or None for what has not been run, by the title of every column


@dataclass(frozen=True)
class Number:
    """A number in a table, with its standard deviation over all seeds."""

    value: float  # as it is printed, mostly in percent
    spread: float | None = None
    digits: int = 1  # after the decimal point
    centers: Sequence[float] = ()  # one number per pre-training seed

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.value:,.{self.digits}f}{spread}"


def shown(cell: Number | str | float | None) -> str:
    """As it is printed: a whole number has no digits after the point, another one."""
    if isinstance(cell, int | float):
        return str(Number(cell, digits=0 if isinstance(cell, int) else 1))
    return "–" if cell is None else str(cell)


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals["paper"] = PAPER
TEMPLATES.filters["shown"] = shown
TEMPLATES.filters["latex"] = lambda text: "".join(LATEX.get(letter, letter) for letter in str(text))
TEMPLATES.filters["markdown"] = lambda text: re.sub(r"([|*_<>])", r"\\\1", str(text))
TEMPLATES.filters["anchor"] = lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@dataclass
class Table:
    """A table with a caption; `name` is that of its files.

    All rows have the same titles in the same order. Two of them are no columns: rows of one `group` stand below its
    name, and `source` is `paper` for the paper's own results, `quoted` for other systems' in the paper, else `ours`.
    The words of a column `runs` are ids of runs, which are links.
    """

    name: str
    title: str
    caption: str
    rows: list[Row]
    lacking: list[str] = field(default_factory=list)  # which of our cells lack a number

    def __post_init__(self) -> None:
        self.rows = [{"group": "", "source": "ours", **row} for row in self.rows]
        self.columns = list(self.rows[0])[2:] if self.rows else []

    def alignment(self, column: str) -> str:
        """As LaTeX has it: numbers to the right, long texts in lines of 6 cm."""
        cells = [row[column] for row in self.rows]
        if any(not isinstance(cell, str | None) for cell in cells):
            return "r"
        return "p{6cm}" if max(len(shown(cell)) for cell in cells) > 60 else "l"

    def write(self, directory: Path) -> None:
        """NAME.csv has numbers in full, with standard deviations; NAME.tex is a booktabs table to include."""
        columns: dict[str, list[Any]] = {}
        for title in ("group", "source", *self.columns):
            cells = [row[title] for row in self.rows]
            columns[title] = [cell.value if isinstance(cell, Number) else cell for cell in cells]
            spreads = [cell.spread if isinstance(cell, Number) else None for cell in cells]
            if any(spread is not None for spread in spreads):
                columns[f"{title} s.d."] = spreads
        write_text(directory / "tables" / f"{self.name}.csv", pd.DataFrame(columns).to_csv(index=False))
        latex = TEMPLATES.get_template("table.tex").render(table=self)
        write_text(directory / "tables" / f"{self.name}.tex", latex)


@dataclass
class Figure:
    """A drawing as the contents of its SVG file, and of its PNG file if it is a plot of ours."""

    name: str
    caption: str
    svg: bytes
    png: bytes | None = None

    @property
    def source(self) -> str:
        """For an image of a page that needs no other file."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"

    def write(self, directory: Path) -> None:
        for kind, content in (("svg", self.svg), ("png", self.png)):
            if content:
                with replacing(directory / "figures" / f"{self.name}.{kind}") as partial:
                    partial.write_bytes(content)


@dataclass
class Section:
    """One experiment: a heading, a sentence, then tables and figures by family, and the commands for what is missing.

    `start` is the command for an experiment of which there is nothing yet; each of `missing` has what it makes.
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
            block.write(directory)
    for template, name in (("report.md", "report.md"), ("report.html", "index.html")):
        page = TEMPLATES.get_template(template)
        write_text(directory / name, page.render(title=title, lead=lead, sections=sections))
