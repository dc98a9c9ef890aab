"""A table as Markdown, HTML, LaTeX and CSV."""

import csv
import html
import io
import re

from exlm.analysis.report_model import Cell, Row, Table

NOTHING = "–"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "–": "--", "ρ": r"$\rho$",
    "≤": r"$\le$", "≥": r"$\ge$", "·": r"$\cdot$", "<": r"$<$", ">": r"$>$", "|": r"$|$", "−": "$-$", "²": r"$^2$",
    "ʳ": r"$^r$", "√": r"$\sqrt{}$",
}  # fmt: skip


def shown(cell: Cell) -> str:
    """The text of a cell: value ± spread, words, ids, or a dash."""
    if cell.links or cell.text:
        return " ".join(cell.links) or cell.text
    if cell.value is None:
        return NOTHING
    spread = "" if cell.spread is None else f" ± {cell.spread:,.{cell.digits}f}"
    return f"{cell.value:,.{cell.digits}f}{spread}"


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
    head = "".join(f"<th{_class(column.paper)}>{html.escape(title)}</th>" for title, column in _headed(table))
    rows = "\n".join(_html_row(table, row) for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _headed(table: Table) -> list[tuple[str, object]]:
    return [(title, column) for title, column in zip(titles(table), table.columns, strict=True)]


def _class(paper: bool) -> str:
    return ' class="paper"' if paper else ""


def _html_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        return f'<tr class="heading"><th colspan="{len(row.cells)}">{html.escape(shown(row.cells[0]))}</th></tr>'
    cells = []
    for cell, column in zip(row.cells, table.columns, strict=True):
        text = " ".join(f'<a href="#run-{run}">{run}</a>' for run in cell.links) or html.escape(shown(cell))
        if cell.spread is not None:
            text = re.sub(r"( ± .*)", r'<span class="spread">\1</span>', text)
        note = f' title="{html.escape(cell.note)}"' if cell.note else ""
        number = " number" if cell.value is not None or text == NOTHING else ""
        words = f"{'paper' if column.paper else ''}{number}".strip()
        cells.append(f'<td class="{words}"{note}>{text}</td>' if words else f"<td{note}>{text}</td>")
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
        f"\\begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}\n"
        "\\bottomrule\n\\end{tabular}\n\\end{table*}\n"
    )


def _latex_row(table: Table, row: Row) -> str:
    if row.kind == "heading":
        return (
            rf"\midrule\multicolumn{{{len(row.cells)}}}{{l}}{{\textbf{{{escape(shown(row.cells[0]))}}}}} \\"
            if row is not table.rows[0]
            else rf"\multicolumn{{{len(row.cells)}}}{{l}}{{\textbf{{{escape(shown(row.cells[0]))}}}}} \\"
        )
    words = [escape(shown(cell)) for cell in row.cells]
    quoted = [row.kind != "ours" or column.paper for column in table.columns]
    return " & ".join(rf"\textit{{{w}}}" if q else w for w, q in zip(words, quoted, strict=True)) + r" \\"


def escape(text: str) -> str:
    """For LaTeX."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def csv_table(table: Table) -> str:
    """Numbers in full, each with its standard deviation and note; the group and the source of every row."""
    numeric = [any(row.cells[i].value is not None for row in table.rows) for i in range(len(table.columns))]
    lines, group = [], ""
    for row in table.rows:
        if row.kind == "heading":
            group = row.cells[0].text
            continue
        line = {"group": group, "source": row.kind}
        for title, cell, number in zip(titles(table), row.cells, numeric, strict=True):
            line[title] = _number(cell.value) if cell.value is not None else " ".join(cell.links) or cell.text
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
