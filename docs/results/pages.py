"""Tables in Markdown, and the parts of a page that a program fills: between `<!-- NAME -->` and
`<!-- end -->`."""

from collections.abc import Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def fill(page: Path, parts: dict[str, str]) -> None:
    """Replaces each named part of the page; ValueError if the page lacks one."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin = text.index(f"<!-- {name} -->\n")
        text = f"{text[:begin]}<!-- {name} -->\n{part}\n{text[text.index('<!-- end -->', begin) :]}"
    page.write_text(text, encoding="utf-8")
