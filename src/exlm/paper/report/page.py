"""A report's sections as one Markdown file and one HTML page that needs nothing else."""

import base64
import html
import re
from importlib import resources

from exlm.paper.report.document import Drawing, Figure, Section, Table
from exlm.paper.report.figures import inline_svg
from exlm.paper.report.render import html_table, markdown

STYLE = (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
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


def _markdown_part(part: Table | Figure | Drawing) -> str:
    if not isinstance(part, Table):
        kind = "svg" if isinstance(part, Drawing) else "png"
        return f"![{part.caption}](figures/{part.name}.{kind})\n\n{_text(part.caption)}"
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


def _html_part(part: Table | Figure | Drawing) -> str:
    caption = html.escape(part.caption)
    if not isinstance(part, Table):
        picture = inline_svg(part) if isinstance(part, Figure) else _image(part)
        return f'<figure>{picture}<figcaption class="caption">{caption}</figcaption></figure>'
    return f'<h3>{html.escape(part.title)}</h3>\n{html_table(part)}\n<p class="caption">{caption}</p>'


def _image(drawing: Drawing) -> str:
    """As data, so that its ids and styles stay its own."""
    data = base64.b64encode(drawing.svg).decode()
    return f'<img alt="{html.escape(drawing.caption)}" src="data:image/svg+xml;base64,{data}">'
