"""`exlm verify` and `exlm doctor`."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from exlm.data.prepare import prepare
from exlm.describe.on_disk import verify
from exlm.errors import InputError
from exlm.integrations.share import share
from exlm.paper.report import report
from exlm.storage.manifest import MANIFEST, write_manifest
from exlm.storage.models import check_model
from exlm.tasks.baseline import baseline
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm_command.doctor import doctor
from tests.conftest import MOLECULES
from tests.test_their_tools import save


def test_verify_names_what_has_changed_in_any_directory_below(tmp_path, capsys):
    for name in ("run", "run/checkpoint-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(bytes(100))
        write_manifest(tmp_path / name, [tmp_path / name / "weights"])
    verify(str(tmp_path))
    assert capsys.readouterr().out.count("as it was written") == 2
    (tmp_path / "run/checkpoint-00000002/weights").write_bytes(bytes(99) + b"\1")
    with pytest.raises(InputError, match="1 of 2 directories are damaged"):
        verify(str(tmp_path))
    assert "checkpoint-00000002: weights does not match its SHA-256" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing in it can be checked"):
        verify(str(tmp_path / "empty"))


def test_doctor_names_versions(capsys):
    facts = doctor()
    assert facts["torch"].startswith("2.")
    printed = capsys.readouterr().out
    assert all(name in printed and value in printed for name, value in facts.items())


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a fine-tuning of a grid and a baseline, both completed with a second seed."""
    folder = tmp_path_factory.mktemp("runs")
    smiles = [f"{'C' * length}{core}" for length in range(1, 4) for core in MOLECULES]
    sizes = [len(text) + 0.5 for text in smiles]
    pd.DataFrame({"smiles": [*smiles, "no molecule"], "size": [*sizes, 1.5]}).to_csv(
        folder / "sizes.csv", index=False
    )
    save(folder / "model")
    task = TaskConfig(str(folder / "sizes.csv"), split="random", task_type="regression")
    for seeds in ([0], [0, 1]):
        finetune(
            str(folder / "runs/tuned"),
            str(folder / "model"),
            task,
            FinetuneConfig(epochs=1),
            seeds=seeds,
            grid={"learning_rate": [1e-3, 1e-4]},
        )
        baseline("ecfp-knn", task.dataset, str(folder / "runs/knn"), task, seeds=seeds)
    return folder / "runs"


def test_verify_compares_every_file_that_a_run_wrote(runs, capsys):
    verify(str(runs))
    assert "not recorded" not in capsys.readouterr().out
    written = [path for path in runs.rglob("[!.]*") if path.is_file()]
    names = {path.name for path in written}
    assert names >= {"results.json", "result.json", "predictions.csv", "invalid_rows.csv"}
    assert names >= {"train.smi", "recipe.yaml", "log.jsonl", "baseline.json", "tokenizer.json"}
    for path in written:
        if path.name in ("README.md", MANIFEST):
            continue
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with pytest.raises(InputError, match="1 of .* directories are damaged"):
            verify(str(runs))
        assert f"{path.name} has {len(content) + 1} bytes instead of" in capsys.readouterr().out
        path.write_bytes(content)
    (runs / "tuned/README.md").write_text("a card with more words")
    verify(str(runs))


def test_verify_names_what_nothing_is_known_of(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs/tuned/seen.csv").touch()
    (tmp_path / "runs/notes/of/mine").mkdir(parents=True)
    (tmp_path / "runs/notes/of/mine/one.txt").touch()
    # as an earlier version left them
    for manifest in (tmp_path / "runs/knn").rglob(MANIFEST):
        manifest.unlink()
    of_model = tmp_path / "runs/tuned" / MANIFEST
    of_model.write_text(json.dumps({"files": json.loads(of_model.read_text())["files"]}))
    verify(str(tmp_path / "runs"))
    names = "knn, notes, tuned/invalid_rows.csv, tuned/recipe.yaml, tuned/results.json, "
    assert f"not recorded: {names}tuned/seen.csv (no manifest" in capsys.readouterr().out


def test_a_result_that_was_changed_is_in_no_report_and_no_copy(runs, tmp_path, capsys):
    shutil.copytree(runs, tmp_path / "runs")
    results = tmp_path / "runs/tuned/results.json"
    results.write_text(results.read_text().replace('"best_seed": ', '"best_seed":  '))
    report([str(tmp_path / "runs")], str(tmp_path / "report"))
    assert "Left out: 1. Of these, damaged: 1." in capsys.readouterr().out
    left_out = (tmp_path / "report/tables/left-out.csv").read_text()
    assert "results.json does not match its SHA-256" in left_out
    with pytest.raises(InputError, match="results.json does not match its SHA-256"):
        share(str(tmp_path / "runs/tuned"), str(tmp_path / "copy"))
    # A model is what its own files say.
    check_model(str(tmp_path / "runs/tuned"))


def test_a_run_is_not_replaced_by_a_corpus(runs):
    with pytest.raises(InputError, match="it replaces a corpus only"):
        prepare([str(runs.parent / "sizes.csv")], str(runs / "knn"), "smiles", overwrite=True)
    assert (runs / "knn/results.json").is_file()
