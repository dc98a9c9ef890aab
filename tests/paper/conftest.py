"""A report of every experiment, written once."""

import pytest

from exlm.paper.report import report
from tests.paper.fake_runs import full_grid


@pytest.fixture(scope="session")
def grid(tmp_path_factory):
    """A report of every experiment."""
    root = tmp_path_factory.mktemp("grid")
    full_grid(root / "runs")
    report([str(root / "runs")], str(root / "out"))
    return root
