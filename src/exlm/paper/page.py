"""The parts of a report, and how they are written: Markdown, HTML and LaTeX from `templates`, CSV
files and plots."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from exlm.data.columns import in_one_line
from exlm.paper.display import DIGITS, DISPLAY, Row, as_text
from exlm.storage.files import replacing, write_text

PAPER_PREFIX = "paper: "  # of the titles of columns with the paper's numbers
SPREAD_ENDING = " s.d."  # of the titles of columns with standard deviations

LATEX = str.maketrans(DISPLAY["latex"])
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.globals["paper"] = PAPER_PREFIX
TEMPLATES.filters["base64"] = lambda content: base64.b64encode(content).decode()
TEMPLATES.filters["latex"] = lambda text: in_one_line(str(text)).translate(LATEX)
TEMPLATES.filters["markdown"] = lambda text: re.sub(r"([|*_<>])", r"\\\1", in_one_line(str(text)))
TEMPLATES.filters["anchor"] = lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@dataclass
class Table:
    """A table with a caption. Its files are called `name`.

    A row has, by the title of every column, a text, a number, or None if there is no number; the
    standard deviation of a number in MNLI is `MNLI s.d.`. It has three more entries:

    - group: a heading above the rows that share it;
    - source: `paper` for the paper's own results, `quoted` for results of other systems in the
      paper, else `ours`;
    - digits: of numbers whose column is not in DIGITS.

    Ids of runs in a column `runs` become links."""

    name: str
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]

    def is_of_paper(self, row: Row, column: str) -> bool:
        """Whether an entry is quoted from the paper."""
        return row["source"] != "ours" or column.startswith(PAPER_PREFIX)

    def text(self, row: Row, column: str) -> str:
        """An entry as text. Numbers of the paper have one digit after the decimal point."""
        digits = row.get("digits", 1)
        if column in DIGITS and not self.is_of_paper(row, column):
            digits = DIGITS[column]
        return as_text(row[column], row.get(column + SPREAD_ENDING), digits)

    def alignment(self, column: str) -> str:
        """The column type for LaTeX: numbers are aligned right, and long texts are broken into
        lines of 6 cm."""
        if any(not isinstance(row[column], str | None) for row in self.rows):
            return "r"
        return "p{6cm}" if max(len(self.text(row, column)) for row in self.rows) > 60 else "l"

    def write(self, directory: Path) -> None:
        """Writes NAME.csv, with unrounded numbers and standard deviations, and NAME.tex, a LaTeX
        table (booktabs)."""
        frame = pd.DataFrame(self.rows, dtype=object)
        columns = ["group", "source"]
        for column in self.columns:
            columns.append(column)
            if column + SPREAD_ENDING in frame and frame[column + SPREAD_ENDING].notna().any():
                columns.append(column + SPREAD_ENDING)
        latex = TEMPLATES.get_template("table.tex").render(table=self)
        csv = frame[columns].to_csv(index=False)
        write_text(directory / "tables" / f"{self.name}.csv", csv)
        write_text(directory / "tables" / f"{self.name}.tex", latex)


@dataclass
class ReportFigure:
    """A figure with a caption. Its files are called `name`."""

    name: str
    caption: str
    svg: bytes  # the content of the SVG file
    png: bytes | None = None  # the content of the PNG file, if the report made the plot itself

    def write(self, directory: Path) -> None:
        for ending, content in (("svg", self.svg), ("png", self.png)):
            if content:
                with replacing(directory / "figures" / f"{self.name}.{ending}") as partial:
                    partial.write_bytes(content)


@dataclass(frozen=True)
class Section:
    """One experiment."""

    title: str
    about: str
    start: str = ""  # the command that begins the experiment, shown where nothing was run
    blocks: Sequence[Table | ReportFigure] = ()
    missing: Sequence[tuple[str, str]] = ()  # what is missing, in words, and the command for it


def write_report(directory: Path, title: str, lead: list[str], sections: list[Section]) -> None:
    """Writes report.md, index.html (which contains its figures and styles), and all tables and
    figures as files. If several groups have a `sweep`, its files are called sweep, sweep-2, ..."""
    counts: Counter[tuple[type, str]] = Counter()
    for section in sections:
        for block in section.blocks:
            kind_and_name = (type(block), block.name)
            counts[kind_and_name] += 1
            if counts[kind_and_name] > 1:
                block.name += f"-{counts[kind_and_name]}"
            block.write(directory)
    for template, name in (("report.md", "report.md"), ("report.html", "index.html")):
        page = TEMPLATES.get_template(template)
        write_text(directory / name, page.render(title=title, lead=lead, sections=sections))
