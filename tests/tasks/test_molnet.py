"""MoleculeNet: the files are found under their public names, and told from the published ones by
their size."""

import pytest

from exlm import ExLMForMaskedLM, InputError
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.tasks.rows.datasets import DEFAULT_HYPER, MOLECULENET, file_task, molnet_departures
from exlm.tasks.rows.task_files import find_dataset, glue_files
from tests.conftest import read_frame


@pytest.mark.parametrize("name", sorted(MOLECULENET))
def test_every_set_names_all_hyper_parameters(name):
    assert MOLECULENET[name].default_hyper.keys() == DEFAULT_HYPER["molecules"].keys()
    FinetuneConfig(**MOLECULENET[name].default_hyper)  # refuses values out of range


@pytest.mark.parametrize("name", sorted(MOLECULENET))
def test_the_real_tables_have_the_published_sizes(name, data_dir):
    path = find_dataset(name, str(data_dir / "molecules"))
    rows = len(read_frame(path))
    assert file_task(path, read_frame(path).columns) == name
    assert molnet_departures(name, rows, rows) == []
    assert molnet_departures(name, rows // 2, rows // 2)


def test_rows_that_cannot_be_used_are_a_difference_too():
    [said] = molnet_departures("tox21", 7831, 7823)
    assert said == "the table has 7,831 rows (7,823 usable), MoleculeNet's tox21 7,831"


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
    assert (file_task(f"data/{file}", None) == "esol") is known


def test_a_table_that_has_only_its_name_in_common_with_a_set_is_another():
    assert file_task("data/BACE.csv.gz", ["mol", "Class"]) == "bace"
    assert file_task("data/BACE.csv", ["smiles", "active"]) == "bace.csv"
    assert molnet_departures("bace.csv", 900, 900) == []


def test_a_difference_is_in_the_output_and_in_the_results(corpus, tmp_path, capsys):
    tokenizer = load_tokenizer(corpus)
    architecture = ArchitectureConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32
    )
    save_model(tmp_path / "model", ExLMForMaskedLM(architecture.build(tokenizer)), tokenizer)
    rows = [f"{'C' * n}O,{n % 2}" for n in range(1, 40)]
    (tmp_path / "BBBP.csv").write_text("\n".join(["smiles,p_np", "C1CC,1", *rows]))
    task = TaskConfig("bbbp", split="random", data_dir=str(tmp_path))
    results = finetune(
        str(tmp_path / "out"), str(tmp_path / "model"), task, FinetuneConfig(epochs=1), [0]
    )
    [said] = results["settings"]["departures"]
    assert "departures" not in results["runs"][0]["settings"]  # words are no part of an identity
    assert said == "the table has 40 rows (39 usable), MoleculeNet's bbbp 2,039"
    assert f"note: {said}; scores do not compare" in capsys.readouterr().err


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
