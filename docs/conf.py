"""The site: `make docs` builds it with Sphinx from the Markdown pages of this folder, the
docstrings and `--help`."""

import os
import re
import sys
from pathlib import Path
from textwrap import indent

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]
os.environ["COLUMNS"] = "88"  # of the help texts

project = "ExLM"
author = "the developers of ExLM"
copyright = "the developers of ExLM; MIT licence"
html_title = "ExLM"

extensions = [
    "myst_parser",  # pages in Markdown
    "sphinx.ext.autodoc",  # docstrings
    "sphinx.ext.napoleon",  # their sections Args, Returns, Raises and Attributes
    "sphinx.ext.viewcode",  # the source of every function, as a page
    "command_pages",
]
exclude_patterns = ["_build", "_static"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["attrs_inline"]  # see `_anchors`
myst_heading_anchors = 3  # links such as method.md#alignment, as on GitHub
highlight_language = "text"
default_role = "code"  # docstrings write code in single backticks

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _anchors(app: Sphinx, page: str, source: list[str]) -> None:
    """Writes the HTML anchors of a page as MyST does, so that links to them are checked."""
    source[0] = re.sub(r'<a id="([\w-]+)"></a>', r"[]{#\1}", source[0])


def _as_written(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Shows the formulas and the columns in a module's docstring, which have three spaces in a row,
    as they are."""
    if what == "module":
        parts = "\n".join(lines).split("\n\n")
        lines[:] = "\n\n".join(
            "::\n\n" + indent(part, " ") if "   " in part else part for part in parts
        ).split("\n")


def _without_aliases(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """Leaves out the fields of a named tuple, of which Python says only that they are an alias."""
    return True if str(getattr(thing, "__doc__", "")).startswith("Alias for field number") else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_written)
    app.connect("autodoc-skip-member", _without_aliases)
    app.connect("source-read", _anchors)
