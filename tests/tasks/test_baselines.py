"""Baselines as a user runs them, on tables made here; programs of their own are replaced by small
ones."""

import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
import unicodedata
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import yaml

from exlm import InputError
from exlm.describe.on_disk import info
from exlm.errors import Interrupted, TrainingStopped
from exlm.paper.report import report
from exlm.tasks.baseline import baseline
from exlm.tasks.baselines import BASELINES, estimators, programs
from exlm.tasks.baselines.estimators import ecfp
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.finetune import finetune
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.labels.scores import score_predictions
from exlm.tasks.predict import evaluate, predict
from exlm_command import main
from tests.tasks.tiny_models import predicted
from tests.test_their_tools import save

MOLECULES = [f"{'C' * n}{end}" for n in range(1, 31) for end in ("O", "N", "c1ccccc1", "C(=O)O")]
TASKS = {
    "binary": ["amine"],
    "multilabel": ["amine", "ring"],
    "multiclass": ["group"],
    "regression": ["weight"],
}
PROGRAM = """
import csv, sys
tables = [list(csv.reader(open(name)))[1:] for name in sys.argv[1:4]]
train, valid, everything = tables
target, kind, outputs, seed, epochs = sys.argv[4:]
print(epochs)
assert all(any(cell for cell in row[1:]) for row in train + valid), "a row without label"
learned = {row[0] for row in train + valid}
for row in everything:
    assert row[0] in learned or not any(row[1:]), "a label to be predicted is shown"
mean = sum(float(row[1]) for row in train) / len(train)
with open(target, "w") as file:
    for row in everything:
        file.write(",".join([str(mean)] * int(outputs)) + "\\n")
"""


@pytest.fixture(autouse=True)
def _small_forests(monkeypatch):
    monkeypatch.setattr(estimators, "TREES", 50)


@pytest.fixture
def table(tmp_path):
    """Molecules with labels of every kind, some missing, and a string that is no molecule."""
    groups = ["alcohol", "amine", "benzene", "acid"] * 30
    frame = pd.DataFrame({"smiles": MOLECULES, "group": groups})
    frame["amine"] = (frame["group"] == "amine").astype(int)
    frame["ring"] = (frame["group"] == "benzene").astype(float)
    frame.loc[::7, "ring"] = np.nan
    frame["weight"] = [float(len(smiles)) for smiles in MOLECULES]
    frame.loc[len(frame)] = ["C1CC", "amine", 1, 0.0, 1.0]
    path = tmp_path / "bace.csv"
    frame.to_csv(path, index=False)
    return path


CHEMPROP = """
import csv, os, sys
options = sys.argv[3:]
assert sys.argv[1:3] == ["train", "-q"] and options[options.index("--task-type") + 1] == {kind!r}
everything = options[options.index("--data-path") + 3]
classes = 4 if "--multiclass-num-classes" in options else None
os.makedirs("model_0")
with open(everything) as table, open("model_0/test_predictions.csv", "w", newline="") as file:
    writer = csv.writer(file)
    for smiles, *labels in csv.reader(table):
        writer.writerow([smiles, ",".join("0123") if classes else len(smiles)])
"""


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """Environments of programs that are there already."""
    monkeypatch.setenv("EXLM_BASELINES", str(tmp_path / "environments"))
    for name in ("torch-geometric-2.8.1", "chemprop-2.2.4"):
        python = tmp_path / "environments" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        (python.parents[1] / programs.FINISHED).touch()


