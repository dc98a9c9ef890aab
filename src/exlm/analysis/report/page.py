"""A report's sections as one Markdown file and one HTML page that needs nothing else."""

import html
import re

from exlm.analysis.report.document import Figure, Section, Table
from exlm.analysis.report.figures import inline_svg
from exlm.analysis.report.render import html_table, markdown

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5c6873; --line: #d9dee3; --page: #fff; --tint: #f3f6f9;
  --link: #0b62b0; --good: #1a7f4b; --bad: #b3361c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa6b2; --line: #36404a; --page: #14181c;
  --tint: #1d242b; --link: #6cb4f5; --good: #5cc48b; --bad: #f08a6c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 84rem; padding: 2.5rem 1.5rem 5rem; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.9rem; margin: 0 0 .4rem; line-height: 1.2; } h2 { font-size: 1.35rem; margin: 3rem 0 .3rem;
  padding-top: 1.2rem; border-top: 1px solid var(--line); } h3 { font-size: 1.02rem; margin: 1.8rem 0 .4rem; }
p { max-width: 52rem; margin: .4rem 0 .9rem; } a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; } nav { columns: 3 15rem; margin: 1.2rem 0; } nav a { display: block; }
.scroll { overflow-x: auto; margin: .6rem 0 .3rem; } table { border-collapse: collapse; font-size: .86rem;
  font-variant-numeric: tabular-nums; } th, td { padding: .28rem .55rem; text-align: left; white-space: nowrap; }
thead th { white-space: normal; border-bottom: 2px solid var(--line); font-weight: 600; vertical-align: bottom; }
tbody td { border-bottom: 1px solid var(--line); } th.number, td.number { text-align: right; }
tr.heading th { padding-top: .9rem; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); }
tr.quoted td, tr.paper td, td.paper { font-style: italic; color: var(--soft); background: var(--tint); }
th.paper { font-style: italic; font-weight: 500; color: var(--soft); background: var(--tint); }
.spread { color: var(--soft); font-size: .92em; } .caption { color: var(--soft); font-size: .86rem; margin-top: .2rem; }
figure { margin: 1.2rem 0; } figure svg { max-width: 100%; height: auto; display: block; }
table.findings td { white-space: normal; vertical-align: top; }
td.good { color: var(--good); font-weight: 600; } td.bad { color: var(--bad); font-weight: 600; }
td.soft { color: var(--soft); } table.left-out td, table.runs td { white-space: normal; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--soft); } pre { background: var(--tint);
  padding: .6rem .8rem; overflow-x: auto; border-radius: 4px; font-size: .82rem; margin: .3rem 0 .8rem; }
"""


MISSING = "Commands for what is missing"


def anchor(title: str) -> str:
    """A heading's id."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def script(section: Section) -> str:
    """The commands for what is missing, each below a comment that says what."""
    return "\n".join(f"# {missing.cells}\n{missing.command}" for missing in section.missing)


def markdown_page(title: str, lead: list[str], sections: list[Section]) -> str:
    """report.md; figures are the PNG files beside it."""
    parts = [f"# {title}", *map(_text, lead)]
    for section in sections:
        parts += [f"## {section.title}", _text(section.about), *map(_markdown_part, section.parts)]
        if section.missing:
            commands = f"```bash\n{script(section)}\n```"
            parts.append(f"<details>\n<summary>{MISSING}</summary>\n\n{commands}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _text(text: str) -> str:
    return text.replace("*", r"\*").replace("_", r"\_")


def _markdown_part(part: Table | Figure) -> str:
    if isinstance(part, Figure):
        return f"![{part.caption}](figures/{part.name}.png)\n\n{_text(part.caption)}"
    files = f"[CSV](tables/{part.name}.csv), [LaTeX](tables/{part.name}.tex)"
    return f"**{_text(part.title)}**\n\n{markdown(part)}\n\n{_text(part.caption)} ({files})"


def html_page(title: str, lead: list[str], sections: list[Section]) -> str:
    """index.html; figures and styles are inside it."""
    links = "".join(f'<a href="#{anchor(s.title)}">{html.escape(s.title)}</a>' for s in sections)
    text = "\n".join(f"<p>{html.escape(words)}</p>" for words in lead)
    body = "\n".join(_html_section(section) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{text}\n<nav>{links}</nav>\n{body}\n</body></html>\n"
    )


def _html_section(section: Section) -> str:
    head = f'<h2 id="{anchor(section.title)}">{html.escape(section.title)}</h2>\n<p>{html.escape(section.about)}</p>'
    parts = [head, *map(_html_part, section.parts)]
    if section.missing:
        commands = f"<pre>{html.escape(script(section))}</pre>"
        parts.append(f"<details><summary>{MISSING}</summary>{commands}</details>")
    return "\n".join(parts)


def _html_part(part: Table | Figure) -> str:
    caption = html.escape(part.caption)
    if isinstance(part, Figure):
        return f'<figure>{inline_svg(part)}<figcaption class="caption">{caption}</figcaption></figure>'
    return f'<h3>{html.escape(part.title)}</h3>\n{html_table(part)}\n<p class="caption">{caption}</p>'
