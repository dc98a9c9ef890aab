"""Models and corpora that earlier versions wrote are read, and mean the same as then
(`tests/stored/make.py`)."""

import json

import numpy as np
import pytest

from tests.stored.make import FOLDER, recorded

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "recorded.json").is_file())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stored_corpus_and_model_mean_what_they_meant(version):
    expected = json.loads((FOLDER / version / "recorded.json").read_text())
    current = recorded(FOLDER / version)
    assert current["tokens"] == expected["tokens"]
    assert current["input_ids"] == expected["input_ids"]
    np.testing.assert_allclose(current["logits"], expected["logits"], rtol=0, atol=1e-6)


def test_the_files_of_a_version_are_small():
    for version in VERSIONS:
        files = [path for path in (FOLDER / version).rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 60_000
