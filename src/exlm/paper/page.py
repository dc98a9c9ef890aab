"""What a report consists of, and its files: Markdown, HTML and LaTeX by the templates beside this file, CSV, plots."""

import base64
import html
import io
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure as Plot

from exlm.storage import replacing, write_text

PAPER = "paper: "  # begins the title of a column whose numbers are the paper's
BLANK = " "  # where a number would make no sense
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
TEMPLATES.globals["paper"] = PAPER
TEMPLATES.filters["latex"] = lambda text: "".join(LATEX.get(letter, letter) for letter in str(text))
TEMPLATES.filters["markdown"] = lambda text: re.sub(r"([|*_<>])", r"\\\1", str(text))
TEMPLATES.filters["anchor"] = lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
INK = "#20242a"  # of plots; becomes the page's text colour in the HTML
LARGEST = 190_000  # bytes of a PNG
STYLE: dict[Any, Any] = {
    "font.size": 9.5, "font.family": "sans-serif", "svg.fonttype": "none", "text.color": INK, "axes.edgecolor": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 10.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "font.sans-serif": ["DejaVu Sans"], "hatch.linewidth": 0.6,
}  # fmt: skip
styled = matplotlib.rc_context(STYLE)  # as a decorator, it holds within the function alone


@dataclass(frozen=True)
class Number:
    """A number in a table with its standard deviation; a blank cell if it has no value."""

    value: float | None  # as it is printed, mostly in percent
    spread: float | None = None
    digits: int = 1  # after the decimal point
    note: str = ""  # shown where the pointer rests
    mark: str = ""  # behind the number, explained in the caption

    def __str__(self) -> str:
        if self.value is None:
            return BLANK
        spread = "" if self.spread is None else f" ± {self.spread:,.{self.digits}f}"
        return f"{self.value:,.{self.digits}f}{spread}{self.mark}"


def shown(cell: Number | str | float | None) -> str:
    """As it is printed: a whole number has no digits after the point, another one."""
    if isinstance(cell, int | float):
        return str(Number(cell, digits=0 if isinstance(cell, int) else 1))
    return "–" if cell is None else str(cell)


TEMPLATES.filters["shown"] = shown
Row = dict[str, Any]  # a number, a Number, a text, or None for what has not been run, by the title of every column


@dataclass
class Table:
    """A table with a caption; `name` is that of its files.

    All rows have the same titles in the same order. Three of them are no columns: rows of one `group` stand below its
    name, `source` is `paper` for the paper's own results, `quoted` for other systems' in the paper, else `ours`, and
    `lacking` says what of the row has not been run. The words of a column `runs` are ids of runs, which are links.
    """

    name: str
    title: str
    caption: str
    rows: list[Row]

    def __post_init__(self) -> None:
        self.rows = [{"group": "", "source": "ours", "lacking": "", **row} for row in self.rows]
        self.columns = list(self.rows[0])[3:] if self.rows else []

    def alignment(self, column: str) -> str:
        """As LaTeX has it: numbers to the right, long texts in lines of 6 cm."""
        cells = [row[column] for row in self.rows]
        if any(not isinstance(cell, str | None) for cell in cells):
            return "r"
        return "p{6cm}" if max(len(shown(cell)) for cell in cells) > 60 else "l"

    def csv(self) -> str:
        """Numbers in full, each with its standard deviation and note; the group and the source of every row."""
        lines = []
        for row in self.rows:
            line = {"group": row["group"], "source": row["source"]}
            for title in self.columns:
                cell, number = row[title], row[title] if isinstance(row[title], Number) else Number(None)
                value = number.value if cell is number else cell
                line[title] = value.strip() if isinstance(value, str) else None if value is None else float(value)
                line |= {f"{title} s.d.": number.spread, f"{title} note": number.note or None}
            lines.append(line)
        frame = pd.DataFrame(lines)
        extra = [name for name in frame if name not in ("group", "source", *self.columns)]
        return frame.drop(columns=[name for name in extra if frame[name].isna().all()]).to_csv(index=False)

    def write(self, directory: Path) -> None:
        """NAME.csv, and NAME.tex: a booktabs table to include; quoted rows and the paper's columns are in italics."""
        write_text(directory / "tables" / f"{self.name}.csv", self.csv())
        latex = TEMPLATES.get_template("table.tex").render(table=self)
        write_text(directory / "tables" / f"{self.name}.tex", latex)


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
        with replacing(directory / "figures" / f"{self.name}.svg") as partial:
            partial.write_bytes(self.plot if isinstance(self.plot, bytes) else self._svg(self.plot).encode())
        if not isinstance(self.plot, bytes):
            with replacing(directory / "figures" / f"{self.name}.png") as partial:
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
            block.write(directory)
    for template, name in (("report.md", "report.md"), ("report.html", "index.html")):
        page = TEMPLATES.get_template(template)
        write_text(directory / name, page.render(title=title, lead=lead, sections=sections))
