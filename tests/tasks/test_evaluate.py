"""Scores of fine-tuned models on labelled files, with their intervals."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.metrics import roc_auc_score

from exlm import InputError
from exlm.describe.on_disk import info
from exlm.tasks.baseline import baseline
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.finetune import finetune
from exlm.tasks.labels.scores import with_intervals
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.printing import USUAL_METRICS, print_report
from exlm.tasks.tables.labelled_predictions import LabelledPredictions
from exlm.tasks.tables.seed_models import EncoderModel
from tests.tasks.tiny_models import predicted
from tests.tasks.tuned_models import COLUMNS, FAST


def test_evaluate_gives_the_scores_of_the_predictions_with_intervals(tuned, molecules, capsys):
    output, table = str(tuned("binary")), str(molecules / "table.csv")
    report = evaluate(output, table, str(molecules / "e.json"), resamples=50)
    assert json.loads((molecules / "e.json").read_text()) == report
    frame = predicted(output, table, str(molecules / "p.csv"))
    correct = np.mean(frame["predicted class"].astype(int) == frame["nitrogen"].astype(int))
    assert list(report["metrics"]) == ["ensemble", "seed-0", "seed-1"] and report["labelled"] == 120
    scores = report["metrics"]["ensemble"]
    assert scores["accuracy"]["value"] == pytest.approx(correct)
    assert scores["roc_auc"]["low"] < scores["roc_auc"]["value"] < scores["roc_auc"]["high"]
    calibrated = evaluate(output, table, str(molecules / "e.json"), resamples=0, calibrated=True)[
        "metrics"
    ]["ensemble"]
    assert calibrated["calibration_error"]["value"] != scores["calibration_error"]["value"]
    out = capsys.readouterr().out
    assert f"{correct:.4f} (" in out
    assert "in brackets: 95% bootstrap intervals over rows (50 draws)" in out
    assert "rows predicted, 0 without a prediction (the column problem of exlm predict" in out
    assert re.search(r"^tasks_scored( +1){3}$", out, re.MULTILINE)  # a count is a whole number
    pd.read_csv(table).drop(columns="nitrogen").to_csv(molecules / "unlabelled.csv", index=False)
    with pytest.raises(InputError, match="nothing can be scored.* nitrogen; name the column"):
        evaluate(output, str(molecules / "unlabelled.csv"), str(molecules / "e.json"))


def refuse_to_predict(*args):
    raise RuntimeError("the work has begun")


@pytest.mark.parametrize(
    "column,cells,problem",
    [
        ("other", ["0", "1"], "no column has nitrogen; name the column"),
        ("nitrogen", ["maybe", "never"], "no row has a prediction and a label that the model"),
        ("nitrogen", ["", ""], "no row has a prediction and a label that the model"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused_before_anything_is_predicted(
    tuned, molecules, monkeypatch, column, cells, problem
):
    path = molecules / "labels.csv"
    pd.DataFrame({"smiles": ["CCO", "CCN"], column: cells}).to_csv(path, index=False)
    monkeypatch.setattr(EncoderModel, "predict", refuse_to_predict)
    with pytest.raises(InputError, match=f"nothing can be scored: {problem}"):
        evaluate(str(tuned("binary")), str(path))


def test_what_is_unknown_in_labels_is_said_before_anything_is_predicted(
    tuned, molecules, monkeypatch, capsys
):
    path = molecules / "labels.csv"
    frame = pd.DataFrame({"smiles": ["CCO", "CCN"], "nitrogen": ["0", "maybe"]})
    frame.to_csv(path, index=False)
    monkeypatch.setattr(EncoderModel, "predict", refuse_to_predict)
    with pytest.raises(RuntimeError):
        evaluate(str(tuned("binary")), str(path))
    assert "1 rows have a label that cannot be scored" in capsys.readouterr().err


def test_a_seed_has_its_name_also_in_its_own_directory(tuned, molecules, monkeypatch):
    monkeypatch.chdir(tuned("binary") / "seed-0")
    report = evaluate(".", str(molecules / "table.csv"), str(molecules / "e.json"), resamples=0)
    assert list(report["metrics"]) == ["seed-0"]


def test_results_count_rows_and_positives_and_say_what_so_few_are_worth(tuned, molecules, capsys):
    output = tuned("binary")
    task = TaskConfig(
        str(molecules / "table.csv"),
        label_columns=["nitrogen"],
        task_type="binary",
        split="random",
    )
    report = finetune(str(output), str(molecules / "model"), task, FAST, [0, 1])  # it is finished
    first = pd.read_csv(output / "seed-0/predictions.csv")
    positives = int(first.loc[first["split"] == "test", "nitrogen"].sum())
    assert report["runs"][0]["counts"]["test"] == {"rows": 12, "positives": positives}
    interval = report["runs"][0]["interval"]["test"]
    value = report["runs"][0]["scores"]["test"]["roc_auc"]
    assert interval["low"] <= value <= interval["high"] and interval["low"] < interval["high"]
    low, high = (report["interval"]["test"][end]["median"] for end in ("low", "high"))
    out = capsys.readouterr().out
    counts = report["counts"]["test"]["positives"]
    least, greatest = f"{counts['min']:.0f}", f"{counts['max']:.0f}"
    positives_in_words = least if least == greatest else f"{least} to {greatest}"
    assert f"12 rows, {positives_in_words} of them positive" in out
    assert f"95% interval over rows {low:.4f} to {high:.4f} (10 draws)" in out
    assert "with so few rows this number is a rough guess" in out
    medians = [
        f"{name} {report['test'][name]['median']:.4f}"
        for name in USUAL_METRICS
        if name in report["test"] and name != "roc_auc"
    ]
    assert f"\ntest also {', '.join(medians)} (medians)\n" in out


def test_scores_of_few_labelled_rows_are_called_a_rough_guess(tuned, molecules, tmp_path, capsys):
    output = str(tuned("binary"))
    frame = pd.read_csv(molecules / "table.csv")[["smiles", "nitrogen"]]
    positives, negatives = (frame[frame["nitrogen"] == label] for label in (1, 0))
    enough = pd.concat([positives[:30], negatives[:30]])
    assert len(enough) == 60
    words = {
        "few": (pd.concat([positives[:2], negatives[:1]]), "rows"),
        "rare": (pd.concat([positives[:7], negatives[:43]]), "rows of one class (7)"),
        "enough": (enough, ""),
    }
    for name, (rows, few) in words.items():
        path = tmp_path / f"{name}.csv"
        rows.to_csv(path, index=False)
        guess = f"note: with so few {few} each number is a rough guess"
        of_predict = f"{guess}; it does not tell"
        of_evaluate = f"{guess}, and the interval itself is often too narrow; it does not tell"
        predict(output, str(path), str(tmp_path / "p.csv"))
        printed = capsys.readouterr().out
        assert of_predict in printed if few else "rough guess" not in printed
        evaluate(output, str(path), str(tmp_path / "e.json"), resamples=5)
        printed = capsys.readouterr().out
        assert of_evaluate in printed if few else "rough guess" not in printed


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_a_part_with_one_class_has_scores_that_are_not_defined(seeds, molecules, capsys, tmp_path):
    frame = pd.read_csv(molecules / "table.csv")
    is_positive = frame["nitrogen"] == 1
    last = frame[is_positive].index[-9:]
    for part, rows in (("train", frame.drop(last)), ("test", frame.loc[last])):
        rows.to_csv(tmp_path / f"{part}.csv", index=False)
    task = TaskConfig(
        str(tmp_path / "train.csv"),
        test=str(tmp_path / "test.csv"),
        label_columns=["nitrogen"],
        task_type="binary",
    )
    model = str(molecules / "model")
    report = finetune(str(tmp_path / "run"), model, task, replace(FAST, epochs=1), seeds)
    assert np.isnan(report["test"]["roc_auc"]["std"])
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert set(results["test"]["roc_auc"].values()) == {None}
    out = capsys.readouterr().out
    of_seeds = " for one of 2 seeds or more" if len(seeds) > 1 else ""
    assert f"test roc_auc not defined{of_seeds}; 9 rows, 9 of them positive\ntest also" in out
    assert "average_precision not defined" in out and "nan" not in out.lower()
    assert re.search(
        "^- test: roc_auc of .*: not defined$", info(str(tmp_path / "run")), re.MULTILINE
    )
    evaluate(str(tmp_path / "run"), str(tmp_path / "test.csv"), resamples=5)
    assert re.search(r"^roc_auc( +not defined)+$", capsys.readouterr().out, re.MULTILINE)


def test_the_errors_of_several_labels_count_alike(tuned, molecules):
    """One label is a hundred times as large as the other."""
    output = tuned("regression")
    result = json.loads((output / "seed-0/result.json").read_text())
    frame = pd.read_csv(output / "seed-0/predictions.csv")
    train, test = frame[frame["split"] == "train"], frame[frame["split"] == "test"]
    errors = {
        name: np.sqrt(np.mean((test[name] - test[f"predicted {name}"]) ** 2))
        for name in COLUMNS["regression"]
    }
    assert result["labels"]["test"] == pytest.approx(errors, rel=1e-4)
    alike = np.mean([errors[name] / train[name].std(ddof=0) for name in errors])
    assert result["scores"]["test"]["rmse"] == pytest.approx(alike, rel=1e-4)

    report = evaluate(str(output / "seed-0"), str(molecules / "table.csv"), resamples=0)
    every = {
        name: np.sqrt(np.mean((frame[name] - frame[f"predicted {name}"]) ** 2)) for name in errors
    }
    assert {name: scores["rmse"] for name, scores in report["labels"].items()} == pytest.approx(
        every, rel=1e-4
    )
    alike = np.mean([every[name] / train[name].std(ddof=0) for name in errors])
    assert report["metrics"]["seed-0"]["rmse"]["value"] == pytest.approx(alike, rel=1e-4)


def test_a_negative_seed_is_refused_in_one_sentence(tuned, molecules):
    with pytest.raises(InputError, match="seed is -1; it must be 0 or more"):
        evaluate(str(tuned("binary")), str(molecules / "table.csv"), seed=-1)


def test_evaluate_questions(texts, answering, capsys):
    report = evaluate(str(answering), str(texts / "valid.json"), resamples=20)
    out = capsys.readouterr().out
    assert re.search(r"^has_answer( +3 \(\d to \d\)){3}$", out, re.MULTILINE)
    recorded = json.loads((answering / "results.json").read_text())["runs"][0]["scores"]["valid"]
    assert {
        name: score["value"] for name, score in report["metrics"]["seed-0"].items()
    } == pytest.approx(recorded)


def test_questions_that_were_not_read_are_not_scored(texts, answering, tmp_path):
    content = json.loads((texts / "valid.json").read_text())
    asked = content["data"][0]["paragraphs"][0]["qas"]
    asked[0]["question"] = "where " * 70
    (tmp_path / "long.json").write_text(json.dumps(content))
    model = str(answering)
    frame = predicted(model, str(tmp_path / "long.json"), str(tmp_path / "p.csv"))
    is_long = frame["problem"] != ""
    assert is_long.sum() == 1
    assert frame.loc[is_long, ["probability", "null_minus_best"]].isna().all(axis=None)
    report = evaluate(model, str(tmp_path / "long.json"), str(tmp_path / "e.json"), resamples=0)
    assert report["labelled"] == len(frame) - 1


def test_answers_that_cannot_be_used_are_said_to_be_unscored(texts, answering, tmp_path, capsys):
    content = json.loads((texts / "valid.json").read_text())
    asked = content["data"][0]["paragraphs"][0]["qas"]
    first, second = [question for question in asked if question["answers"]][:2]
    del first["answers"][0]["answer_start"]
    second["answers"][0]["answer_start"] += 1  # as in a program that counts characters from 1
    (tmp_path / "a.json").write_text(json.dumps(content))
    report = evaluate(str(answering), str(tmp_path / "a.json"), resamples=0)
    note = "2 rows have a label that cannot be scored, the first row 1: no answers that are"
    assert report["labelled"] == len(asked) - 2 and note in capsys.readouterr().err


def test_questions_without_answers_are_predicted_without_a_word(
    answering, tmp_path, capsys, monkeypatch
):
    for answer in ({}, {"answers": None}, {"answers": []}):
        asked = [{"question": "where?", "id": "a", **answer}]
        content = {"data": [{"paragraphs": [{"context": "In Rome.", "qas": asked}]}]}
        (tmp_path / "a.json").write_text(json.dumps(content))
        predict(str(answering), str(tmp_path / "a.json"), str(tmp_path / "p.csv"))
        assert "not scored" not in capsys.readouterr().out
        with monkeypatch.context() as patch:
            patch.delattr("exlm.tasks.questions.answer_file.answer")  # nothing is answered
            with pytest.raises(InputError, match="no question has an answer; give them as"):
                evaluate(str(answering), str(tmp_path / "a.json"))


def test_answers_to_questions_that_are_all_too_long_are_not_scored(answering, tmp_path, capsys):
    asked = [
        {"question": "where " * 70, "id": "a", "answers": [{"text": "Rome", "answer_start": 3}]},
        {"question": "where?", "id": "b", "answers": [{"text": "Rome", "answer_start": 0}]},
    ]
    content = {"data": [{"paragraphs": [{"context": "In Rome.", "qas": asked}]}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    predict(str(answering), str(tmp_path / "a.json"), str(tmp_path / "p.csv"))
    note = "not scored: no question with an answer fits into 60 tokens"
    assert note in capsys.readouterr().out


def test_intervals_cover_the_mean_as_often_as_they_say():
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        sample = generator.normal(size=60)

        def mean(rows, sample=sample):
            return {"mean": sample[rows].mean()}

        interval = with_intervals(mean, np.arange(60), 200, trial)["mean"]
        hits += interval["low"] < 0 < interval["high"]
    assert 0.88 < hits / 200 < 0.99
    none = with_intervals(lambda rows: {"mean": 1.0}, np.arange(3), 0, 0)["mean"]
    assert none["value"] == 1.0 and np.isnan(none["low"])


def test_intervals_of_means_use_only_draws_that_have_all_labels_and_classes():
    generator = np.random.default_rng(0)
    truth = np.zeros((60, 2))
    truth[:30, 0] = 1
    truth[0, 1] = 1  # a label with one positive
    probabilities = generator.random((60, 2))
    saved_task = SavedTask(task_type="multilabel", label_columns=["a", "b"])
    labelled = LabelledPredictions(saved_task, truth, probabilities)
    scores = with_intervals(labelled.score, np.arange(60), 300)
    draws = np.random.default_rng(0)
    by_hand = []
    for _ in range(300):
        rows = draws.choice(np.arange(60), 60)
        if 0 in rows and np.ptp(truth[rows, 0]):
            areas = [roc_auc_score(truth[rows, n], probabilities[rows, n]) for n in (0, 1)]
            by_hand.append(np.mean(areas))
    assert scores["roc_auc"]["draws"] == len(by_hand) < 220
    assert scores["roc_auc"]["low"] == np.quantile(by_hand, (1 - 0.95) / 2)
    assert scores["accuracy"]["draws"] == 300  # is defined without positives


def test_the_interval_of_macro_f1_is_over_all_classes():
    truth = np.repeat([0.0, 1.0, 2.0, 3.0], [20, 20, 20, 1])[:, None]
    predicted_classes = truth[:, 0].astype(int)
    predicted_classes[-1] = 0  # the only row of the last class, whose F1 is 0
    saved_task = SavedTask(task_type="multiclass", class_names=list("wxyz"))
    labelled = LabelledPredictions(saved_task, truth, np.eye(4)[predicted_classes])
    score = with_intervals(labelled.score, np.arange(61), 200)["macro_f1"]
    assert score["low"] < score["value"] < score["high"] <= 0.75 and score["draws"] < 150


def test_hardly_any_draw_with_all_labels_gives_no_interval_and_says_why(capsys):
    truth = np.eye(6)  # six labels, each with one positive
    saved_task = SavedTask(task_type="multilabel", label_columns=list("abcdef"))
    labelled = LabelledPredictions(saved_task, truth, truth)
    report = {
        "labelled": 6,
        "in_training": 0,
        "resamples": 200,
        "metrics": {"seed-0": with_intervals(labelled.score, np.arange(6), 200)},
        "labels": {},
        "classes": {},
        "confusion": {},
    }
    score = report["metrics"]["seed-0"]["roc_auc"]
    assert np.isnan(score["low"]) and np.isnan(score["high"]) and score["draws"] < 20
    print_report(report, saved_task)
    out = capsys.readouterr().out
    why = f"f1, matthews: no interval, as only {score['draws']} of the draws have every label"
    assert "roc_auc, average_precision, " + why in out


def test_words_as_labels_and_labels_of_another_name(molecules, tmp_path, capsys):
    frame = pd.read_csv(molecules / "table.csv")[["smiles", "nitrogen"]]
    frame["activity"] = frame.pop("nitrogen").map({0: "inactive", 1: "Active"})
    frame = pd.concat([frame, frame[:3]])
    frame.to_csv(tmp_path / "a.csv", index=False)
    out = str(tmp_path / "out")
    task = TaskConfig(str(tmp_path / "a.csv"), split="random")
    report = finetune(out, str(molecules / "model"), task, FAST, [0])
    printed = capsys.readouterr().out
    assert "task.task_type = binary, task.positive = Active" in printed
    assert "6 rows share 3 texts or molecules, 0 of these with different labels" in printed
    assert report["metric"] == "roc_auc"
    table = predicted(out, str(tmp_path / "a.csv"), str(tmp_path / "p.csv"))
    expected = np.where(table["predicted activity"] >= 0.5, "Active", "inactive")
    assert table["predicted class"].tolist() == expected.tolist()
    other = frame.rename(columns={"activity": "IC50, class"})
    other["IC50, class"] = (other["IC50, class"] == "Active").astype(int)
    other.to_csv(tmp_path / "b.csv", index=False)
    target = str(tmp_path / "e.json")
    scores = [
        evaluate(out, str(tmp_path / name), target, resamples=0, **options)["metrics"]["seed-0"]
        for name, options in (("a.csv", {}), ("b.csv", {"label_columns": ["IC50", "class"]}))
    ]
    for name, score in scores[0].items():
        assert score["value"] == scores[1][name]["value"]
    with pytest.raises(InputError, match="label_columns names smiles, IC50, class; give the"):
        names = ["smiles", "IC50, class"]
        evaluate(out, str(tmp_path / "b.csv"), target, label_columns=names)


def test_labels_are_scored_against_their_own_predictions_in_any_order(tuned, molecules, tmp_path):
    model, table = str(tuned("regression")), str(molecules / "table.csv")
    options = {"output": str(tmp_path / "e.json"), "resamples": 0}
    given = evaluate(model, table, **options)["labels"]
    exchanged = evaluate(model, table, label_columns=COLUMNS["regression"][::-1], **options)
    assert exchanged["labels"] == given
    first, second = COLUMNS["regression"]
    frame = pd.read_csv(table).rename(columns={first: "other"})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="in this order"):
        evaluate(model, str(tmp_path / "a.csv"), label_columns=[second, "other"], **options)
    other = evaluate(model, str(tmp_path / "a.csv"), label_columns=["other", second], **options)
    assert other["labels"] == given


def test_a_table_with_some_of_the_labels_is_scored_by_these(tuned, molecules, tmp_path, capsys):
    model, table = str(tuned("regression")), molecules / "table.csv"
    frame = pd.read_csv(table)[["smiles", "weight"]]
    frame.to_csv(tmp_path / "one.csv", index=False)
    options = {"output": str(tmp_path / "e.json"), "resamples": 0}
    one = evaluate(model, str(tmp_path / "one.csv"), **options)
    assert "has no column carbons; the other labels are scored" in capsys.readouterr().err
    assert one["labels"]["weight"] == evaluate(model, str(table), **options)["labels"]["weight"]
    assert one["labels"]["carbons"]["rows"] == 0
    predict(model, str(tmp_path / "one.csv"), str(tmp_path / "p.csv"))
    assert f"{len(frame)} labelled rows\n" in capsys.readouterr().out


def test_the_recipe_of_a_run_on_squad_can_be_run_again(texts, tmp_path):
    for name, file in (("train", "train-v2.0.json"), ("valid", "dev-v2.0.json")):
        shutil.copy(texts / f"{name}.json", tmp_path / file)
    task = TaskConfig("squad2", data_dir=str(tmp_path), stride=16, max_length=64)
    out = str(tmp_path / "out")
    report = finetune(out, str(texts / "model"), task, replace(FAST, epochs=1), [0])
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    again = TaskConfig(**recipe["task"]), FinetuneConfig(**recipe["train"])
    assert finetune(out, str(texts / "model"), *again, [0])["runs"] == report["runs"]


def test_questions_in_short_windows_need_no_stride(texts, tmp_path):
    """The usual one does not fit. The run is the same with what was chosen, and with none."""
    files = str(texts / "train.json"), str(texts / "valid.json")
    model, fast = str(texts / "model"), replace(FAST, epochs=1)
    out = tmp_path / "out"
    results = finetune(str(out), model, TaskConfig(*files, max_length=64), fast, [0])
    assert results["settings"]["task"]["stride"] == 21
    config = json.loads((out / "seed-0" / "config.json").read_text())
    assert config["task"]["stride"] == 21
    again = TaskConfig(*files, max_length=64, stride=21)
    assert finetune(str(out), model, again, fast, [0])["runs"] == results["runs"]
    with pytest.raises(InputError, match="has 64 tokens; it must have at least 160"):
        finetune(str(tmp_path / "no"), model, replace(again, stride=128), fast, [0])


def test_runs_of_tables_are_the_same_with_and_without_the_usual_stride(tuned, molecules, capsys):
    output = tuned("binary")
    recorded = json.loads((output / "results.json").read_text())["settings"]["task"]
    assert recorded["stride"] == 128
    recipe = yaml.safe_load((output / "recipe.yaml").read_text())
    for stride in (128, None):
        task = TaskConfig(**{**recipe["task"], "stride": stride})
        assert finetune(str(output), str(molecules / "model"), task, FAST, [0, 1])


def test_a_number_with_a_bound_costs_its_row_alone(tuned, molecules, capsys):
    """As a class that the model does not know does."""
    output = str(tuned("regression"))
    frame = pd.read_csv(molecules / "table.csv").astype({"weight": str, "carbons": str})
    frame.loc[0, "weight"] = ">1000"
    frame.to_csv(molecules / "bound.csv", index=False)
    report = evaluate(output, str(molecules / "bound.csv"), str(molecules / "e.json"), resamples=0)
    rows = {name: scores["rows"] for name, scores in report["labels"].items()}
    assert rows == {"weight": 119, "carbons": 120}
    assert "the first row 1: '>1000' is no regression label (a number)" in capsys.readouterr().err


def test_rows_that_are_not_scored_are_counted(tuned, molecules, tmp_path, capsys):
    frame = pd.read_csv(molecules / "table.csv")[["smiles", "element"]][:60]
    frame.loc[:2, "element"] = "carbon"
    frame.loc[2:5, "smiles"] = "C1CC"
    frame.loc[7, "element"] = None
    frame.to_csv(tmp_path / "a.csv", index=False)
    report = evaluate(
        str(tuned("multiclass")), str(tmp_path / "a.csv"), str(tmp_path / "e.json"), resamples=0
    )
    assert (report["labelled"], report["unknown_labels"], report["unusable"]) == (53, 2, 4)
    printed, noted = capsys.readouterr()
    assert "56 rows predicted, 4 without a prediction (the column problem of exlm" in printed
    assert "2 rows have a label that cannot be scored, the first row 1: 'carbon' is no" in noted


def test_labels_of_other_words_are_told_with_those_of_the_training(tuned, molecules, tmp_path):
    frame = pd.read_csv(molecules / "table.csv")[["smiles"]].assign(nitrogen="oui")
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="write labels as those of the training, "):
        evaluate(str(tuned("multiclass")), str(tmp_path / "a.csv"), label_columns=["nitrogen"])


def test_classes_that_are_all_predicted_alike_are_called_so(molecules, tmp_path, capsys):
    frame = pd.read_csv(molecules / "table.csv")[["smiles"]]
    frame["y"] = np.where(frame.index % 3, "common", "rare")  # which no fragment tells
    frame.to_csv(tmp_path / "a.csv", index=False)
    task = TaskConfig("", label_columns=["y"], split="random")
    results = baseline("ecfp-lr", str(tmp_path / "a.csv"), str(tmp_path / "out"), task, [0])
    tells = results["test"]["matthews"]["median"] > 0
    note = "note: matthews is not above 0, so the predicted classes of the test rows"
    assert (note in capsys.readouterr().out) != tells
