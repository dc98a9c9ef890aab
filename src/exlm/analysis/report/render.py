"""A table as Markdown, HTML, LaTeX and CSV."""

import csv
import html
import io
import re

from exlm.analysis.report.document import Cell, Row, Table

NOTHING = "–"
VERDICTS = {"shows": "good", "does not show": "bad", "within the spread of seeds": "soft"}
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "ρ": r"$\rho$",
    "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "−": "$-$", "²": r"$^2$",
    "ʳ": r"$^r$", "≈": r"$\approx$",
    "†": r"$\dagger$",
}  # fmt: skip


def shown(cell: Cell) -> str:
    """The text of a cell: value ± spread, words, ids, or a dash."""
    if cell.links or cell.text:
        return " ".join(cell.links) or cell.text
    if cell.value is None:
        return NOTHING
    spread = "" if cell.spread is None else f" ± {cell.spread:,.{cell.digits}f}"
    return f"{cell.value:,.{cell.digits}f}{spread}{cell.mark}"


def titles(table: Table) -> list[str]:
    """Titles of the columns; the paper's say so."""
    return [f"paper: {column.title}" if column.paper else column.title for column in table.columns]


def markdown(table: Table) -> str:
    """A GitHub table; the paper's numbers are in italics."""
    head = ["| " + " | ".join(map(_plain, titles(table))) + " |", "|" + " --- |" * len(table.columns)]
    return "\n".join([*head, *(_markdown_row(table, row) for row in table.rows)])


def _markdown_row(table: Table, row: Row) -> str:
    words = [_plain(shown(cell)) for cell in row.cells]
    if row.kind == "heading":
        return f"| **{words[0]}** |" + " |" * (len(words) - 1)
    for i, (cell, column) in enumerate(zip(row.cells, table.columns, strict=True)):
        if cell.links:
            words[i] = " ".join(f"[{run}](#run-{run})" for run in cell.links)
        elif (row.kind != "ours" or column.paper) and words[i] != NOTHING:
            words[i] = f"*{words[i]}*"
    if table.name == "runs":
        words[0] = f'<a id="run-{words[0]}"></a>{words[0]}'
    return "| " + " | ".join(words) + " |"


def _plain(text: str) -> str:
    return re.sub(r"([|*_<>])", r"\\\1", text)


def html_table(table: Table) -> str:
    """A table whose classes mark quoted rows and the paper's columns."""
    numeric = numbers(table)
    head = "".join(
        f"<th{_classes(column.paper, number)}>{html.escape(title)}</th>"
        for title, column, number in zip(titles(table), table.columns, numeric, strict=True)
    )
    rows = "\n".join(_html_row(table, row) for row in table.rows)
    return (
        f'<div class="scroll"><table class="{table.name}"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n'
        "</tbody></table></div>"
    )


def numbers(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [any(row.cells[i].value is not None for row in table.rows) for i in range(len(table.columns))]


def _classes(paper: bool, number: bool, word: str = "") -> str:
    words = " ".join(name for name, flag in (("paper", paper), ("number", number), (word, bool(word))) if flag)
    return f' class="{words}"' if words else ""


def _html_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        return f'<tr class="heading"><th colspan="{len(row.cells)}">{html.escape(shown(row.cells[0]))}</th></tr>'
    cells = []
    for cell, column in zip(row.cells, table.columns, strict=True):
        text = " ".join(f'<a href="#run-{run}">{run}</a>' for run in cell.links) or html.escape(shown(cell))
        if cell.spread is not None:
            text = re.sub(r"( ± .*)", r'<span class="spread">\1</span>', text)
        note = f' title="{html.escape(cell.note)}"' if cell.note else ""
        word = VERDICTS.get(text, "")
        cells.append(f"<td{_classes(column.paper, cell.value is not None or text == NOTHING, word)}{note}>{text}</td>")
    anchor = f' id="run-{row.cells[0].text}"' if table.name == "runs" else ""
    return f'<tr class="{row.kind}"{anchor}>{"".join(cells)}</tr>'


def latex(table: Table) -> str:
    """A booktabs table to include; quoted rows and the paper's columns are in italics."""
    body = "\n".join(_latex_row(table, row) for row in table.rows)
    head = " & ".join(
        rf"\textit{{{escape(t)}}}" if c.paper else escape(t) for t, c in zip(titles(table), table.columns, strict=True)
    )
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{table*}}\n\\centering\\scriptsize\n"
        f"\\caption{{{escape(table.title)}. {escape(table.caption)}}}\n\\label{{tab:{table.name}}}\n"
        f"\\begin{{tabular}}{{{_layout(table)}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table*}\n"
    )


def _layout(table: Table) -> str:
    """Numbers to the right, long texts in paragraphs."""
    longest = [
        max((len(shown(r.cells[i])) for r in table.rows if r.kind != "heading"), default=0)
        for i in range(len(table.columns))
    ]
    return "".join(
        "r" if number else "p{6cm}" if length > 60 else "l"
        for number, length in zip(numbers(table), longest, strict=True)
    )


def _latex_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        rule = "" if row is table.rows[0] else r"\midrule"
        return rule + rf"\multicolumn{{{len(row.cells)}}}{{l}}{{\textbf{{{escape(shown(row.cells[0]))}}}}} \\"
    words = [escape(shown(cell)) for cell in row.cells]
    quoted = [row.kind != "ours" or column.paper for column in table.columns]
    return " & ".join(rf"\textit{{{w}}}" if q else w for w, q in zip(words, quoted, strict=True)) + r" \\"


def escape(text: str) -> str:
    """For LaTeX."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def csv_table(table: Table) -> str:
    """Numbers in full, each with its standard deviation and note; the group and the source of every row."""
    numeric = numbers(table)
    lines, group = [], ""
    for row in table.rows:
        if row.kind == "heading":
            group = row.cells[0].text
            continue
        line = {"group": group, "source": row.kind}
        for title, cell, number in zip(titles(table), row.cells, numeric, strict=True):
            line[title] = _number(cell.value) if cell.value is not None else " ".join(cell.links) or cell.text.strip()
            if number:
                line |= {f"{title} s.d.": _number(cell.spread), f"{title} note": cell.note}
        lines.append(line)
    stream = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    kept = [n for n in names if n in ("group", "source", *titles(table)) or any(line[n] for line in lines)]
    writer = csv.DictWriter(stream, kept, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
