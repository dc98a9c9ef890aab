"""Fine-tuning, prediction and embedding as a user runs them, on tables made here."""

import json
import os
import re
import shutil
import signal
from copy import deepcopy
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from exlm import InputError
from exlm.errors import Interrupted, TrainingStopped
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.modeling_exlm import ExLMModel
from exlm.ops.loss import LossSum
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.files import read_log
from exlm.storage.models import load_model, save_model
from exlm.storage.tokenizers import load_tokenizer
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.embed import embed
from exlm.tasks.encoders.training import ShuffledBatches, train_best_epoch
from exlm.tasks.finetune import finetune
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.labels.metrics import Metric
from exlm.tasks.labels.scores import score_predictions
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.rows.datasets import fill_in
from exlm.tasks.rows.task_files import resolve
from tests.conftest import Crash, crash, flip_a_bit
from tests.tasks.tiny_models import predicted

FAST = FinetuneConfig(epochs=2, batch_size=16, learning_rate=3e-3, patience=0, precision="fp32")
LEARNING = replace(FAST, epochs=10)  # until the model knows what the tokens show
ONCE = replace(FAST, epochs=1, batch_size=64)  # where nothing has to be learned


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory):
    """An untrained model directory with the corpus's tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer(corpus)
    torch.manual_seed(2)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    save_model(path, ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer)), tokenizer)
    return path


@pytest.fixture(scope="module")
def molecules(smiles_file):
    return smiles_file.read_text().split()


@pytest.fixture(scope="module")
def labelled(molecules):
    """Molecules with labels of every kind that the tokens determine: one broken, one of an atom the
    corpus lacks."""
    molecules = [*molecules[:5], "C1CC", molecules[6], "[Xe]", *molecules[8:]]
    nitrogen = [int("N" in s or "n" in s) for s in molecules]
    frame = pd.DataFrame(
        {
            "id": [f"m{i}" for i in range(len(molecules))],
            "smiles": molecules,
            "nitrogen": nitrogen,
            "ring": [int("1" in s) for s in molecules],
            "aromatic": [float(s.count("c")) for s in molecules],
            "element": [
                "nitrogen" if "N" in s or "n" in s else "oxygen" if "O" in s else "neither"
                for s in molecules
            ],
        }
    )
    frame.loc[[3, 8], "ring"] = None
    return frame


@pytest.fixture
def table(labelled, tmp_path):
    """A file of `labelled`, which a test may change."""
    path = tmp_path / "table.csv"
    labelled.to_csv(path, index=False)
    return path


def run(pretrained, table, tmp_path, columns, seeds=(0,), train=ONCE, **changes):
    task = TaskConfig(str(table), label_columns=columns, split="random", **changes)
    return finetune(str(tmp_path / "out"), str(pretrained), task, train, list(seeds))


@pytest.fixture(scope="module")
def two_seeds(pretrained, labelled, tmp_path_factory):
    """The output directory of two seeds that learned nitrogen, which no test changes, and what
    `finetune` returned."""
    folder = tmp_path_factory.mktemp("two-seeds")
    labelled.to_csv(folder / "table.csv", index=False)
    report = run(pretrained, folder / "table.csv", folder, ["nitrogen"], (0, 1), FAST)
    return folder / "out", report


@pytest.mark.parametrize(
    "columns,metric,threshold",
    [
        (["nitrogen"], "roc_auc", 0.9),
        (["nitrogen", "ring"], "roc_auc", 0.85),
        (["element"], "accuracy", 0.6),
    ],
)
def test_every_kind_of_classification_learns_what_the_tokens_show(
    pretrained, table, tmp_path, columns, metric, threshold
):
    report = run(pretrained, table, tmp_path, columns, train=LEARNING)
    assert report["test"][metric]["mean"] > threshold


def test_regression_is_in_the_units_of_the_labels(pretrained, table, tmp_path):
    report = run(pretrained, table, tmp_path, ["aromatic"], train=LEARNING, task_type="regression")
    assert report["test"]["r2"]["mean"] > 0.5
    predictions = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")
    assert abs(predictions["predicted aromatic"].mean() - predictions["aromatic"].mean()) < 2


def test_means_of_duplicates_are_beside_their_predictions(pretrained, table, tmp_path, capsys):
    frame = pd.read_csv(table)
    frame.loc[0, "aromatic"] += 2
    pd.concat([frame, pd.read_csv(table)[:1]]).to_csv(table, index=False)
    report = run(
        pretrained, table, tmp_path, ["aromatic"], task_type="regression", duplicates="mean"
    )
    assert "the first row of each has the mean of their labels" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")
    assert written["merged aromatic"][0] == frame["aromatic"][0] - 1
    # as predict says, all rows whose text was trained on are, whether merged into another or not
    predict(str(tmp_path / "out/seed-0"), str(table), str(tmp_path / "p.csv"))
    again = pd.read_csv(tmp_path / "p.csv")
    assert written["in_training"][300]
    assert written["in_training"].equals(again["in_training"])
    test = written[written["split"] == "test"]
    error = np.sqrt(np.mean((test["merged aromatic"] - test["predicted aromatic"]) ** 2))
    assert report["test"]["rmse"]["mean"] == pytest.approx(error, abs=1e-4)


def test_merged_labels_of_several_columns_are_beside_their_predictions(pretrained, table, tmp_path):
    """Each of two rows of a molecule lacks a label that the other has."""
    frame = pd.read_csv(table)
    again = frame.assign(nitrogen=None)
    frame.loc[frame.index % 2 == 0, "ring"] = None
    again.loc[20:, "ring"] = None
    pd.concat([frame, again]).to_csv(table, index=False)
    run(pretrained, table, tmp_path, ["nitrogen", "ring"], duplicates="drop")
    written = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")
    assert "merged nitrogen" not in written
    ring = pd.read_csv(table)["ring"]
    used = written["split"].fillna("") != ""
    assert used.any() and written["ring"].isna()[used].any()
    expected = ring[:300].fillna(ring[300:].reset_index(drop=True))
    assert written["merged ring"][:300][used[:300]].equals(expected[used[:300]])


def test_the_same_scored_rows_have_the_same_hash_in_any_file(pretrained, table, tmp_path, capsys):
    frame = pd.read_csv(table)[["smiles", "element"]].drop(index=[5, 7])
    frame[240:].to_csv(tmp_path / "test.csv", index=False)
    frame[240:][::-1].to_csv(tmp_path / "turned.csv", index=False)
    frame[241:].to_csv(tmp_path / "fewer.csv", index=False)
    hashes = []
    for size, name in ((240, "test"), (100, "turned"), (240, "fewer")):
        train = tmp_path / f"train-{name}.csv"
        frame[:size].to_csv(train, index=False)
        task = TaskConfig(str(train), test=str(tmp_path / f"{name}.csv"), text_column="smiles")
        report = finetune(str(tmp_path / name), str(pretrained), task, ONCE, [0])
        assert f"{train} and {task.test}: " in capsys.readouterr().out
        hashes.append(report["runs"][0]["rows_sha256"]["test"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_labels_with_a_large_offset_are_predicted_as_they_were_scored(
    pretrained, table, tmp_path, capsys
):
    """In float32 a number near ten million has no decimals."""
    frame = pd.read_csv(table)
    frame["energy"] = 1e7 + np.arange(len(frame)) % 7 / 10
    frame.to_csv(table, index=False)
    report = run(pretrained, table, tmp_path, ["energy"], train=FAST, task_type="regression")
    written = pd.read_csv(tmp_path / "out" / "seed-0" / "predictions.csv")
    predict(str(tmp_path / "out"), str(table), str(tmp_path / "p.csv"))
    again = pd.read_csv(tmp_path / "p.csv")
    assert again["predicted energy"].nunique() > 20 and report["test"]["rmse"]["mean"] < 1
    np.testing.assert_allclose(again["predicted energy"], written["predicted energy"], atol=1e-4)
    assert "the head of exlm stays standardised" in capsys.readouterr().err


def test_molecules_of_the_training_are_known_as_the_model_reads_them(
    pretrained, table, tmp_path, capsys
):
    """As parents a molecule and its hydrochloride are one."""
    run(pretrained, table, tmp_path, ["nitrogen"], standardize="parent")
    trained = (tmp_path / "out" / "seed-0" / "train.smi").read_text().split()[:30]
    salts = pd.DataFrame({"smiles": [f"{smiles}.Cl" for smiles in trained]})
    salts.assign(nitrogen=np.arange(30) % 2).to_csv(tmp_path / "salts.csv", index=False)
    files = str(tmp_path / "out"), str(tmp_path / "salts.csv")
    report = evaluate(*files, str(tmp_path / "e.json"), resamples=0)
    assert report["in_training"] == 30
    salts.to_csv(tmp_path / "salts.csv", index=False)
    predict(*files, str(tmp_path / "p.csv"), distance=True)
    assert (pd.read_csv(tmp_path / "p.csv")["distance to training"] == 0).all()


def test_an_unfinished_fine_tuning_says_so_where_it_predicts(two_seeds, table, tmp_path, capsys):
    shutil.copytree(two_seeds[0], tmp_path / "out")
    shutil.rmtree(tmp_path / "out/seed-1")
    for name in ("results.json", "config.json", "manifest.json"):
        (tmp_path / "out" / name).unlink()
    predict(str(tmp_path / "out"), str(table), str(tmp_path / "p.csv"))
    assert "is not finished; only seed-0 predict" in capsys.readouterr().err


def test_a_train_part_with_one_value_is_refused(pretrained, table, tmp_path):
    frame = pd.read_csv(table)
    frame["part"] = ["train", "valid", "test"] * (len(frame) // 3)
    frame["y"] = np.where(frame["part"] == "train", 1, np.arange(len(frame)) % 2)
    frame.to_csv(table, index=False)
    task = TaskConfig(str(table), label_columns=["y"], split="column:part")
    with pytest.raises(InputError, match="y has only one value in the train part"):
        finetune(str(tmp_path / "out"), str(pretrained), task, FAST, [0])


def test_a_label_of_one_class_is_said_not_to_count(pretrained, table, tmp_path, capsys):
    frame = pd.read_csv(table).assign(never=0)
    frame.to_csv(table, index=False)
    run(pretrained, table, tmp_path, ["nitrogen", "never"])
    evaluate(str(tmp_path / "out"), str(table), str(tmp_path / "e.json"), resamples=0)
    [said] = re.findall("(.+) are means over the labels that have them", capsys.readouterr().out)
    assert "roc_auc" in said.split(", ") and "accuracy" not in said.split(", ")


def test_a_label_may_be_called_like_the_spread_of_another(pretrained, table, tmp_path):
    frame = pd.read_csv(table).rename(columns={"aromatic": "y", "nitrogen": "y std"})
    frame.to_csv(table, index=False)
    run(pretrained, table, tmp_path, ["y std", "y"], seeds=(0, 1), task_type="regression")
    written = predict(str(tmp_path / "out"), str(table), str(tmp_path / "predicted.csv"))
    predicted = pd.read_csv(written)
    seeds = [pd.read_csv(tmp_path / f"out/seed-{seed}/predictions.csv") for seed in (0, 1)]
    for name in ("predicted y", "predicted y std"):
        mean = (seeds[0][name] + seeds[1][name]) / 2
        np.testing.assert_allclose(predicted[name], mean, atol=1e-5)
    spread = (seeds[0]["predicted y"] - seeds[1]["predicted y"]).abs() / 2**0.5
    np.testing.assert_allclose(predicted["predicted y std over seeds"], spread, atol=1e-5)


def test_results_predictions_and_report_agree(two_seeds):
    out, report = two_seeds
    assert json.loads((out / "results.json").read_text())["test"] == report["test"]
    scores = []
    for seed in (0, 1):
        frame = pd.read_csv(out / f"seed-{seed}/predictions.csv", keep_default_na=False)
        assert len(frame) == 300 and list(frame["id"]) == [f"m{i}" for i in range(300)]
        assert frame.loc[5, "problem"] == "not a SMILES string: unclosed ring"
        assert frame.loc[5, "predicted nitrogen"] == ""
        assert frame.loc[7, "problem"] == "" and frame.loc[7, "predicted nitrogen"] != ""
        test = frame[frame["split"] == "test"]
        labels, values = (
            test[[c]].astype(float).to_numpy() for c in ("nitrogen", "predicted nitrogen")
        )
        scores.append(score_predictions(LABEL_TYPES["binary"], labels, values)["roc_auc"])
    summary = {"mean": np.mean(scores), "std": np.std(scores, ddof=1), "median": np.median(scores)}
    assert report["test"]["roc_auc"] == pytest.approx(
        summary | {"min": min(scores), "max": max(scores)}
    )
    invalid = pd.read_csv(out / "invalid_rows.csv")
    assert invalid["row"].tolist() == [6] and set(invalid["action"]) == {"left out"}


def test_layers_computed_again_give_the_same_bits_and_count_as_the_same_run(
    pretrained, table, tmp_path
):
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="random")
    again = replace(ONCE, gradient_checkpointing=True)
    report = finetune(str(tmp_path / "once"), str(pretrained), task, ONCE, [0])
    # it is finished
    assert finetune(str(tmp_path / "once"), str(pretrained), task, again, [0]) == report
    finetune(str(tmp_path / "again"), str(pretrained), task, again, [0])
    left, right = (
        (tmp_path / path / "model.safetensors").read_bytes() for path in ("once", "again")
    )
    assert left == right


def test_doubtful_rows_can_be_kept(pretrained, table, tmp_path):
    run(pretrained, table, tmp_path, ["nitrogen"], on_invalid="keep")
    frame = pd.read_csv(tmp_path / "out/seed-0/predictions.csv")
    assert frame.loc[5, "split"] in ("train", "valid", "test")
    assert frame["predicted nitrogen"].notna().all()
    invalid = pd.read_csv(tmp_path / "out/invalid_rows.csv")
    assert invalid["row"].tolist() == [6] and set(invalid["action"]) == {"kept"}


@pytest.mark.parametrize("standardize", ["none", "canonical"])
def test_contradictory_marks_of_a_double_bond_are_reported(
    pretrained, table, tmp_path, capsys, standardize
):
    frame = pd.read_csv(table)
    frame.loc[1, "smiles"] = r"C/C=C(/C)/CO"
    frame.to_csv(table, index=False)
    run(pretrained, table, tmp_path, ["nitrogen"], standardize=standardize)
    reported = pd.read_csv(tmp_path / "out/invalid_rows.csv").set_index("row")
    assert reported.loc[2, "action"] == "kept"
    assert r"/ and \ contradict each other" in reported.loc[2, "reason"]
    assert "rows kept: 1 (see invalid_rows.csv)" in capsys.readouterr().out


def test_a_row_limit_cuts_the_train_part_alone_and_is_said_aloud(
    pretrained, two_seeds, table, tmp_path, capsys
):
    report = run(pretrained, table, tmp_path / "some", ["nitrogen"], train_rows=40)
    sizes, all_sizes = (r["runs"][0]["split"] for r in (report, two_seeds[1]))
    assert sizes == all_sizes | {"train": 40} and all_sizes["train"] > 40
    assert "beyond train_rows" in capsys.readouterr().out
    more = run(pretrained, table, tmp_path / "some", ["nitrogen"], seeds=(0, 1), train_rows=40)
    assert more["runs"][0]["split_sha256"] != more["runs"][1]["split_sha256"]
    with pytest.raises(InputError, match="train_rows is 0"):
        TaskConfig(str(table), train_rows=0)


def test_finished_seeds_are_not_repeated_and_settings_must_agree(pretrained, table, tmp_path):
    first = run(pretrained, table, tmp_path, ["nitrogen"])
    stamp = (tmp_path / "out/seed-0/model.safetensors").stat().st_mtime_ns
    second = run(pretrained, table, tmp_path, ["nitrogen"], seeds=(0, 1))
    assert (tmp_path / "out/seed-0/model.safetensors").stat().st_mtime_ns == stamp
    assert second["runs"][0] == first["runs"][0] and len(second["runs"]) == 2
    with pytest.raises(InputError, match=r"\(task.label_columns\): .*nitrogen.*ring"):
        run(pretrained, table, tmp_path, ["ring"])
    table.write_text(table.read_text().replace("m1,", "n1,"))
    with pytest.raises(InputError, match=r"the content of its data has changed"):
        run(pretrained, table, tmp_path, ["nitrogen"])


def test_the_same_seed_gives_the_same_result(pretrained, two_seeds, table, tmp_path):
    [again] = run(pretrained, table, tmp_path, ["nitrogen"], train=FAST)["runs"]
    first = two_seeds[1]["runs"][0]
    assert again["scores"] == first["scores"]
    assert again["split_sha256"] == first["split_sha256"]


@pytest.mark.parametrize("seeds", [[], [0, 1, 0], [-1]])
def test_seeds_that_cannot_be_run_are_refused_in_one_sentence(pretrained, table, tmp_path, seeds):
    with pytest.raises(InputError, match=r"seeds is \[.*\]; give"):
        run(pretrained, table, tmp_path, ["nitrogen"], seeds=seeds)


def test_the_settings_of_the_caller_stay_as_they_are(pretrained, table, tmp_path):
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="random")
    before = deepcopy((asdict(task), asdict(ONCE)))
    finetune(str(tmp_path / "out"), str(pretrained), task, ONCE, [0], grid={"dropout": [0.0, 0.1]})
    assert (asdict(task), asdict(ONCE)) == before


@pytest.fixture
def asked(monkeypatch):
    """The steps whose batches were asked for. `asked.waiting` is (step, action): the action is
    called there, once."""

    class Asked(list):
        waiting = None

    original, steps = ShuffledBatches.__call__, Asked()

    def call(self, step):
        steps.append(step)
        if steps.waiting and steps.waiting[0] == step:
            action, steps.waiting = steps.waiting[1], None
            action()
        return original(self, step)

    monkeypatch.setattr(ShuffledBatches, "__call__", call)
    return steps


def same_files(left, right):
    """Whether two fine-tunings left the same files with the same content, but for times and
    paths."""

    def names_of(directory):
        files = [path for path in directory.rglob("*") if path.is_file()]
        return {path.relative_to(directory) for path in files if "events." not in path.name}

    names = names_of(left)
    assert names == names_of(right)
    times = ("seconds", "processor_seconds")
    for name in names:
        if name.name == "log.jsonl":
            logs = [
                [{k: v for k, v in r.items() if k not in times} for r in read_log(d / name)]
                for d in (left, right)
            ]
            assert logs[0] == logs[1]
        elif name.suffix in (".safetensors", ".csv"):
            assert (left / name).read_bytes() == (right / name).read_bytes(), name
    return True


@pytest.mark.parametrize(
    "action", [crash, lambda: os.kill(os.getpid(), signal.SIGTERM)], ids=["crash", "signal"]
)
def test_an_interrupted_seed_goes_on_and_ends_with_the_same_bits(
    pretrained, table, tmp_path, asked, action
):
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="random")

    def tune(name, rate=3e-3):
        train = replace(FAST, epochs=3, learning_rate=rate)
        return finetune(str(tmp_path / name), str(pretrained), task, train, [0])

    whole = tune("whole")
    asked.waiting = (20, action)  # in the second of three epochs of 15 steps
    with pytest.raises((Crash, Interrupted)):
        tune("cut")
    del asked[:]
    assert tune("cut")["runs"] == whole["runs"]
    # From the end of an epoch, or from where it stopped: a step or two around the signal, which
    # another thread sends.
    assert asked[0] == 15 if action is crash else 15 < asked[0] < 30
    assert same_files(tmp_path / "cut", tmp_path / "whole")
    asked.waiting = (20, action)
    with pytest.raises((Crash, Interrupted)):
        tune("other")
    del asked[:]
    with pytest.raises(InputError, match="unfinished training with other settings .*learning_rate"):
        tune("other", rate=1e-3)


@pytest.mark.parametrize("step", [1, 3, 7, 8, 9])
def test_the_best_epoch_and_patience_survive_a_crash(tmp_path, asked, step):
    """The epochs, of two steps each, have the scores 5, 9, 1, 9, 2: the second is best, and the
    fifth is the last."""
    inputs, epochs = torch.randn(8, 3), []
    collate = lambda rows: {"x": inputs[rows], "attention_mask": torch.ones(len(rows), 3)}  # noqa: E731
    batches = ShuffledBatches([3] * 8, np.arange(8), 4, 0, collate)
    hyper = FinetuneConfig(
        epochs=9, batch_size=4, learning_rate=1e-2, warmup_ratio=0.0, patience=3, precision="fp32"
    )

    def loss(model, batch):
        return LossSum(model(batch["x"]).square().sum(), torch.tensor(4.0), torch.tensor(0.0))

    def train(name, score):
        torch.manual_seed(1)
        network = torch.nn.Linear(3, 1)
        best = train_best_epoch(
            network,
            SimpleNamespace(batches=batches, loss=loss, score_valid=score),
            hyper=hyper,
            metric="accuracy",
            metrics={"accuracy": Metric()},
            run_dir=tmp_path / name,
        )
        return (
            best,
            network.weight.tolist(),
            [r["accuracy"] for r in read_log(tmp_path / name / "log.jsonl")[1::2]],
        )

    def first(model):
        epochs.append(model.weight.tolist())
        return {"accuracy": (5, 9, 1, 9, 2)[len(epochs) - 1]}

    def again(model):  # the weights say which epoch it is
        return {"accuracy": (5, 9, 1, 9, 2)[epochs.index(model.weight.tolist())]}

    whole = train("whole", first)
    assert whole == (2, epochs[1], [5, 9, 1, 9, 2])
    asked.waiting = (step, crash)
    with pytest.raises(Crash):
        train("cut", again)
    assert train("cut", again) == whole


def test_the_advice_when_memory_runs_out_names_settings_of_fine_tuning(
    pretrained, table, tmp_path, monkeypatch
):
    def too_large(*arguments, **named):
        raise torch.OutOfMemoryError("simulated")

    monkeypatch.setattr(ExLMModel, "encode", too_large)
    with pytest.raises(
        TrainingStopped, match="out of memory at step 1, .*; lower batch_size, or max_length"
    ):
        run(pretrained, table, tmp_path, ["nitrogen"])


def test_the_best_epoch_on_valid_is_the_one_kept(two_seeds):
    out, report = two_seeds
    for seed, result in enumerate(report["runs"]):
        log = read_log(out / f"seed-{seed}/log.jsonl")
        scores = [record["roc_auc"] for record in log if record["kind"] == "eval"]
        assert result["best_epoch"] == int(np.argmax(scores)) + 1
        assert result["scores"]["valid"]["roc_auc"] == pytest.approx(max(scores), abs=1e-6)


def test_training_starts_from_the_pretrained_encoder_unless_from_scratch(
    pretrained, table, tmp_path
):
    still = FinetuneConfig(epochs=1, batch_size=300, learning_rate=1e-30, precision="fp32")
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="random")
    source = load_model(str(pretrained), ExLMModel)[0].embeddings.weight
    for scratch in (False, True):
        out = tmp_path / str(scratch)
        finetune(str(out), str(pretrained), task, still, [0], from_scratch=scratch)
        tuned = load_model(str(out / "seed-0"), ExLMModel)[0].embeddings.weight
        assert torch.allclose(tuned, source, atol=1e-6) is not scratch


def test_predict_keeps_every_row_and_column_and_averages_seeds(two_seeds, table, tmp_path, capsys):
    out, _ = two_seeds
    frame = predicted(str(out), str(table), str(tmp_path / "p.csv"))
    written = pd.read_csv(tmp_path / "p.csv", keep_default_na=False)
    assert list(written["id"]) == [f"m{i}" for i in range(300)] and len(frame) == 300
    single = [pd.read_csv(out / f"seed-{s}/predictions.csv")["predicted nitrogen"] for s in (0, 1)]
    np.testing.assert_allclose(frame["predicted nitrogen"], np.mean(single, 0), atol=2e-3)
    np.testing.assert_allclose(
        frame["predicted nitrogen std"], np.std(single, 0, ddof=1), atol=4e-3
    )
    assert frame.loc[5, "problem"] and np.isnan(frame.loc[5, "predicted nitrogen"])
    assert "299 rows predicted, 1 marked" in capsys.readouterr().out
    frame[["id", "smiles"]].to_csv(table, index=False)
    lines = predict(str(out), str(table), str(tmp_path / "p.jsonl"))
    again = pd.read_json(lines, lines=True)
    assert again["id"].tolist() == frame["id"].tolist()
    np.testing.assert_allclose(again["predicted nitrogen"], frame["predicted nitrogen"], rtol=1e-12)


def test_predict_scores_a_multiclass_table_that_lacks_a_class(pretrained, table, tmp_path, capsys):
    run(pretrained, table, tmp_path, ["element"])
    frame = pd.read_csv(table)
    frame = frame[frame["element"] != "neither"]
    frame.to_csv(tmp_path / "part.csv", index=False)
    result = predicted(str(tmp_path / "out"), str(tmp_path / "part.csv"))
    names = ["predicted neither", "predicted nitrogen", "predicted oxygen"]
    rows = result[result["problem"] == ""]
    guess = rows[names].to_numpy().argmax(1)
    accuracy = np.mean(
        [names[g] == f"predicted {e}" for g, e in zip(guess, rows["element"], strict=True)]
    )
    assert re.search(rf"^accuracy +{accuracy:.4f}$", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "part-out-predictions.csv").exists()


def test_predict_never_overwrites_a_column_and_scores_only_what_it_can(two_seeds, tmp_path, capsys):
    frame = pd.DataFrame(
        {"smiles": ["CCO", "CCN"], "problem": ["mine", "too"], "nitrogen": ["?", "?"]}
    )
    frame.to_csv(tmp_path / "new.csv", index=False)
    predict(str(two_seeds[0]), str(tmp_path / "new.csv"), str(tmp_path / "new.parquet"))
    written = pd.read_parquet(tmp_path / "new.parquet")
    assert list(written["problem"]) == ["mine", "too"] and list(written["exlm problem"]) == ["", ""]
    assert "not scored" in capsys.readouterr().out


def test_predict_needs_a_finetuned_model(pretrained, table):
    with pytest.raises(InputError, match="was not made by exlm finetune"):
        predict(str(pretrained), str(table))


def test_a_classifier_of_another_tool_has_no_task(pretrained, table, tmp_path):
    classifier = AutoModelForSequenceClassification.from_pretrained(pretrained)
    classifier.save_pretrained(tmp_path / "classifier")
    with pytest.raises(InputError, match="was not made by exlm finetune.*pipelines"):
        predict(str(tmp_path / "classifier"), str(table))


def test_a_valid_part_with_one_class_is_an_error(pretrained, table, tmp_path):
    frame = pd.read_csv(table)
    frame["part"] = ["train"] * 200 + ["valid"] * 50 + ["test"] * 50
    frame.loc[frame["part"] == "valid", "nitrogen"] = 1
    frame.to_csv(table, index=False)
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="column:part")
    with pytest.raises(InputError, match="roc_auc of the valid part is not defined"):
        finetune(str(tmp_path / "out"), str(pretrained), task, FAST, [0])
    frame["nitrogen"] = [1, *[0] * 299]
    frame.to_csv(table, index=False)
    with pytest.raises(InputError, match="use another split, or choose the rows .*task.valid"):
        random = replace(task, split="random")
        finetune(str(tmp_path / "out"), str(pretrained), random, FAST, [0, 1])


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_embeddings_do_not_depend_on_batches_and_mark_bad_rows(
    pretrained, table, tmp_path, pooling
):
    embed(str(pretrained), str(table), str(tmp_path / "e.parquet"), pooling)
    embed(str(pretrained), str(table), str(tmp_path / "e.npy"), pooling)
    frame, array = pd.read_parquet(tmp_path / "e.parquet"), np.load(tmp_path / "e.npy")
    assert array.shape == (300, 32) and frame["row"].tolist() == list(range(300))
    np.testing.assert_allclose(np.stack(frame["embedding"]), array, atol=0.03)
    assert (
        np.isnan(array[5]).all() and frame.loc[5, "problem"] == "not a SMILES string: unclosed ring"
    )
    assert np.isfinite(np.delete(array, [5, 7], 0)).all()


def test_a_task_reads_the_layers_that_are_asked_for(pretrained, table, tmp_path):
    arrays = []
    for layers in (None, 1, 2):
        embed(str(pretrained), str(table), str(tmp_path / "e.npy"), layers=layers)
        arrays.append(np.load(tmp_path / "e.npy")[0])
    assert np.array_equal(arrays[0], arrays[2]) and not np.allclose(arrays[0], arrays[1], atol=0.05)
    with pytest.raises(InputError, match="3 layers are to be read; the model has 2"):
        embed(str(pretrained), str(table), str(tmp_path / "e.npy"), layers=3)
    task = TaskConfig(str(table), label_columns=["nitrogen"], split="random")
    results = finetune(str(tmp_path / "out"), str(pretrained), task, replace(ONCE, layers=1), [0])
    assert results["settings"]["precision"] in ("bf16", "fp32")
    assert AutoConfig.from_pretrained(tmp_path / "out" / "seed-0").task_layers == 1


def test_mean_pooling_is_the_mean_over_real_tokens(pretrained, molecules, tmp_path):
    path = tmp_path / "two.csv"
    pd.DataFrame({"smiles": [molecules[0], molecules[40]]}).to_csv(path, index=False)
    embed(str(pretrained), str(path), str(tmp_path / "e.npy"))
    model, tokenizer = load_model(str(pretrained), ExLMModel)
    model.eval()
    for i, text in enumerate((molecules[0], molecules[40])):
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(
            np.load(tmp_path / "e.npy")[i], hidden.mean(0).detach(), atol=0.05
        )


def test_batches_cover_an_epoch_and_group_lengths():
    lengths = np.random.default_rng(0).integers(3, 80, 200)
    batches = ShuffledBatches(lengths, np.arange(10, 200), 16, seed=0, collate=dict)
    epoch = batches.batches_of_epoch(0)
    assert sorted(np.concatenate(epoch)) == list(range(10, 200)) and len(epoch) == batches.per_epoch
    padded = sum(len(b) * max(lengths[b]) for b in epoch)
    assert padded < 1.25 * sum(lengths[10:])


def test_moleculenet_brings_the_papers_hyperparameters_unless_overridden(tmp_path):
    (tmp_path / "bace.csv").write_text("mol,Class\nCC,1\n")
    task, known = resolve(TaskConfig("BACE", data_dir=str(tmp_path)))
    train = fill_in(FinetuneConfig(epochs=3), known, molecules=True)
    assert (task.text_column, task.label_columns, task.task_type) == ("mol", ["Class"], "binary")
    assert (train.epochs, train.batch_size) == (3, 64)
    assert (train.learning_rate, train.pooler_dropout) == (1e-4, 0.2)


BAD = {
    "row error": (
        dict(on_invalid="error"),
        "row 6, value 'C1CC': not a SMILES string: unclosed ring",
    ),
    "no such column": (dict(label_columns=["logP"]), "logP.*aromatic"),
    "no such file": (dict(dataset="nowhere.csv"), "nowhere.csv"),
    "unknown split": (dict(split="butina"), "scaffold"),
    "too short": (dict(max_length=3), "6 tokens, at most 3"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_end_with_one_sentence(pretrained, table, tmp_path, kind):
    changes, message = BAD[kind]
    task = TaskConfig(
        **{"dataset": str(table), "label_columns": ["nitrogen"], "split": "random", **changes}
    )
    with pytest.raises(InputError, match=message):
        finetune(str(tmp_path / "out"), str(pretrained), task, FAST, [0])
    assert not list((tmp_path / "out").glob("seed-*/model.safetensors"))


def test_a_damaged_or_foreign_model_is_refused(pretrained, table, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(pretrained, broken)
    flip_a_bit(broken / "model.safetensors")
    with pytest.raises(InputError, match="model.safetensors does not match its SHA-256"):
        run(broken, table, tmp_path, ["nitrogen"])
    with pytest.raises(InputError, match="is not a model directory"):
        run(tmp_path, table, tmp_path, ["nitrogen"])
