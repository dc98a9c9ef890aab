"""A table as Markdown, HTML, LaTeX and CSV."""

import csv
import html
import io
import re

from exlm.paper.report.document import PAPER, Cell, Row, Table

NOTHING = "–"
VERDICTS = {"shows": "good", "does not show": "bad", "within the spread of seeds": "soft", "not decided": "soft"}
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "ρ": r"$\rho$",
    "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "−": "$-$", "²": r"$^2$",
    "ʳ": r"$^r$", "√": r"$\surd$", "“": "``", "”": "''", "≈": r"$\approx$", "†": r"$\dagger$",
}  # fmt: skip


def shown(cell: Cell) -> str:
    """The text of a cell: value ± spread, words, ids, or a dash."""
    if cell.links or cell.text:
        return " ".join(cell.links) or cell.text
    if cell.value is None:
        return NOTHING
    spread = "" if cell.spread is None else f" ± {cell.spread:,.{cell.digits}f}"
    return f"{cell.value:,.{cell.digits}f}{spread}{cell.mark}"


def quoted(row: Row, column: str) -> bool:
    return row.kind != "ours" or column.startswith(PAPER)


def body(table: Table) -> list[Row]:
    return [row for row in table.rows if row.kind != "heading"]


def numeric(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [any(row.cells[i].value is not None for row in body(table)) for i in range(len(table.columns))]


def markdown(table: Table) -> str:
    """A GitHub table; the paper's numbers are in italics."""
    head = ["| " + " | ".join(map(_plain, table.columns)) + " |", "|" + " --- |" * len(table.columns)]
    return "\n".join([*head, *(_markdown_row(table, row) for row in table.rows)])


def _markdown_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        return f"| **{_plain(row.cells[0].text)}** |" + " |" * (len(table.columns) - 1)
    words = []
    for cell, column in zip(row.cells, table.columns, strict=True):
        word = " ".join(f"[{run}](#run-{run})" for run in cell.links) or _plain(shown(cell))
        words.append(f"*{word}*" if quoted(row, column) and word.strip() not in ("", NOTHING) else word)
    if table.name == "runs":
        words[0] = f'<a id="run-{words[0]}"></a>{words[0]}'
    return "| " + " | ".join(words) + " |"


def _plain(text: str) -> str:
    return re.sub(r"([|*_<>])", r"\\\1", text)


def html_table(table: Table) -> str:
    """A table whose classes mark quoted rows and the paper's columns."""
    columns = zip(table.columns, numeric(table), strict=True)
    head = "".join(f"<th{_classes(title, number)}>{html.escape(title)}</th>" for title, number in columns)
    rows = "\n".join(_html_row(table, row) for row in table.rows)
    start = f'<div class="scroll"><table class="{table.name}"><thead><tr>{head}</tr></thead>\n<tbody>\n'
    return f"{start}{rows}\n</tbody></table></div>"


def _classes(column: str, number: bool, word: str = "") -> str:
    words = " ".join(filter(None, ["paper" * column.startswith(PAPER), "number" * number, word]))
    return f' class="{words}"' if words else ""


def _html_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        title = html.escape(row.cells[0].text)
        return f'<tr class="heading"><th colspan="{len(table.columns)}">{title}</th></tr>'
    cells = []
    for cell, column in zip(row.cells, table.columns, strict=True):
        text = " ".join(f'<a href="#run-{run}">{run}</a>' for run in cell.links) or html.escape(shown(cell))
        word = VERDICTS.get(text.split(" (")[0], "soft" * text.endswith("one pre-training seed"))
        if cell.spread is not None:
            text = re.sub(r"( ± .*)", r'<span class="spread">\1</span>', text)
        note = f' title="{html.escape(cell.note)}"' if cell.note else ""
        cells.append(f"<td{_classes(column, cell.value is not None or text == NOTHING, word)}{note}>{text}</td>")
    anchor = f' id="run-{row.cells[0].text}"' if table.name == "runs" else ""
    return f'<tr class="{row.kind}"{anchor}>{"".join(cells)}</tr>'


def latex(table: Table) -> str:
    """A booktabs table to include; quoted rows and the paper's columns are in italics."""
    rows = "\n".join(_latex_row(table, row) for row in table.rows)
    head = " & ".join(_italic(escape(title), title.startswith(PAPER)) for title in table.columns)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{table*}}\n\\centering\\scriptsize\n"
        f"\\caption{{{escape(table.title)}. {escape(table.caption)}}}\n\\label{{tab:{table.name}}}\n"
        f"\\begin{{tabular}}{{{_layout(table)}}}\n\\toprule\n{head} \\\\\n\\midrule\n{rows}\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table*}\n"
    )


def _layout(table: Table) -> str:
    """Numbers to the right, long texts in paragraphs."""
    longest = [max((len(shown(row.cells[i])) for row in body(table)), default=0) for i in range(len(table.columns))]
    kinds = zip(numeric(table), longest, strict=True)
    return "".join("r" if number else "p{6cm}" if length > 60 else "l" for number, length in kinds)


def _latex_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        rule = "" if row is table.rows[0] else r"\midrule"
        return rule + rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textbf{{{escape(row.cells[0].text)}}}}} \\"
    pairs = zip(row.cells, table.columns, strict=True)
    return " & ".join(_italic(escape(shown(cell)), quoted(row, column)) for cell, column in pairs) + r" \\"


def _italic(text: str, wanted: bool) -> str:
    return rf"\textit{{{text}}}" if wanted else text


def escape(text: str) -> str:
    """For LaTeX."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def csv_table(table: Table) -> str:
    """Numbers in full, each with its standard deviation and note; the group and the source of every row."""
    lines, group = [], ""
    for row in table.rows:
        if row.kind == "heading":
            group = row.cells[0].text
            continue
        line = {"group": group, "source": row.kind}
        for title, cell in zip(table.columns, row.cells, strict=True):
            line[title] = " ".join(cell.links) or cell.text.strip() or _number(cell.value)
            line |= {f"{title} s.d.": _number(cell.spread), f"{title} note": cell.note}
        lines.append(line)
    names = dict.fromkeys(name for line in lines for name in line)
    kept = [n for n in names if n in ("group", "source", *table.columns) or any(line[n] for line in lines)]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, kept, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
