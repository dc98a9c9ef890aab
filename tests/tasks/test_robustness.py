"""What fine-tuning does with data and settings that go wrong half-way."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig

from exlm import InputError
from exlm.data.frames import FileRows
from exlm.errors import Diverged, TrainingStopped
from exlm.storage.models import weight_hash
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.loading import EncoderSource
from exlm.tasks.encoders.saved_task import (
    SavedTask,
    TextSettings,
    read_saved_task,
    read_text_settings,
)
from exlm.tasks.finetune import finetune
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.splits import FRACTIONS, random_split
from tests.conftest import read_frame
from tests.tables import make_table
from tests.tasks.tiny_models import predicted, save_family

FAST = FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-3, precision="fp32")
ROWS = [
    (f"Ada lives in {town}", label)
    for town, label in (("Rome", 1), ("Oslo", 0), ("Bern", 1), ("Kyiv", 0))
] * 4


@pytest.fixture
def files(tmp_path):
    for name in ("train", "valid"):
        frame = pd.DataFrame(ROWS, columns=["text", "label"])
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def run(bert, files, train=FAST, **options):
    task = TaskConfig(str(files / "train.csv"), str(files / "valid.csv"), **options.pop("task", {}))
    output = options.pop("output", "out")
    return finetune(str(files / output), str(bert), task, train, [0], **options)


def test_a_part_without_labels_is_refused_and_not_replaced(bert, files):
    frame = pd.read_csv(files / "valid.csv").assign(label="")
    frame.to_csv(files / "valid.csv", index=False)
    with pytest.raises(InputError, match="the valid part has no row that can be used"):
        run(bert, files)
    pd.DataFrame(ROWS, columns=["text", "label"]).to_csv(files / "valid.csv", index=False)
    frame.to_csv(files / "test.csv", index=False)
    with pytest.raises(InputError, match="the test part has no row that can be used"):
        run(bert, files, task={"test": str(files / "test.csv")})


def test_a_row_that_changes_its_part_changes_the_data(bert, files):
    run(bert, files)
    valid, train = pd.read_csv(files / "valid.csv"), pd.read_csv(files / "train.csv")
    pd.concat([train, valid[:4]]).to_csv(files / "train.csv", index=False)
    valid[4:].to_csv(files / "valid.csv", index=False)
    with pytest.raises(InputError, match=r"the content of its data has changed"):
        run(bert, files)


def test_a_refused_run_leaves_the_recipe_alone(bert, files):
    run(bert, files)
    before = (files / "out/recipe.yaml").read_text()
    with pytest.raises(InputError, match=r"other settings \(train\."):
        run(bert, files, replace(FAST, epochs=2))
    assert (files / "out/recipe.yaml").read_text() == before


def test_a_diverging_cell_is_the_worst_and_not_the_end(bert, files, capsys):
    report = run(bert, files, grid={"learning_rate": [1e30, 1e-3]})
    assert report["best"] == "learning_rate=0.001"
    assert "counts as the worst" in capsys.readouterr().out
    diverged = files / "out/learning_rate=1e+30"
    stopped = json.loads((diverged / "seed-0/result.json").read_text())["stopped"]
    assert "not finite" in stopped and "lower learning rate" in stopped
    assert "resume_anyway" not in stopped
    assert not list(diverged.rglob("*.safetensors"))
    assert run(bert, files, grid={"learning_rate": [1e30, 1e-3]})["best"] == report["best"]
    with pytest.raises((TrainingStopped, Diverged), match="lower learning rate"):
        run(bert, files, FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e30), output="alone")


def test_malformed_rows_stay_in_predictions_and_carriage_returns_in_texts(bert, files):
    run(bert, files)
    (files / "new.tsv").write_bytes(
        b"text\tlabel\nAda lives\rin Rome\t1\nonly text\nBela\t0\textra\nin Oslo\t0\n"
    )
    frame = predicted(str(files / "out"), str(files / "new.tsv"), str(files / "new.csv"))
    assert frame["text"].tolist() == ["Ada lives\rin Rome", "only text", "Bela", "in Oslo"]
    assert frame["problem"].tolist() == ["", "", "3 fields instead of 2", ""]
    assert frame["predicted label"].isna().tolist() == [False, False, True, False]


def test_bad_cells_are_named_by_part_and_row(bert, files):
    frame = pd.read_csv(files / "valid.csv")
    frame.loc[3, "label"] = 7
    frame.to_csv(files / "valid.csv", index=False)
    with pytest.raises(InputError, match="column 'label', valid row 4: '7' is no binary label"):
        run(bert, files, task={"task_type": "binary"})
    pd.DataFrame([*ROWS, ("", 1)], columns=["text", "label"]).to_csv(
        files / "valid.csv", index=False
    )
    run(bert, files)
    invalid = pd.read_csv(files / "out/invalid_rows.csv")
    left_out = invalid[invalid["action"] == "left out"]
    assert left_out[["part", "row", "reason"]].values.tolist() == [["valid", 17, "empty text"]]


def test_a_fine_tuned_model_gets_a_new_head(bert, files):
    run(bert, files)
    place = files / "out/seed-0"
    trained = load_file(place / "model.safetensors")["classifier.weight"]
    model = EncoderSource(str(place)).load(
        SavedTask(), FinetuneConfig(), {"num_labels": len(trained)}
    )
    assert not torch.equal(model.classifier.weight, trained)
    kept = load_file(place / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(model.bert.embeddings.word_embeddings.weight.data, kept)
    answering = EncoderSource(str(place)).load(
        SavedTask(task_type="question_answering"), FinetuneConfig(), {"num_labels": 2}
    )
    assert answering.qa_outputs.out_features == 2


def test_a_string_called_task_is_no_task_of_this_library():
    config = BertConfig(task="text-classification")
    assert read_saved_task(config) is None and read_text_settings(config) == TextSettings()


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path):
    place = save_family(tmp_path / "bert", "bert")
    settings = json.loads((place / "config.json").read_text()) | {"intermediate_size": 48}
    (place / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"has size \[32\], by config.json \[48\]"):
        EncoderSource(str(place)).load(SavedTask(), FinetuneConfig(), {})


def test_named_sets_bring_their_own_columns(bert, tmp_path):
    for name in ("rte", "squad2"):
        with pytest.raises(
            InputError, match=f"{name} brings its own .*; leave out task.text_column"
        ):
            finetune(str(tmp_path), str(bert), TaskConfig(name, text_column="text"), FAST, [0])


def test_both_namings_of_mrpc_side_by_side(tmp_path):
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    folder = tmp_path / "MRPC"
    folder.mkdir()
    for name, rows in (
        ("train.tsv", 1),
        ("dev.tsv", 2),
        ("msr_paraphrase_train.txt", 3),
        ("msr_paraphrase_test.txt", 4),
    ):
        (folder / name).write_text(header + "1\t1\t2\ta\tb\n" * rows)
    table = read_labelled_table(TaskConfig("mrpc", data_dir=str(tmp_path)))
    assert table.parts.tolist() == ["train", "valid", "valid"]


def test_changed_weights_of_any_format_are_noticed(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"one")
    before = weight_hash(str(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"two")
    assert weight_hash(str(tmp_path)) != before


def test_parts_with_gaps_and_other_columns_are_joined():
    left = pd.DataFrame({"text": ["a", "b"], "y": pd.array([1, None], dtype="Int64")})
    right = pd.DataFrame({"text": ["c"], "y": [0], "note": ["x"]})
    files = {"train": FileRows(left, {1: "of two widths"}), "valid": FileRows(right)}
    table = make_table(files, "a.parquet", "text", ["y"])
    assert table.frame["note"].tolist() == ["", "", "x"] and table.parts.tolist() == [
        "train",
        "train",
        "valid",
    ]
    assert table.frame["y"].isna().tolist() == [False, True, False]
    assert table.problems == ["", "of two widths", ""]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_what_stands_before_a_byte_that_is_not_utf8(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"text,y\n" + b"so,1\n" * 9000 + b"caf\xe9,1\n")
    with pytest.raises(InputError, match="has the byte 0xe9 after 'caf'"):
        read_frame(path)


def test_constant_predictions_do_not_end_a_run(bert, files):
    train = FinetuneConfig(epochs=1, batch_size=8, learning_rate=1e-30, precision="fp32")
    for name in ("train", "valid"):
        frame = pd.DataFrame({"text": ["the same text"] * 16, "score": np.linspace(0, 5, 16)})
        frame.to_csv(files / f"{name}.csv", index=False)
    report = run(bert, files, train, task={"metric": "spearman", "task_type": "regression"})
    assert np.isnan(report["valid"]["spearman"]["median"])


def test_no_seed_is_trained_if_another_one_cannot_be(bert, files):
    """The random split of one seed leaves valid with a single class."""
    frame = pd.DataFrame({"text": [f"{name} of {i}" for i in range(40) for name in ("Ada",)]})
    frame["label"] = [int(i < 6) for i in range(40)]
    frame.to_csv(files / "few.csv", index=False)
    rows = np.arange(40)
    splits = [random_split(rows, FRACTIONS, seed=seed, groups=rows)["valid"] for seed in range(30)]
    is_mixed = [len(set(frame["label"][rows])) == 2 for rows in splits]
    seeds = [is_mixed.index(True), is_mixed.index(False)]
    task = TaskConfig(str(files / "few.csv"), split="random", molecules=False)
    with pytest.raises(InputError, match="roc_auc of the valid part is not defined"):
        finetune(str(files / "out"), str(bert), task, FAST, seeds)
    assert not list((files / "out").glob("seed-*"))
