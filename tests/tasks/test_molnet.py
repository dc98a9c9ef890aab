"""How MoleculeNet tables are told from the published ones."""

import pytest

from exlm.tasks.frames import read_frame
from exlm.tasks.molnet import MOLECULENET, departures, find_dataset


@pytest.mark.parametrize("name", sorted(MOLECULENET))
def test_the_real_tables_have_the_published_sizes(name, data_dir):
    path = find_dataset(name, str(data_dir / "molecules"))
    rows = len(read_frame(path))
    assert departures(path, rows, rows) == []
    assert departures(path, rows // 2, rows // 2)


def test_rows_that_cannot_be_used_are_a_departure_too():
    [said] = departures("molecules/tox21.csv.gz", 7831, 7823)
    assert said == "the table has 7,831 rows (7,823 usable), the published one 7,831"


@pytest.mark.parametrize(("file", "known"), [("delaney-processed.csv", True), ("ESOL.csv", True), ("mine.csv", False)])
def test_tables_are_known_by_any_of_their_public_names(file, known):
    assert departures(file, 900, 900) == ["the table has 900 rows, the published one 1,128"] * known
