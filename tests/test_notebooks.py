"""The notebooks of examples/ have the cells of the tutorials, plots and no errors; one runs from
beginning to end."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from notebooks import EXAMPLES, LINK, TUTORIALS, execute, notebook

ROOT = Path(__file__).parents[1]
IN_THE_KERNEL = """
from itertools import count
from pathlib import Path

from tests.test_tutorials import run

numbers = count()


def system(command):
    run(f"{command}\\n", Path(f"commands-{next(numbers)}").resolve())


get_ipython().system = system
"""  # runs the commands with few steps, and without starting Python for each, which takes seconds


def outputs(of):
    """The outputs of all cells."""
    return [output for cell in of.cells for output in cell.get("outputs", [])]


def pictures(of):
    """How many plots the notebook shows."""
    return sum("image/png" in output.get("data", {}) for output in outputs(of))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_stored_notebook_has_the_cells_of_its_tutorial_and_a_plot_for_each_picture(tutorial):
    made, stored = (
        notebook(tutorial),
        nbformat.read(EXAMPLES / f"{tutorial.stem}.ipynb", as_version=4),
    )
    nbformat.validate(stored)
    for new, old in zip(made.cells, stored.cells, strict=True):
        assert (new.cell_type, new.source) == (old.cell_type, old.source), (
            f"python docs/notebooks.py {tutorial.stem}"
        )
    assert pictures(stored) == tutorial.read_text().count("\n![")
    assert all(output.output_type != "error" for output in outputs(stored))


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_the_notebook_lead_to_files(tutorial):
    prose = "\n".join(
        cell.source for cell in notebook(tutorial).cells if cell.cell_type == "markdown"
    )
    targets = LINK.findall(prose)
    assert targets and all((EXAMPLES / target.split("#")[0]).is_file() for target in targets)


def test_notebook_runs_with_little_data(tmp_path, monkeypatch):
    """That for text. The others have the same kinds of cells, and their blocks run in
    test_tutorials.py."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    made = notebook(ROOT / "docs" / "tutorials" / "text.md")
    execute(made, tmp_path, IN_THE_KERNEL)
    assert pictures(made) == 1
    assert os.listdir(tmp_path) == ["text"]  # a folder of its own
