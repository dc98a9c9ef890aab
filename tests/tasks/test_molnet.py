"""MoleculeNet: the files are found under their public names."""

import pytest

from exlm import InputError
from exlm.tasks.config import FinetuneConfig
from exlm.tasks.rows.datasets import (
    DEFAULTS,
    MOLECULENET,
    find_dataset,
    glue_files,
    task_of,
)


@pytest.mark.parametrize("name", sorted(MOLECULENET))
def test_every_set_names_all_hyper_parameters(name):
    assert MOLECULENET[name].default_hyper.keys() == DEFAULTS["molecules"].keys()
    FinetuneConfig(**MOLECULENET[name].default_hyper)  # refuses values out of range


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("delaney-processed.csv", True),
        ("ESOL.csv", True),
        ("mine.csv", False),
        ("esol-05.csv", False),
    ]
    + [(f"esol{end}", True) for end in (".parquet", ".tsv.xz", ".csv.zst", "-00000-of-1.parquet")],
)
def test_tables_are_known_by_any_of_their_public_names(file, known):
    assert (task_of(f"data/{file}") == "esol") is known


def test_find_dataset_accepts_public_names_and_says_where_it_looked(tmp_path, monkeypatch):
    (tmp_path / "BBBP.csv").write_text("smiles,p_np\nC,1\n")
    assert find_dataset("BBBP", str(tmp_path)) == tmp_path / "BBBP.csv"
    (tmp_path / "molecules").mkdir()
    (tmp_path / "molecules" / "delaney-processed.csv").write_text("smiles\nC\n")
    monkeypatch.setenv("EXLM_DATA", str(tmp_path))
    assert find_dataset("esol") == tmp_path / "molecules" / "delaney-processed.csv"
    with pytest.raises(
        InputError, match=f"{tmp_path}/molecules must have one file tox21 .* delaney-processed.csv"
    ):
        find_dataset("tox21")


@pytest.mark.parametrize(("find", "name"), [(find_dataset, "bace"), (glue_files, "rte")])
def test_without_a_folder_the_message_says_how_to_name_one(monkeypatch, find, name):
    monkeypatch.delenv("EXLM_DATA", raising=False)
    with pytest.raises(
        InputError,
        match=f"files of {name} are; name their folder with task.data_dir, or .* EXLM_DATA",
    ):
        find(name)
