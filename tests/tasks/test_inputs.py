"""From a file to vectors and predictions: what a model remembers of its texts, and what is kept of
the file."""

import json

import numpy as np
import pandas as pd
import pytest

from exlm import ExLMForMaskedLM, InputError
from exlm.data import chunks
from exlm.data.tokenization import train_text_tokenizer
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.embed import embed

SENTENCES = ["Ada lives in Rome", "the weather is fine today", "shares fell again on Monday"] * 5
ASPIRIN = ["CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O", "O=C(C)Oc1ccccc1C(=O)[O-].[Na+]"]


def save(path, tokenizer, **remembered):
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    config = ArchitectureConfig(**sizes).build(tokenizer)
    config.update(remembered)
    save_model(path, ExLMForMaskedLM(config), tokenizer)
    return str(path)


@pytest.fixture(scope="module")
def chemist(corpus, tmp_path_factory):
    return save(
        tmp_path_factory.mktemp("chemist"),
        load_tokenizer(corpus),
        molecules=True,
        standardize="parent",
    )


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    tokenizer = train_text_tokenizer("wordpiece", SENTENCES, 300)
    return save(tmp_path_factory.mktemp("reader"), tokenizer, molecules=False)


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_a_text_model_embeds_text_and_molecules(reader, smiles_file, tmp_path):
    for path in (write(tmp_path / "a.txt", SENTENCES), str(smiles_file)):
        embed(reader, path, str(tmp_path / "a.npy"))
        assert np.isfinite(np.load(tmp_path / "a.npy")).all()


def test_a_model_of_molecules_refuses_text_unless_told_otherwise(chemist, tmp_path):
    path, out = write(tmp_path / "news.txt", SENTENCES), str(tmp_path / "a.npy")
    with pytest.raises(InputError, match="no row can be used, the first: row 1, value 'Ada lives"):
        embed(chemist, path, out)
    embed(chemist, path, out, molecules=False)
    assert np.isfinite(np.load(out)).all()
    path = write(tmp_path / "news.txt", ["CCO", *SENTENCES])
    with pytest.raises(InputError, match="row 2, value 'Ada lives in Rome'"):
        embed(chemist, path, out, on_invalid="error")


def test_a_pair_has_a_vector_of_its_own(tmp_path):
    table = pd.DataFrame({"text": ["CCO", "CCO"], "second": ["CCN", "CCC"]})
    table.to_csv(tmp_path / "a.csv", index=False)
    embed("molecules-5M", str(tmp_path / "a.csv"), str(tmp_path / "a.npy"))
    alone = np.load(tmp_path / "a.npy")
    embed("molecules-5M", str(tmp_path / "a.csv"), str(tmp_path / "b.npy"), pair_column="second")
    pairs = np.load(tmp_path / "b.npy")
    assert np.allclose(alone[0], alone[1]) and not np.allclose(pairs[0], pairs[1], atol=1e-3)


def test_embed_brings_molecules_into_one_spelling(corpus, tmp_path):
    model = save(tmp_path / "model", load_tokenizer(corpus), molecules=True)
    kekule = write(tmp_path / "kekule.smi", ["C1=CC=CC=C1O", "C1=CC=CC=C1N", "CCO"] * 4)
    aromatic = write(tmp_path / "aromatic.smi", ["Oc1ccccc1", "Nc1ccccc1", "CCO"] * 4)
    embed(model, kekule, str(tmp_path / "raw.npy"))
    embed(model, kekule, str(tmp_path / "same.npy"), standardize="canonical")
    embed(model, aromatic, str(tmp_path / "aromatic.npy"))
    vectors = np.load(tmp_path / "aromatic.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "same.npy"), vectors)
    assert np.abs(np.load(tmp_path / "raw.npy") - vectors).max() > 0.01


def test_records_and_mixed_cells_of_a_long_file_are_json_in_parquet(chemist, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "ROWS", 2)
    cells = [{"a": 1}, {"a": 2}, "b", None, [3], {"a": 0.5}]
    lines = [json.dumps({"smiles": "CCO", "cell": cell, "n": i}) for i, cell in enumerate(cells)]
    lines[-1] = lines[-1].replace('"n": 5', '"n": 5.5')
    embed(chemist, write(tmp_path / "a.jsonl", lines), str(tmp_path / "a.parquet"))
    frame = pd.read_parquet(tmp_path / "a.parquet")
    cells_in_parquet = ['{"a": 1}', '{"a": 2}', "b", "", "[3]", '{"a": 0.5}']
    assert frame["cell"].fillna("").tolist() == cells_in_parquet
    assert frame["n"].tolist() == [0, 1, 2, 3, 4, 5.5]
