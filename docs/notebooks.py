"""Makes examples/*.ipynb from docs/tutorials/*.md and executes them: python docs/notebooks.py, or
with names.

The tutorials are the only source. Their prose becomes Markdown cells, their commands become cells
with `!`, their Python blocks become code cells. What a tutorial quotes as output, and its pictures,
are left out, because the cells have outputs and pictures of their own.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
QUOTED_OUTPUT = re.compile(r":?\n\n```text\n.*?^```\n", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[.*?\]\(.*?\)\n", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)(.*?)\)")
WHERE_TO_WORK = re.compile(r"Work in an empty folder\..*?\sin a\s+terminal\.\s*", re.DOTALL)
OWN_FOLDER = """A line that begins with `!` is a command, as in a terminal. The files go \
into a folder of their own:

```python
import os
from pathlib import Path

if Path.cwd().name != "{name}":
    Path("{name}").mkdir(exist_ok=True)
    os.chdir("{name}")
```

"""

BAR = re.compile(r"^.*\[\d\d:\d\d[<,].*\n?", re.MULTILINE)  # the last state of a progress bar
TIME = re.compile(r" in \d+ s(?=,)")

# In Jupyter a command that fails does not stop the notebook. Here it does.
STOP_AT_FAILURE = """
def system(command):
    get_ipython().system_piped(command)
    if status := get_ipython().user_ns["_exit_code"]:
        raise RuntimeError(f"exit status {status}: {command}")

get_ipython().system = system
"""


def notebook(tutorial: Path) -> nbformat.NotebookNode:
    """The tutorial as a notebook without outputs."""
    text = tutorial.read_text(encoding="utf-8")
    text, count = WHERE_TO_WORK.subn(OWN_FOLDER.format(name=tutorial.stem), text)
    if count != 1:
        raise ValueError(f"{tutorial} does not say where to work as {WHERE_TO_WORK.pattern!r}")
    text = QUOTED_OUTPUT.sub(lambda match: ".\n" if match[0][0] == ":" else "\n", text)
    prose, *blocks = BLOCK.split(PICTURE.sub("", text))
    cells = markdown(prose)
    for language, block, prose in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        cells += code(language, block) + markdown(prose)
    for i, cell in enumerate(cells):
        cell.id = f"cell-{i}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )


def markdown(prose: str) -> list[nbformat.NotebookNode]:
    """A Markdown cell, unless the text is empty. Links are relative to the tutorials, and now to
    the notebooks."""
    text = LINK.sub(
        lambda match: f"]({os.path.normpath(f'../docs/tutorials/{match[1]}')})", prose
    ).strip()
    return [new_markdown_cell(text)] if text else []


def code(language: str, block: str) -> list[nbformat.NotebookNode]:
    """The cells of a block; every command has its own. The installation, which comes first, stays
    prose."""
    if language == "python":
        return [new_code_cell(block.rstrip())]
    if language == "yaml":
        comment, recipe = block.rstrip().split("\n", 1)  # the comment has the name of the file
        return [new_code_cell(f"%%writefile {comment.split()[1]}\n{recipe}")]
    if block.startswith("pip "):
        return [new_markdown_cell(f"```bash\n{block}```")]
    return [new_code_cell(f"!{command}") for command in re.split(r"(?<!\\)\n", block.rstrip())]


def execute(notebook: nbformat.NotebookNode, folder: Path, before: str = STOP_AT_FAILURE) -> None:
    """Runs the cells in `folder` after the code `before`, and stores their outputs in the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook.cells.insert(0, new_code_cell(before))
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
        record_timing=False,
    )
    with client.setup_kernel():
        for i, cell in enumerate(notebook.cells):
            client.execute_cell(cell, i, store_history=i > 0)
    del notebook.cells[0]


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leaves progress bars and times out of the outputs."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "stream":
                output.text = TIME.sub("", BAR.sub("", output.text.replace("\r\n", "\n")))
        cell.outputs = [
            output for output in cell.outputs if output.get("text") != "" and not is_widget(output)
        ]


def is_widget(output: nbformat.NotebookNode) -> bool:
    """Whether an output is a progress bar that only its own kernel can show."""
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def write(tutorial: Path) -> None:
    """Writes the notebook of a tutorial. It is executed only if its code has changed; else it keeps
    its outputs."""
    made, path = notebook(tutorial), EXAMPLES / f"{tutorial.stem}.ipynb"
    stored = nbformat.read(path, as_version=4) if path.exists() else new_notebook()
    if [cell.source for cell in code_cells(made)] == [cell.source for cell in code_cells(stored)]:
        for cell, old in zip(code_cells(made), code_cells(stored), strict=True):
            cell.update(outputs=old.outputs, execution_count=old.execution_count)
    else:
        with tempfile.TemporaryDirectory() as folder:
            execute(made, Path(folder))
    tidy(made)
    nbformat.write(made, path)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that are not Markdown."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


if __name__ == "__main__":
    # where the command exlm is
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for tutorial in TUTORIALS:
        if tutorial.stem in sys.argv[1:] or len(sys.argv) == 1:
            write(tutorial)