@pytest.fixture
def program(monkeypatch, tmp_path, environments):
    """Lets AttentiveFP be PROGRAM."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    monkeypatch.setattr(programs, "ATTENTIVEFP_SCRIPT", script)


def run(table, kind, name="ecfp-rf", seeds=(0,), name_of="out", **changes):
    task = TaskConfig("", label_columns=TASKS[kind], task_type=kind, split="random")
    return baseline(name, str(table), str(table.parent / name_of), task, list(seeds), **changes)


@pytest.mark.parametrize("name", ["ecfp-rf", "ecfp-knn", "ecfp-lr"])
@pytest.mark.parametrize(
    "kind,metric,least",
    [("binary", "roc_auc", 0.95), ("multilabel", "roc_auc", 0.95), ("multiclass", "accuracy", 0.9)]
    + [("regression", "spearman", 0.5)],
)
def test_fingerprints_tell_functional_groups(table, name, kind, metric, least):
    assert run(table, kind, name)["test"][metric]["mean"] >= least


@pytest.mark.parametrize(
    "kind,columns", [("regression", ["score"]), ("multiclass", ["label"]), ("binary", ["good"])]
)
def test_words_tell_classes_and_scores_of_texts_and_pairs(tmp_path, kind, columns):
    words = ["good", "fine", "bad", "awful"] * 30
    frame = pd.DataFrame(
        {"text": [f"it was {word} no {i % 9}" for i, word in enumerate(words)], "second": words}
    )
    frame["good"] = [int(word in ("good", "fine")) for word in words]
    frame["label"] = words
    frame["score"] = [float(len(word)) for word in words]
    path = str(tmp_path / "texts.csv")
    frame.to_csv(path, index=False)
    for pair in (None, "second"):
        task = TaskConfig(
            "", text_column="text", pair_column=pair, label_columns=columns, task_type=kind
        )
        output = str(tmp_path / f"out-{pair}")
        results = baseline("tfidf-lr", path, output, task, [0])
        scores = evaluate(output, path, str(tmp_path / "e.json"), 0)
        assert scores["in_training"] == results["runs"][0]["split"]["train"]
        metric = {"regression": "pearson", "multiclass": "accuracy", "binary": "roc_auc"}[kind]
        assert results["test"][metric]["mean"] > 0.95


def test_letters_tell_classes_of_texts_that_are_one_word(tmp_path):
    """As proteins are; no word of the train part is in the test part."""
    rng = np.random.default_rng(0)
    rows = [("".join(rng.choice(list("KRAG" if i % 2 else "DEAG"), 30)), i % 2) for i in range(120)]
    path = tmp_path / "proteins.csv"
    pd.DataFrame(rows, columns=["sequence", "basic"]).to_csv(path, index=False)
    results = baseline("tfidf-lr", str(path), str(tmp_path / "out"), TaskConfig(""), [0])
    assert results["test"]["roc_auc"]["mean"] > 0.95


def test_an_accent_is_read_however_a_file_encodes_it(tmp_path):
    words = ["niñez", "lumbágo", "fiébre", "tos", "náusea", "cefaléa"]
    texts = [f"{word} {other} {i}" for i in range(4) for word in words for other in words[::2]]
    labels = [int(text.startswith(("niñez", "tos", "fié"))) for text in texts]
    for form in ("NFC", "NFD"):
        encoded = [unicodedata.normalize(form, text) for text in texts]
        pd.DataFrame({"text": encoded, "y": labels}).to_csv(tmp_path / f"{form}.csv", index=False)
    baseline("tfidf-lr", str(tmp_path / "NFC.csv"), str(tmp_path / "out"), TaskConfig(""), [0])
    columns = [
        predicted(str(tmp_path / "out"), str(tmp_path / f"{form}.csv"), str(tmp_path / "p.csv"))
        for form in ("NFC", "NFD")
    ]
    assert columns[0]["predicted y"].equals(columns[1]["predicted y"])
    assert columns[0]["predicted y"].nunique() > 5


def test_spellings_of_a_protein_are_in_one_part(tmp_path):
    rng = np.random.default_rng(0)
    proteins = ["".join(rng.choice(list("KRAGDE"), 30)) for _ in range(30)]
    rows = [(i, text, i % 7) for i, p in enumerate(proteins) for text in (p, p.lower(), f"{p}*")]
    path = tmp_path / "proteins.csv"
    pd.DataFrame(rows, columns=["id", "sequence", "y"]).to_csv(path, index=False)
    task = TaskConfig("", label_columns=["y"], task_type="regression", split="random")
    baseline("tfidf-lr", str(path), str(tmp_path / "out"), task, [0])
    frame = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")
    assert (frame.groupby("id")["split"].nunique() == 1).all() and frame["split"].nunique() == 3
    # and are read alike
    assert (frame.groupby("id")["predicted y"].nunique() == 1).all()
    assert frame["predicted y"].nunique() > 20


def test_what_is_no_protein_is_left_out_as_by_a_model_of_proteins(tmp_path):
    rng = np.random.default_rng(0)
    proteins = ["".join(rng.choice(list("KRAGDE"), 20)) for _ in range(40)]
    frame = pd.DataFrame({"sequence": [*proteins, "AC1GT"], "y": np.arange(41) % 7})
    path, out = str(tmp_path / "proteins.csv"), str(tmp_path / "out")
    frame.to_csv(path, index=False)
    task = TaskConfig("", label_columns=["y"], task_type="regression", split="random")
    results = baseline("tfidf-lr", path, out, task, [0])
    reason = "not in the vocabulary: 1"
    assert results["runs"][0]["left_out"] == 1
    invalid = pd.read_csv(tmp_path / "out/invalid_rows.csv")
    assert invalid[["row", "reason"]].values.tolist() == [[41, reason]]
    assert predicted(out, path, str(tmp_path / "p.csv"))["problem"].tolist() == [*[""] * 40, reason]
    kept = predicted(out, path, str(tmp_path / "q.csv"), on_invalid="keep")
    assert kept["predicted y"].notna().all()
    # a protein of the training is known in any spelling
    frame.assign(sequence=frame["sequence"].str.lower()).to_csv(tmp_path / "small.csv", index=False)
    spelled = predicted(out, str(tmp_path / "small.csv"), str(tmp_path / "s.csv"))
    assert spelled["in_training"].sum() == results["runs"][0]["split"]["train"]


def test_words_that_are_no_proteins_are_all_used(tmp_path):
    path = tmp_path / "words.csv"
    words = [f"{word}{i}" for i in range(10) for word in ("good", "fine", "bad", "awful")]
    pd.DataFrame({"text": words, "good": [0, 0, 1, 1] * 10}).to_csv(path, index=False)
    results = baseline("tfidf-lr", str(path), str(tmp_path / "out"), TaskConfig(""), [0])
    assert results["runs"][0]["left_out"] == 0


def test_marks_that_contradict_each_other_are_reported(table, capsys):
    frame = pd.read_csv(table)
    frame.loc[0, "smiles"] = "C/C=C(/C)/O"
    frame.to_csv(table, index=False)
    run(table, "regression", "ecfp-knn")
    assert "rows kept: 1 (see invalid_rows.csv), the first: row 1" in capsys.readouterr().out
    reasons = pd.read_csv(table.parent / "out/invalid_rows.csv")["reason"]
    assert "contradict each other" in reasons[0]


def test_a_baseline_that_draws_nothing_is_fitted_once_to_one_split(table, monkeypatch):
    frame = pd.read_csv(table)
    frame["part"] = np.resize(["train", "train", "valid", "test"], len(frame))
    frame.to_csv(table, index=False)
    fits = []

    def fit(inputs):
        fits.append(inputs.seed)
        return entry.fit_predict(inputs)

    for name, split, fitted in [
        ("ecfp-knn", "column:part", [0]),
        ("ecfp-knn", "random", [0, 1]),
        ("ecfp-rf", "column:part", [0, 1]),
    ]:
        fits.clear()
        entry = BASELINES[name]
        monkeypatch.setitem(BASELINES, name, replace(entry, fit_predict=fit))
        task = TaskConfig("", label_columns=["weight"], task_type="regression", split=split)
        output = table.parent / f"{name}-{split[:6]}"
        results = baseline(name, str(table), str(output), task, [0, 1])
        assert fits == fitted
        first, second = (run["scores"] for run in results["runs"])
        assert (first == second) == (len(fitted) == 1)
        monkeypatch.undo()


def test_results_and_predictions_agree_and_a_second_run_adds_seeds(table, capsys):
    run(table, "multilabel")
    first = (table.parent / "out/seed-0/result.json").stat().st_mtime_ns
    results = run(table, "multilabel", seeds=(0, 1))
    assert (table.parent / "out/seed-0/result.json").stat().st_mtime_ns == first
    assert json.loads((table.parent / "out/results.json").read_text())["test"] == results["test"]
    fewest = results["counts"]["test"]["fewest_of_a_label"]["min"]
    most = results["counts"]["test"]["most_of_a_label"]["max"]
    assert f" rows, {fewest:.0f} to {most:.0f} with each label; 95%" in capsys.readouterr().out
    frame = pd.read_csv(table.parent / "out/seed-1/predictions.csv")
    assert frame["problem"].notna().tolist() == [False] * 120 + [True]
    test = frame[frame["split"] == "test"]
    values = test[["predicted amine", "predicted ring"]].to_numpy()
    scores = score_predictions(
        LABEL_TYPES["multilabel"], test[["amine", "ring"]].to_numpy(), values
    )
    assert scores == results["runs"][1]["scores"]["test"]
    report = evaluate(str(table.parent / "out"), str(table), resamples=0)
    for label in ("amine", "ring"):
        usable = frame[frame["problem"].isna()]
        assert report["labels"][label]["positives"] == (usable[label] == 1).sum()
    assert pd.read_csv(table.parent / "out/invalid_rows.csv")["value"].tolist() == ["C1CC"]
    assert "baseline: ecfp-rf" in info(str(table.parent / "out"))
    assert not list((table.parent / "out").rglob("README.md"))  # a card is for a model
    with pytest.raises(InputError, match="other settings"):
        run(table, "multilabel", "ecfp-knn")


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_a_finished_baseline_that_is_repeated_changes_no_file(table, kind, monkeypatch):
    def contents():
        files = [path for path in (table.parent / "out").rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in files}

    run(table, kind, seeds=(0, 1))
    (table.parent / "out/README.md").write_text("my own words")  # no card, as there is no model
    before = contents()
    monkeypatch.setattr("exlm.tasks.grid.machine", lambda device: {"processor": "another"})
    run(table, kind, seeds=(0, 1))
    assert contents() == before


def test_baselines_of_tables_with_similar_names_have_directories_of_their_own(table, monkeypatch):
    monkeypatch.chdir(table.parent)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    task = TaskConfig("", label_columns=["weight"], task_type="regression", split="random")
    for name in ("my.v1.csv", "my.v2.csv", "BACE.csv"):
        table.with_name(name).write_bytes(table.read_bytes())
        results = baseline("ecfp-knn", name, task=task, seeds=[0])
        assert results["machine"]["device"] == "cpu"
    directories = {path.name for path in (table.parent / "runs/baselines/ecfp-knn").iterdir()}
    assert directories == {"my.v1", "my.v2", "bace"}


def test_a_recipe_runs_again_and_has_the_whole_names_of_columns(table, monkeypatch):
    frame = pd.read_csv(table).rename(columns={"weight": "Ki, nM"})
    frame.to_csv(table, index=False)
    monkeypatch.chdir(table.parent)
    options = ["--label_columns", "Ki, nM", "--task_type", "regression", "--split", "random"]
    main(["baseline", "ecfp-knn", "bace.csv", *options, "--seeds", "0", "--output", "a"])
    main(["baseline", "--config", "a/recipe.yaml", "--output", "b"])
    first, again = (json.loads((table.parent / out / "results.json").read_text()) for out in "ab")
    assert first["settings"] == again["settings"] and first["test"] == again["test"]
    assert first["settings"]["task"]["label_columns"] == ["Ki, nM"]
    recipe = yaml.safe_load((table.parent / "b" / "recipe.yaml").read_text())
    assert recipe["task"]["label_columns"] == ["Ki, nM"]


def test_a_result_has_the_checksum_of_its_file_which_is_no_identity(table):
    result = run(table, "regression", "ecfp-knn")
    before = hashlib.sha256(table.read_bytes()).hexdigest()
    assert result["runs"][0]["file_sha256"] == {str(table): before}
    facts = info(str(table.parent / "out"))
    assert f"- SHA-256 of the file bace.csv: {before}" in facts
    assert f"- checksum of the rows as read: {result['settings']['data_sha256']}" in facts
    table.write_bytes(table.read_bytes().replace(b"\n", b"\r\n"))  # the same rows
    assert run(table, "regression", "ecfp-knn")["runs"] == result["runs"]


def test_several_columns_of_the_same_two_words_are_multilabel(table):
    frame = pd.read_csv(table)
    for name in ("amine", "ring"):
        frame[name] = frame[name].map({0: "neg", 1: "pos"})
    frame.to_csv(table, index=False)
    out = str(table.parent / "out")
    task = TaskConfig("", label_columns=["amine", "ring"], split="random", positive="pos")
    baseline("ecfp-knn", str(table), out, task, [0])
    scores = evaluate(out, str(table), str(table.parent / "e.json"), resamples=0)
    assert scores["labels"]["amine"]["positives"] == 30
    one_column = TaskConfig("", label_columns=["amine"], task_type="binary")
    for without_positive in (replace(task, positive=None), one_column):
        with pytest.raises(InputError, match="the one that is label 1 with task.positive"):
            baseline("ecfp-knn", str(table), out + "2", without_positive, [0])


@pytest.mark.parametrize(
    "name,kind", [("ecfp-rf", "binary"), ("ecfp-knn", "multiclass"), ("ecfp-lr", "regression")]
)
def test_predict_and_evaluate_take_a_baseline(table, name, kind, capsys):
    run(table, kind, name, seeds=(0, 1))
    out = table.parent / "out"
    recorded = pd.read_csv(out / "seed-1/predictions.csv")
    predicted = pd.read_csv(predict(str(out / "seed-1"), str(table), str(table.parent / "p.csv")))
    trained_on = len((out / "seed-1/train.smi").read_text().split())
    warning = f"warning: {trained_on} of the labelled rows have a text or molecule of the training"
    assert warning in capsys.readouterr().err
    columns = [column for column in recorded if column.startswith("predicted ")]
    pd.testing.assert_frame_equal(predicted[columns], recorded[columns], rtol=1e-7)
    assert predicted["problem"].iloc[-1] == "not a SMILES string: unclosed ring"
    report = evaluate(str(out), str(table), str(table.parent / "e.json"), resamples=0)
    assert list(report["metrics"]) == ["ensemble", "seed-0", "seed-1"]
    one = evaluate(str(out / "seed-0"), str(table), str(table.parent / "e.json"), resamples=0)
    assert one["in_training"] == len((out / "seed-0/train.smi").read_text().split())
    with pytest.raises(InputError, match="interval needs .baselines never do"):
        predict(str(out), str(table), str(table.parent / "p.csv"), interval=0.9)


def test_no_file_names_a_program_or_an_unknown_baseline(table, program, tmp_path):
    run(table, "binary", "attentivefp")
    path = table.parent / "out/seed-0/baseline.json"
    content = json.loads(path.read_text())
    python = tmp_path / "evil/torch-geometric-2.8.1/bin/python"
    python.parent.mkdir(parents=True)
    (python.parents[1] / programs.FINISHED).touch()
    python.write_text(f"#!/bin/sh\ntouch {tmp_path / 'was-run'}\n")
    python.chmod(0o755)
    # as earlier versions wrote it
    path.write_text(json.dumps({**content, "environments": str(tmp_path / "evil")}))
    predicted(str(table.parent / "out"), str(table), str(tmp_path / "p.csv"))
    assert not (tmp_path / "was-run").exists()
    path.write_text(json.dumps({**content, "name": "none"}))
    with pytest.raises(InputError, match="baseline.json is damaged, or of another version"):
        predict(str(table.parent / "out"), str(table), str(tmp_path / "p.csv"))


def test_neighbours_copy_the_training_fingerprints_once(monkeypatch):
    copies = []

    class Bits(np.ndarray):
        def __getitem__(self, key):
            copies.append(key)
            return np.asarray(super().__getitem__(key))

    bits = np.eye(4, dtype=np.uint8).view(Bits)
    monkeypatch.setattr(estimators, "ecfp", lambda texts: bits)
    monkeypatch.setattr(estimators, "BLOCK", 1)
    train = np.arange(2)
    inputs = SimpleNamespace(
        texts=[""] * 4,
        labels=np.ones((4, 1)),
        label_type=LABEL_TYPES["regression"],
        train=train,
        outputs=1,
    )
    assert estimators.fit_neighbours(inputs).tolist() == [[1.0]] * 4
    assert sum(key is train for key in copies) == 1


def test_pairs_of_molecules_have_no_baseline(table, tmp_path):
    frame = pd.read_csv(table).assign(other="CCO")
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    task = TaskConfig("", label_columns=["amine"], pair_column="other", text_column="smiles")
    with pytest.raises(InputError, match="reads one molecule of a row"):
        baseline("ecfp-rf", str(tmp_path / "pairs.csv"), str(tmp_path / "out"), task, [0])


def test_a_split_is_that_of_a_fine_tuning_where_rdkit_cannot_read_a_molecule(table, tmp_path):
    model = save(tmp_path / "model")
    task = TaskConfig(str(table), label_columns=["weight"], task_type="regression", split="random")
    hyper = FinetuneConfig(epochs=1, batch_size=16, learning_rate=1e-3)
    tuned = finetune(str(tmp_path / "tuned"), model, task, hyper, [0])
    simple = run(table, "regression", "ecfp-knn")
    for entry in ("split", "split_sha256", "left_out"):
        assert tuned["runs"][0][entry] == simple["runs"][0][entry]


def test_a_test_file_alone_is_scored_and_valid_is_a_tenth_of_train(table, capsys):
    frame = pd.read_csv(table)
    frame[:100].to_csv(table, index=False)
    frame[95:].to_csv(table.parent / "test.csv", index=False)
    task = TaskConfig("", test=str(table.parent / "test.csv"), label_columns=["amine"])
    results = baseline("ecfp-knn", str(table), str(table.parent / "out"), task, [0])
    assert results["runs"][0]["split"] == {"train": 90, "valid": 10, "test": 25}
    printed = capsys.readouterr()
    assert "seed 0: 90 train, 10 valid, 25 test (split parts)" in printed.out
    assert re.search("warning: [1-5] of 25 test rows have a text or molecule of", printed.err)
    predictions = pd.read_csv(table.parent / "out/seed-0/predictions.csv")
    assert predictions["split"].value_counts().to_dict() == {"test": 25, "valid": 10}


def test_a_training_writes_the_columns_of_predict_and_keeps_empty_ones(table):
    frame = pd.read_csv(table)
    frame["comment"] = "measured twice"
    frame[:100].to_csv(table, index=False)
    test, out = table.parent / "test.csv", table.parent / "out"
    frame[100:].assign(comment="").to_csv(test, index=False)
    task = TaskConfig("", test=str(test), label_columns=["amine"])
    baseline("ecfp-knn", str(table), str(out), task, [0])
    written = pd.read_csv(out / "seed-0/predictions.csv").query("split == 'test'")
    again = predicted(str(out), str(test), str(table.parent / "again.csv"))
    assert written.columns.drop("split").tolist() == again.columns.tolist()
    assert {"comment", "predicted class", "confidence"} < set(written)
    assert written["comment"].isna().all()
    usable = again[again["problem"] == ""]  # the last row is no molecule
    for name in ("predicted class", "confidence"):
        assert written[name].tolist() == usable[name].tolist()


@pytest.mark.parametrize("name", ["ecfp-rf", "ecfp-knn", "ecfp-lr"])
def test_labels_of_the_test_part_change_no_prediction(table, name):
    run(table, "regression", name)
    before = pd.read_csv(table.parent / "out/seed-0/predictions.csv")
    frame = pd.read_csv(table)
    frame.loc[before["split"] == "test", "weight"] += 100.0
    changed = table.parent / "changed" / "bace.csv"
    changed.parent.mkdir()
    frame.to_csv(changed, index=False)
    run(changed, "regression", name)
    after = pd.read_csv(changed.parent / "out/seed-0/predictions.csv")
    assert after["predicted weight"].equals(before["predicted weight"])


def test_the_nearest_neighbours_are_weighted_by_their_similarity(tmp_path):
    frame = pd.DataFrame(
        {"smiles": ["CCO", "CCN", "c1ccccc1", "CCO", "CCCO"], "value": [1.0, 3.0, 9.0, 1.0, 1.0]}
    )
    frame["part"] = ["train", "train", "train", "valid", "test"]
    frame.loc[5] = ["CCCl", 2.5, "valid"]
    frame.to_csv(tmp_path / "few.csv", index=False)
    task = TaskConfig("", label_columns=["value"], task_type="regression", split="column:part")
    baseline("ecfp-knn", str(tmp_path / "few.csv"), str(tmp_path / "out"), task, [0])
    predicted = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")["predicted value"]
    # Of 6 bits, CCO shares 3 with CCN (Tanimoto similarity 3/9) and none with benzene.
    assert predicted[0] == pytest.approx((1 + 3 / 3) / (1 + 1 / 3), rel=1e-4)
    assert predicted[0] == predicted[3]


def test_a_setting_that_was_inferred_may_be_written_later(tmp_path):
    """And one that was written may be left out."""
    frame = pd.DataFrame({"smiles": ["C" * n + "O" for n in range(1, 41)]})
    frame["value"] = frame["smiles"].str.len() / 2
    frame["kind"] = ["short" if n < 20 else "long" for n in range(40)]
    frame.to_csv(tmp_path / "a.csv", index=False)
    inferred = TaskConfig("", split="random")
    written = replace(
        inferred,
        text_column="smiles",
        label_columns=["value"],
        task_type="regression",
        metric="rmse",
    )
    for name, first, second in (("out", inferred, written), ("other", written, inferred)):
        result = tmp_path / name / "seed-0/result.json"
        baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / name), first, [0])
        time_of_first = result.stat().st_mtime_ns
        baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / name), second, [0])
        assert result.stat().st_mtime_ns == time_of_first
    another = TaskConfig("", split="random", label_columns=["kind"])
    with pytest.raises(InputError, match=r"other settings \(task"):
        baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / "out"), another, [0])
    # Earlier versions did not record what they inferred.
    result = tmp_path / "out/seed-0/result.json"
    content = json.loads(result.read_text())
    del content["settings"]["inferred"]
    result.write_text(json.dumps(content))
    baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / "out"), inferred, [0])
    assert json.loads(result.read_text()) == content
    with pytest.raises(InputError, match=r"other settings \(task"):
        baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / "out"), another, [0])


def test_predictions_are_written_as_the_table_is(tmp_path):
    """With semicolons and decimal commas, by the training and by predict."""
    frame = pd.DataFrame({"smiles": ["C" * n + "O" for n in range(1, 41)]})
    frame["value"] = frame["smiles"].str.len() / 2
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";", decimal=",")
    out = str(tmp_path / "out")
    baseline("ecfp-knn", str(tmp_path / "a.csv"), out, TaskConfig("", split="random"), [0])
    for file in (f"{out}/seed-0/predictions.csv", predict(out, str(tmp_path / "a.csv"))):
        written = pd.read_csv(file, sep=";", decimal=",")
        assert written["value"].tolist() == frame["value"].tolist()
        assert written["predicted value"].dtype == float


def test_a_label_that_train_lacks_is_not_learned(table):
    frame = pd.read_csv(table)
    frame["part"] = (["train"] * 8 + ["valid", "test"]) * 12 + ["train"]
    frame.loc[frame["part"] == "train", "ring"] = np.nan
    frame.to_csv(table, index=False)
    task = TaskConfig(
        "", label_columns=TASKS["multilabel"], task_type="multilabel", split="column:part"
    )
    baseline("ecfp-knn", str(table), str(table.parent / "out"), task, [0])
    frame = pd.read_csv(table.parent / "out/seed-0/predictions.csv")
    assert (frame["predicted ring"][:120] == 0.5).all() and frame["predicted amine"].nunique() > 1


@pytest.mark.parametrize("kind", ["binary", "multilabel", "regression"])
def test_a_program_gets_tables_and_returns_predictions(table, program, kind):
    results = run(table, kind, "attentivefp")
    frame = pd.read_csv(table.parent / "out/seed-0/predictions.csv")
    assert frame[f"predicted {TASKS[kind][-1]}"].nunique() == 1
    assert frame["predicted " + TASKS[kind][0]].notna().sum() == 120
    assert results["runs"][0]["settings"]["train"] == {
        "packages": list(programs.ATTENTIVEFP_PACKAGES)
    }
    with pytest.raises(InputError, match="other settings"):
        run(table, kind, "attentivefp", epochs=7)
    results = run(table, kind, "attentivefp", seeds=(1,), epochs=7, name_of="few")
    assert results["runs"][0]["settings"]["train"]["epochs"] == 7
    logs = [table.parent / name / "program.log" for name in ("out/seed-0", "few/seed-1")]
    assert [log.read_text() for log in logs] == ["100\n", "7\n"]


@pytest.mark.parametrize(
    "kind,theirs",
    [("binary", "classification"), ("multiclass", "multiclass"), ("regression", "regression")],
)
def test_what_chemprop_writes_is_understood(table, environments, monkeypatch, kind, theirs):
    monkeypatch.setattr(programs, "CHEMPROP_PROGRAM", CHEMPROP.format(kind=theirs))
    run(table, kind, "chemprop")
    frame = pd.read_csv(table.parent / "out/seed-0/predictions.csv")[:120]
    if kind == "multiclass":
        values = frame[[f"predicted {name}" for name in ("acid", "alcohol", "amine", "benzene")]]
        assert (values == [0, 1, 2, 3]).all(axis=None)
    else:
        assert (frame[f"predicted {TASKS[kind][0]}"] == frame["smiles"].str.len()).all()


@pytest.mark.parametrize("name,epochs", [("ecfp-rf", 7), ("attentivefp", 0)])
def test_epochs_that_cannot_be_are_refused(table, name, epochs):
    with pytest.raises(
        InputError,
        match=f"epochs is {epochs}; give at least 1, and only to chemprop or attentivefp",
    ):
        baseline(name, str(table), epochs=epochs)


def test_a_program_that_fails_ends_the_run_with_its_last_line(table, program):
    programs.ATTENTIVEFP_SCRIPT.write_text("raise SystemExit('no memory left')")
    with pytest.raises(TrainingStopped, match="no memory left.*program.log"):
        run(table, "binary", "attentivefp")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_as_well(table, program, number):
    started = table.parent / "started"
    code = (
        f"import os, time; open({str(started)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
    )
    programs.ATTENTIVEFP_SCRIPT.write_text(code)

    def stop():
        while not started.exists() or not started.read_text().endswith("\n"):
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted, match="run the same command to go on"):
        run(table, "binary", "attentivefp")
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_half_made_environment_is_made_again(tmp_path, monkeypatch):
    nothing = ("tool==1",)
    monkeypatch.setenv("EXLM_BASELINES", str(tmp_path))
    monkeypatch.setattr(programs.sys, "executable", "/bin/false")
    with pytest.raises(InputError, match="tool==1 could not be installed.*network"):
        programs.environment(nothing)
    (tmp_path / "tool-1/bin").mkdir(parents=True)
    (tmp_path / "tool-1/bin/python").write_text("#!/bin/sh\n")
    (tmp_path / "tool-1/bin/python").chmod(0o755)
    monkeypatch.setattr(programs.sys, "executable", "/bin/true")
    assert programs.environment(nothing) == tmp_path / "tool-1/bin/python"
    monkeypatch.setattr(programs.sys, "executable", "/bin/false")
    programs.environment(nothing)  # it is finished now


@pytest.mark.parametrize(
    "name,changes,message",
    [
        ("ecfp", {}, "there is no baseline 'ecfp'.*ecfp-rf"),
        ("tfidf-lr", {}, "has molecules, which tfidf-lr does not read; use ecfp-rf"),
        ("ecfp-rf", {"molecules": False}, "has text, which ecfp-rf does not read; use tfidf-lr"),
        ("ecfp-rf", {"task_type": "question_answering"}, "question_answering has no baseline"),
        ("ecfp-rf", {"task_type": "token_classification"}, "token_classification has no baseline"),
        ("ecfp-rf", {"on_invalid": "error"}, "C1CC"),
        ("ecfp-rf", {"on_invalid": "keep"}, "cannot keep what RDKit cannot parse"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(table, name, changes, message):
    task = TaskConfig("", **{"label_columns": ["amine"], **changes})
    with pytest.raises(InputError, match=message):
        baseline(name, str(table), str(table.parent / "out"), task, [0])


def test_two_data_sets_for_a_baseline_are_refused(table, monkeypatch, capsys):
    monkeypatch.chdir(table.parent)
    shutil.copy(table, "other.csv")
    command = ["baseline", "ecfp-knn", "bace.csv", "--label_columns", "amine", "--seeds", "0"]
    with pytest.raises(SystemExit):
        main([*command, "--task.dataset", "other.csv"])
    assert "bace.csv and, as task.dataset, other.csv; leave out" in capsys.readouterr().err
    main([*command, "--task.dataset", "bace.csv", "--output", "a"])


def test_the_report_has_a_row_for_every_baseline(table, tmp_path, monkeypatch):
    # with the label of MoleculeNet's set
    pd.read_csv(table).rename(columns={"amine": "Class"}).to_csv(tmp_path / "bace.csv", index=False)
    for name in ("ecfp-rf", "ecfp-knn"):
        task = TaskConfig("", label_columns=["Class"], split="random")
        output = str(tmp_path / "runs" / name)
        results = baseline(name, str(tmp_path / "bace.csv"), output, task, [0, 1])
    with monkeypatch.context() as clock:  # a fit too fast for the clock took 0 hours
        clock.setattr("exlm.tasks.baseline.time", SimpleNamespace(monotonic=lambda: 5.0))
        output = str(tmp_path / "runs/fast")
        baseline("ecfp-lr", str(tmp_path / "bace.csv"), output, task, [0])
    report([str(tmp_path / "runs")], str(tmp_path / "report"))
    rows = pd.read_csv(tmp_path / "report/tables/mine.csv").set_index("model")
    assert rows.loc["ECFP4 + nearest neighbours", "score"] == pytest.approx(
        100 * results["test"]["roc_auc"]["mean"]
    )
    assert rows.loc["ECFP4 + random forest", "seeds"] == 2
    rows_scored = int(results["counts"]["test"]["rows"]["median"])
    assert rows.loc["ECFP4 + random forest", "rows"] == rows_scored
    assert "nan" not in (tmp_path / "report/report.md").read_text()
    runs = pd.read_csv(tmp_path / "report/tables/runs.csv")
    first = results["runs"][0]
    seconds = sum(run["seconds"] for run in results["runs"])
    nearest = runs[runs["what"].str.contains("nearest")].iloc[0]
    assert nearest["hours"] == pytest.approx(seconds / 3600, abs=1e-6)
    assert (runs["hours"] == 0).sum() == 1
    assert nearest["rows"] == ", ".join(f"{rows} {part}" for part, rows in first["split"].items())
    checksum = hashlib.sha256((tmp_path / "bace.csv").read_bytes()).hexdigest()
    assert nearest["SHA-256 of the data"] == f"bace.csv {checksum}"


def test_every_baseline_is_named_in_the_help():
    assert all(name in str(baseline.__doc__) for name in BASELINES)


def test_fingerprints_of_what_is_no_molecule_are_refused():
    with pytest.raises(InputError, match="'C1CC' is no molecule"):
        ecfp(["CCO", "C1CC"])


def test_a_constant_label_does_not_divide_by_zero(monkeypatch):
    for name in ("", ".loader", ".nn", ".nn.models", ".utils", ".utils.smiles"):
        module = MagicMock(x_map={}, e_map={})
        monkeypatch.setitem(sys.modules, f"torch_geometric{name}", module)
    program = runpy.run_path(programs.ATTENTIVEFP_SCRIPT.with_name("attentivefp_program.py"))
    mean, std = program["label_scale"](np.array([[2.0, 1.0], [2.0, 3.0]]))
    assert mean.tolist() == [2.0, 2.0] and std.tolist() == [1.0, 1.0]


def test_a_mean_over_labels_says_how_many_there_are(tmp_path, capsys):
    frame = pd.DataFrame({"smiles": MOLECULES})
    frame["part"] = ["train"] * (len(frame) - 8) + ["valid"] * 4 + ["test"] * 4
    frame["y"] = frame["smiles"].str.len()
    frame["z"] = frame["y"].where(frame["part"] == "train")
    frame.to_csv(tmp_path / "a.csv", index=False)
    task = TaskConfig("", label_columns=["y", "z"], split="column:part")
    baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / "out"), task, [0])
    assert "the mean over 1 of 2 labels: the others have too few rows" in capsys.readouterr().out


def test_labels_with_a_score_are_counted_for_every_seed(tmp_path, capsys):
    """A random split gives rows with a rare label to test with some seeds alone."""
    frame = pd.DataFrame({"smiles": MOLECULES})
    frame["common"] = (frame["smiles"].str.len() > 14).astype(int)
    frame["rare"] = (frame.index % 12 == 0).astype(int)
    frame.to_csv(tmp_path / "a.csv", index=False)
    task = TaskConfig("", label_columns=["common", "rare"], split="random")
    results = baseline("ecfp-knn", str(tmp_path / "a.csv"), str(tmp_path / "out"), task, [0, 1, 2])
    counts = {run["scores"]["test"]["tasks_scored"] for run in results["runs"]}
    assert counts == {1, 2}
    assert "the mean over 1 to 2, by the seed, of 2 labels: the others" in capsys.readouterr().out
