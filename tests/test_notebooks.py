"""The notebooks of examples/ have the content of the tutorials, and run from the first cell to the last."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from notebooks import EXAMPLES, TUTORIALS, execute, notebook

ROOT = Path(__file__).parents[1]
LITTLE = """
from itertools import count
from pathlib import Path

import pytest

from tests.test_tutorials import cut_short, run

cut_short(pytest.MonkeyPatch())
numbers = count()
get_ipython().system = lambda command: run(f"{command}\\n", Path(f"programs-{next(numbers)}").resolve())
"""  # cells with ! run in the kernel, because to start Python for each takes seconds


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_notebook_has_the_cells_of_its_tutorial_with_plots_and_without_errors(tutorial):
    made, stored = notebook(tutorial), nbformat.read(EXAMPLES / f"{tutorial.stem}.ipynb", as_version=4)
    nbformat.validate(stored)
    assert [(c.cell_type, c.source) for c in stored.cells] == [(c.cell_type, c.source) for c in made.cells], (
        f"run: python docs/notebooks.py {tutorial.stem}"
    )
    for link in [part.split(")")[0] for cell in made.cells if cell.cell_type == "markdown" for part in cell.source.split("](")[1:]]:
        assert (EXAMPLES / link.split("#")[0]).exists(), link
    outputs = [output for cell in stored.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_notebook_runs_with_little_data(tutorial, tmp_path, monkeypatch):
    pytest.importorskip("datamol")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    made = notebook(tutorial)
    execute(made, tmp_path, LITTLE)
    assert any("image/png" in output.get("data", {}) for cell in made.cells for output in cell.get("outputs", []))
    assert list(tmp_path.glob("*")) == [tmp_path / tutorial.stem]
