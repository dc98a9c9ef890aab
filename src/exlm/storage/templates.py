"""Templates of texts, pages and figures."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape


def render(template: Path, /, **values: Any) -> str:
    """The text that a Jinja template gives. In HTML and SVG, values cannot act as tags."""
    return _templates(template.parent).get_template(template.name).render(values)


@cache
def _templates(folder: Path) -> Environment:
    """The templates of a folder, each compiled once."""
    return Environment(
        loader=FileSystemLoader(folder), autoescape=select_autoescape(["html", "svg"])
    )
