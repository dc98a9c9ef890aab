"""The tutorials and how-to pages run block by block: commands, Python and recipes, with little data
and few steps.

Each tutorial has a folder of its own. Its Python blocks share their names, as in a notebook. The
how-to pages go on in the folder of the tutorial for chemists, that of tools for text in the folder
of the tutorial on texts.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from exlm_command import main
from tests.test_commands_in_docs import TINY, commands

DOCS = Path(__file__).parents[1] / "docs"
SERIES = {path.stem: [path] for path in sorted((DOCS / "tutorials").glob("*.md"))}
for page in sorted((DOCS / "howto").glob("*.md")):
    SERIES["text" if page.stem == "text-tools" else "chemist"].append(page)
BLOCK = re.compile(r"^```(bash|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROWS = 120  # of each sample


@pytest.fixture
def little_data(monkeypatch):
    """Samples of the molecules of the package chemicals are cut short."""
    pytest.importorskip("chemicals")
    sample = pd.DataFrame.sample

    def little_sample(frame, n=None, **options):
        if "smiles" not in frame:
            return sample(frame, n, **options)
        short = frame[frame["smiles"].str.len() < 60]
        return sample(short, min(n, ROWS), **options)

    monkeypatch.setattr(pd.DataFrame, "sample", little_sample)


@pytest.mark.parametrize("series", SERIES)
def test_every_block_runs_and_every_picture_is_made(series, tmp_path, monkeypatch, little_data):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for page in SERIES[series]:
        text = page.read_text()
        for i, (language, block) in enumerate(BLOCK.findall(text)):
            if language == "python":
                exec(compile(block, f"{page.name}, block {i + 1}", "exec"), names)
            elif language == "yaml":
                # its first line is a comment with the name of the file
                Path(block.split()[1]).write_text(block)
            else:
                run(block, tmp_path / f"programs-{page.stem}-{i}")
        for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
            assert Path(picture).stat().st_size > 1000
    plt.close("all")


def run(block, folder):
    """The `exlm` commands of a block in this process, with options that make each take a second."""
    page = folder.with_suffix(".md")
    page.write_text(f"```bash\n{block}```\n")
    for name, *arguments in commands(page, folder):
        if "--seeds" in arguments and name in TINY:  # may be given once
            place = arguments.index("--seeds")
            del arguments[place : place + 2]
        try:
            main([name, *arguments, *TINY.get(name, [])])
        except SystemExit as stop:
            assert not stop.code, f"exlm {name} {' '.join(arguments)}"
