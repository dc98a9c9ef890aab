"""Sphinx directives: the help of every command, as `exlm COMMAND --help` prints it, and the
functions behind them."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from exlm_command.commands import COMMANDS
from exlm_command.parser import build_parser


class Commands(SphinxDirective):
    """One section for each command of `exlm_command.COMMANDS`, in the order of the table."""

    def run(self) -> list[nodes.Node]:
        """The sections as docutils nodes."""
        return self.parse_text_to_nodes(
            "\n".join(map(self.section, COMMANDS)), allow_section_headings=True
        )

    def section(self, name: str) -> str:
        """Markdown: the command's name, one line about it, an example and its help."""
        parser = build_parser(name)
        # a backspace in the help of --print_config
        text = parser.format_help().replace(" \b", "").rstrip()
        return f"## exlm {name}\n\n{COMMANDS[name].summary}.\n\n```text\n{text}\n```\n"


class Functions(SphinxDirective):
    """The docstring of the function behind each command."""

    def run(self) -> list[nodes.Node]:
        """The functions as docutils nodes."""
        lines = [f".. autofunction:: {entry.module}.{name}" for name, entry in COMMANDS.items()]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("exlm-commands", Commands)
    app.add_directive("exlm-functions", Functions)
    return {"parallel_read_safe": True}
