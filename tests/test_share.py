"""`exlm share`: a copy of a model without its data, which predicts the same."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from exlm import InputError
from exlm.describe.on_disk import info, verify
from exlm.integrations.share import share
from exlm.storage.files import write_json
from exlm.storage.manifest import MANIFEST
from exlm.tasks.baseline import baseline
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.tasks.predict import evaluate, predict
from tests.conftest import MOLECULES
from tests.test_their_tools import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder `secret` with a pre-trained model, a table, and a fine-tuning of a grid with two
    seeds."""
    folder = tmp_path_factory.mktemp("runs") / "secret"
    smiles = [f"{'C' * length}{core}" for length in range(1, 4) for core in MOLECULES]
    table = pd.DataFrame({"smiles": smiles, "size": [len(text) + 0.5 for text in smiles]})
    save(folder / "model")
    table.to_csv(folder / "sizes.csv", index=False)
    finetune(
        str(folder / "tuned"),
        str(folder / "model"),
        TaskConfig(str(folder / "sizes.csv"), split="random", task_type="regression"),
        FinetuneConfig(epochs=1),
        seeds=[0, 1],
        grid={"learning_rate": [1e-3, 1e-4]},
        license="cc-by-4.0",
    )
    return folder


@pytest.fixture(scope="module")
def shared(folder) -> Path:
    """A copy of the fine-tuning."""
    return share(str(folder / "tuned"), str(folder.parent / "shared"))


def test_a_copy_predicts_what_the_original_predicts(folder, shared):
    table = str(folder / "sizes.csv")
    for model in (folder / "tuned", shared):
        predict(str(model), table, str(folder / f"{model.name}.csv"), interval=0.8)
    original = pd.read_csv(folder / "tuned.csv")
    assert {"predicted size std", "lower size"} <= set(original)
    # the copy does not know what it was trained on
    copied = pd.read_csv(folder / "shared.csv")
    pd.testing.assert_frame_equal(copied, original.drop(columns="in_training"), check_exact=True)


def test_a_copy_is_described_and_verified_as_the_original(folder, shared, capsys):
    original = info(str(folder / "tuned"))
    assert "regression of size" in original and "of 2 seeds" in original
    assert info(str(shared)).replace(str(shared), str(folder / "tuned")) == original
    verify(str(shared))
    assert capsys.readouterr().out.count("as it was written") == 3


def test_a_copy_has_no_rows_and_no_folders(folder, shared):
    copied = {path.name for path in shared.rglob("*") if path.is_file()}
    manifest = json.loads((shared / MANIFEST).read_text())
    of_model = {Path(name).name for name in manifest["files"]}
    assert copied == of_model | {MANIFEST, "README.md", "results.json"}
    for path in shared.rglob("*.[jm]*"):
        assert "secret" not in path.read_text()


def test_paths_that_are_not_here_lose_their_folders_too(folder, tmp_path):
    """As those of a fine-tuning that was run in another folder."""
    source = tmp_path / "tuned"
    shutil.copytree(folder / "tuned", source)
    report = json.loads((source / "results.json").read_text())
    checksums = {"secret/train/a.csv": "1", "secret/test/a.csv": "2", "secret/b.csv": "3"}
    for run in report["runs"]:
        run["file_sha256"] = checksums
        run["settings"]["task"] |= {"dataset": "secret/x: y/a.csv", "split": "file:secret/s.txt"}
    write_json(source / "results.json", report)
    manifest = json.loads((source / MANIFEST).read_text())
    del manifest["run_files"]["results.json"]  # as it was written
    write_json(source / MANIFEST, manifest)
    copy = share(str(source), str(tmp_path / "copy"))
    text = (copy / "results.json").read_text()
    assert "secret" not in text and '"file:s.txt"' in text
    shared_checksums = json.loads(text)["runs"][0]["file_sha256"]
    assert shared_checksums == {"a.csv": "1", "a.csv (2)": "2", "b.csv": "3"}


def test_a_copy_does_not_know_what_it_was_trained_on(folder, shared, capsys):
    table = str(folder / "sizes.csv")
    with pytest.raises(InputError, match=r"train\.smi does not exist, so the molecules"):
        predict(str(shared), table, str(folder / "distance.csv"), distance=True)
    report = evaluate(str(shared), table, str(folder / "evaluation.json"), resamples=0)
    assert report["in_training"] is None
    assert capsys.readouterr().err.count("it cannot be told which rows were trained on") == 1


def test_what_is_left_out_is_said(folder, tmp_path, capsys):
    share(str(folder / "tuned"), str(tmp_path / "copy"))
    out = capsys.readouterr().out
    assert "models: 3" in out and "results.json" in out
    left_out = out.split("left out: ")[1]
    assert "learning_rate=" in left_out and "train.smi" in left_out and "1_Pooling" not in left_out
    share(str(folder / "model"), str(tmp_path / "model"))
    assert "models: 1" in capsys.readouterr().out


def test_what_cannot_be_shared(folder, tmp_path):
    output = str(tmp_path / "baseline")
    task = TaskConfig("", split="random")
    baseline("ecfp-knn", str(folder / "sizes.csv"), output, task, seeds=[0])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for model, directory, message in (
        (tmp_path / "baseline", "copy", "is a baseline, which is made of the rows"),
        (folder / "tuned", "full", "full exists; choose another or empty it"),
        (tmp_path / "full", "copy", "is not a model directory"),
    ):
        with pytest.raises(InputError, match=message):
            share(str(model), str(tmp_path / directory))
    assert not (tmp_path / "copy").exists()
