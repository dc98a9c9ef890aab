"""From a file to vectors and predictions: what a model remembers of its texts, and what is kept of
the file."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from exlm import ExLMForMaskedLM, InputError
from exlm.data import output_files
from exlm.data.frames import read_file
from exlm.data.prepare import prepare
from exlm.data.tokenization import train_text_tokenizer
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks import embed as embed_module
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.finetune import finetune
from exlm.tasks.predict import predict
from exlm.tasks.rows.reading import TextReader
from tests.tables import make_table
from tests.tasks.tiny_models import predicted

SENTENCES = ["Ada lives in Rome", "the weather is fine today", "shares fell again on Monday"] * 5
ASPIRIN = ["CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O", "O=C(C)Oc1ccccc1C(=O)[O-].[Na+]"]
HYPER = FinetuneConfig(epochs=1, batch_size=16, learning_rate=1e-3, precision="fp32")


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
    with pytest.raises(InputError, match="row 1, value 'Ada lives in Rome'"):
        embed(chemist, path, out, molecules=True, on_invalid="error")


def test_no_usable_row_is_an_error_and_writes_nothing(chemist, tmp_path):
    path = write(tmp_path / "a.smi", ["C1CC", "C(C"])
    with pytest.raises(
        InputError, match="no row can be used, the first: row 1, value 'C1CC'.*unclosed ring"
    ):
        embed(chemist, path, str(tmp_path / "a.csv"))
    assert not (tmp_path / "a.csv").exists()
    embed(chemist, path, str(tmp_path / "a.csv"), on_invalid="keep")
    assert pd.read_csv(tmp_path / "a.csv")["embedding 31"].notna().all()


def test_embeddings_keep_ids_and_every_column(chemist, tmp_path):
    lines = ["key;SMILES;row", "007;CCO;x", "008;C1CC;y", "009;CCN;z"]
    path = write(tmp_path / "a.csv", lines)
    for name in ("a.parquet", "a2.csv", "a.npy"):
        embed(chemist, path, str(tmp_path / name))
    frame, table = (
        pd.read_parquet(tmp_path / "a.parquet"),
        pd.read_csv(tmp_path / "a2.csv", sep=";", dtype={"key": str}),
    )
    vectors = np.load(tmp_path / "a.npy")
    for found in (frame, table):
        assert found["key"].tolist() == ["007", "008", "009"] and found["row"].tolist() == [
            "x",
            "y",
            "z",
        ]
        assert found["exlm row"].tolist() == [0, 1, 2] and found["text"].tolist() == [
            "CCO",
            "C1CC",
            "CCN",
        ]
        assert "unclosed ring" in found["problem"][1]
    np.testing.assert_array_equal(np.stack(frame["embedding"]), vectors)
    np.testing.assert_allclose(
        table[[f"embedding {i}" for i in range(32)]].to_numpy(), vectors, rtol=1e-5
    )
    assert np.isnan(vectors).any(1).tolist() == [False, True, False]
    embed(chemist, str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), text_column="SMILES")
    again = pd.read_parquet(tmp_path / "b.parquet")
    for column in ("embedding", "exlm embedding"):
        np.testing.assert_array_equal(np.stack(again[column]), vectors)


def test_parquet_columns_of_categories_and_of_numbers_may_have_gaps(chemist, tmp_path):
    frame = pd.DataFrame({"smiles": pd.Categorical(["CCO", None, "CCN"])})
    frame["fold"] = pd.array([1, None, 3], dtype="Int64")
    frame["is_new"] = pd.array([True, None, False], dtype="boolean")
    frame.to_parquet(tmp_path / "a.parquet")
    embed(chemist, str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"))
    written = pq.read_table(tmp_path / "b.parquet").to_pydict()
    assert written["fold"] == [1, None, 3] and written["is_new"] == [True, None, False]
    assert [bool(problem) for problem in written["problem"]] == [False, True, False]


def test_spellings_of_a_molecule_have_one_vector_and_one_prediction(chemist, smiles_file, tmp_path):
    path = write(tmp_path / "aspirin.smi", ASPIRIN)
    embed(chemist, path, str(tmp_path / "a.npy"))
    vectors = np.load(tmp_path / "a.npy")
    assert (vectors == vectors[0]).all()
    smiles = smiles_file.read_text().split()[:60]
    table = write(tmp_path / "t.csv", ["smiles,logP", *(f"{s},{len(s) / 7}" for s in smiles)])
    for how, spread in ((None, 1), ("none", 3)):  # as the model remembers, and as they are written
        out = str(tmp_path / str(how))
        finetune(out, chemist, TaskConfig(table, split="random", standardize=how), HYPER, [0])
        assert (
            predicted(out, path, str(tmp_path / "p.csv"))["predicted logP"].round(9).nunique()
            == spread
        )


def test_mixtures_that_lose_an_organic_component_are_counted(
    chemist, smiles_file, tmp_path, capsys
):
    smiles = [*smiles_file.read_text().split()[:60], "CCCCCC.CCN", "CCN.Cl", "CC(=O)O.CC(=O)O"]
    table = write(tmp_path / "t.csv", ["smiles,logP", *(f"{s},{len(s) / 7}" for s in smiles)])
    prepare([table], str(tmp_path / "corpus"), workers=1, standardize="parent")
    embed(chemist, table, str(tmp_path / "a.npy"))
    finetune(str(tmp_path / "out"), chemist, TaskConfig(table, split="random"), HYPER, [0])
    predict(str(tmp_path / "out"), table, str(tmp_path / "p.csv"))
    printed = capsys.readouterr().out
    assert printed.count("1 mixtures reduced to one organic component") == 4


def test_tokens_outside_the_vocabulary_are_named_and_cost_no_row(tmp_path):
    tokenizer = train_text_tokenizer("wordpiece", ["CCO CCN"] * 9, 300)
    path = write(tmp_path / "a.csv", ["smiles", "CCO", "C[Xe]", "CC"])
    reader = TextReader(tokenizer, max_length=50, molecules=True)
    rows, _ = reader.read(make_table(read_file(path), path, None, []))
    assert rows.usable.all()
    assert rows.reported_rows()[["row", "reason", "action"]].values.tolist() == [
        [2, "not in the vocabulary: [ Xe ]", "kept"]
    ]
    with pytest.raises(InputError, match="row 2, value .*: not in the vocabulary"):
        rows.check(path, "error")


@pytest.mark.parametrize(("name", "token"), [("bpe", "</s>"), ("wordpiece", "[MASK]")])
def test_special_tokens_in_a_text_are_reported_and_change_nothing(name, token, tmp_path):
    """A tokenizer takes them for its own, which nobody may have meant."""
    tokenizer = train_text_tokenizer(name, ["good bad movie"] * 9, 300)
    path = write(tmp_path / "a.csv", ["text", "good movie", f"good {token} movie", "bad"])
    reader = TextReader(tokenizer, max_length=50, molecules=False)
    rows, tokens = reader.read(make_table(read_file(path), path, None, []))
    reason = f"it has special tokens of the model: {token}"
    assert rows.reported_rows()[["row", "reason", "action"]].values.tolist() == [
        [2, reason, "kept"]
    ]
    assert rows.counts("embedded", "none")["with special tokens of the model in their texts"] == 1
    with_token = tokenizer(f"good {token} movie")["input_ids"]
    assert tokens.examples[1]["input_ids"].tolist() == with_token
    with pytest.raises(InputError, match="row 2, value .*special tokens"):
        rows.check(path, "error")
    in_second_texts = replace(rows, texts=["bad"] * 3, pairs=rows.texts, warnings=[""] * 3)
    assert reader.read(in_second_texts)[0].warnings == ["", reason, ""]


def test_identifiers_are_no_labels_and_what_is_inferred_is_said(
    chemist, smiles_file, tmp_path, capsys
):
    smiles = smiles_file.read_text().split()[:40]
    table = pd.DataFrame(
        {"idx": range(40), "smiles": smiles, "entry": [f"m{i}" for i in range(40)]}
    )
    table.to_csv(tmp_path / "ids.csv", index=False)
    with pytest.raises(
        InputError, match="cannot tell the label columns; set label_columns, from: idx, entry"
    ):
        make_table(read_file(tmp_path / "ids.csv"), "ids.csv", None, None)
    table.assign(logP=np.arange(40) / 7, code=range(100, 140)).to_csv(
        tmp_path / "t.csv", index=False
    )
    hyper = FinetuneConfig(epochs=1, batch_size=16, learning_rate=1e-3, precision="fp32")
    finetune(
        str(tmp_path / "out"),
        chemist,
        TaskConfig(str(tmp_path / "t.csv"), split="random"),
        hyper,
        [0],
    )
    printed = capsys.readouterr().out
    assert (
        "task.text_column = smiles, task.label_columns = logP, task.task_type = regression"
        in printed
    )


def test_tables_without_a_header_line_can_be_learned_and_predicted(chemist, smiles_file, tmp_path):
    smiles = smiles_file.read_text().split()[:40]
    path = write(tmp_path / "t.csv", [f"{s},{len(s) / 7}" for s in smiles])
    task = TaskConfig(path, text_column="column 1", split="random", header=False)
    hyper = FinetuneConfig(epochs=1, batch_size=16, learning_rate=1e-3, precision="fp32")
    report = finetune(str(tmp_path / "out"), chemist, task, hyper, [0])
    assert sum(report["runs"][0]["split"].values()) == 40
    frame = predicted(str(tmp_path / "out"), path, str(tmp_path / "p.csv"), header=False)
    assert (
        list(frame)[:3] == ["column 1", "column 2", "predicted column 2"]
        and frame.iloc[:, 2].notna().all()
    )


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.npy"])
def test_embedding_goes_on_behind_the_parts_that_are_finished(
    chemist, smiles_file, tmp_path, monkeypatch, name
):
    """The columns and types of a part do not depend on its rows, and rows that cannot be used are
    numbered on."""
    records = [
        {"smiles": smiles, "n": i} for i, smiles in enumerate(smiles_file.read_text().split()[:20])
    ]
    records[13] |= {"smiles": "C1CC", "n": None, "note": "late"}
    path, whole, cut = (
        write(tmp_path / "in.jsonl", map(json.dumps, records)),
        tmp_path / name,
        tmp_path / f"cut-{name}",
    )
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 6)
    embed(chemist, path, str(whole))
    made, original = [], embed_module.embeddings

    def failing(*arguments):
        made.append(None)
        if len(made) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(embed_module, "embeddings", failing)
    with pytest.raises(KeyboardInterrupt):
        embed(chemist, path, str(cut))
    assert not cut.exists()
    embed(chemist, path, str(cut))
    # two of four parts were finished
    assert len(made) == 3 + 2 and cut.read_bytes() == whole.read_bytes()
    assert not [left.name for left in tmp_path.iterdir() if left.name.startswith(".")]
    if name == "a.npy":
        assert np.isnan(np.load(whole)).any(1).tolist() == [i == 13 for i in range(20)]
    else:
        frame = pd.read_parquet(whole) if name == "a.parquet" else pd.read_csv(whole)
        assert list(frame)[:6] == ["smiles", "n", "note", "row", "text", "problem"]
        assert (
            frame["row"].tolist() == list(range(20))
            and frame["problem"].fillna("").ne("").sum() == 1
        )
        assert frame["n"].isna().sum() == 1 and frame["note"][13] == "late"


def test_parts_made_with_other_options_are_not_used(chemist, smiles_file, tmp_path, monkeypatch):
    path = write(tmp_path / "in.smi", smiles_file.read_text().split()[:12])
    monkeypatch.setattr("exlm.data.output_files.PIECE_ROWS", 6)
    embed(chemist, path, str(tmp_path / "whole.npy"), "first")
    parts = iter([embed_module.embeddings])  # after the first, StopIteration
    with monkeypatch.context() as patched, pytest.raises(StopIteration):
        patched.setattr(embed_module, "embeddings", lambda *arguments: next(parts)(*arguments))
        embed(chemist, path, str(tmp_path / "a.npy"), "mean")
    embed(chemist, path, str(tmp_path / "a.npy"), "first")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


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


def test_texts_that_are_no_molecules_are_not_standardized(reader, tmp_path):
    sentences = write(tmp_path / "a.txt", SENTENCES)
    for standardize in ("canonical", "parent"):
        with pytest.raises(
            InputError, match=f"standardize={standardize} rewrites molecules; set mo"
        ):
            embed(reader, sentences, str(tmp_path / "a.npy"), standardize=standardize)
    embed(reader, sentences, str(tmp_path / "a.npy"), standardize="none")


def test_records_and_mixed_cells_of_a_long_file_are_json_in_parquet(chemist, tmp_path, monkeypatch):
    monkeypatch.setattr(output_files, "PIECE_ROWS", 2)
    cells = [{"a": 1}, {"a": 2}, "b", None, [3], {"a": 0.5}]
    lines = [json.dumps({"smiles": "CCO", "cell": cell, "n": i}) for i, cell in enumerate(cells)]
    lines[-1] = lines[-1].replace('"n": 5', '"n": 5.5')
    embed(chemist, write(tmp_path / "a.jsonl", lines), str(tmp_path / "a.parquet"))
    frame = pd.read_parquet(tmp_path / "a.parquet")
    cells_in_parquet = ['{"a": 1}', '{"a": 2}', "b", "", "[3]", '{"a": 0.5}']
    assert frame["cell"].fillna("").tolist() == cells_in_parquet
    assert frame["n"].tolist() == [0, 1, 2, 3, 4, 5.5]


def test_embed_brings_molecules_into_one_spelling_and_says_where_they_differ(
    corpus, tmp_path, capsys
):
    model = save(tmp_path / "model", load_tokenizer(corpus), molecules=True)
    kekule = write(tmp_path / "kekule.smi", ["C1=CC=CC=C1O", "C1=CC=CC=C1N", "CCO"] * 4)
    aromatic = write(tmp_path / "aromatic.smi", ["Oc1ccccc1", "Nc1ccccc1", "CCO"] * 4)
    embed(model, kekule, str(tmp_path / "raw.npy"))
    assert "8 of the first 12 molecules" in capsys.readouterr().err
    embed(model, kekule, str(tmp_path / "same.npy"), standardize="canonical")
    embed(model, aromatic, str(tmp_path / "aromatic.npy"))
    assert "spelled otherwise" not in capsys.readouterr().err
    vectors = np.load(tmp_path / "aromatic.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "same.npy"), vectors)
    assert np.abs(np.load(tmp_path / "raw.npy") - vectors).max() > 0.01


def test_the_column_cut_says_which_texts_were_cut(chemist, texts, tmp_path, monkeypatch):
    task = TaskConfig(
        str(texts / "train.csv"), str(texts / "valid.csv"), pair_column="second", max_length=40
    )
    out = tmp_path / "out"
    finetune(str(out), str(texts / "model"), task, HYPER, [0])
    path = str(tmp_path / "new.csv")
    frame = pd.DataFrame({"text": ["Ada lives in Rome.", "", "Ada lives in Rome. " * 30, "Bela."]})
    frame.assign(second="Where?").to_csv(path, index=False)
    # the first rows have none that is cut
    monkeypatch.setattr(output_files, "PIECE_ROWS", 2)
    expected = [False, False, True, False]
    for ending in ("csv", "parquet"):
        predictions = predict(str(out), path, str(tmp_path / f"predicted.{ending}"))
        vectors = tmp_path / f"embedded.{ending}"
        embed(str(texts / "model"), path, str(vectors), max_length=40)
        for written in (predictions, vectors):
            found = read_file(written).frame
            assert found["cut"].astype(str).tolist() == list(map(str, expected))
            assert not found["problem"][2]  # a cut text is used
    embed(chemist, write(tmp_path / "a.smi", ["CCO", "CCN"]), str(tmp_path / "m.parquet"))
    assert "cut" not in pd.read_parquet(tmp_path / "m.parquet")
