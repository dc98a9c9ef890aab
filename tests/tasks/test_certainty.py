"""How sure a prediction is: calibrated probabilities, intervals and sets that hold nine labels in
ten."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from exlm import InputError
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.label_types import Binary, Classes, Numbers, ZerosAndOnes
from exlm.tasks.predict import evaluate, predict
from exlm.tasks.tables.certainty import (
    calibration_error,
    conformal_margins,
    errors_to_keep,
    fit_temperature,
)
from exlm.tasks.tables.seed_models import EncoderModel
from tests.tasks.tiny_models import predicted
from tests.tasks.tuned_models import COLUMNS


def test_calibration_error_of_several_labels_is_their_mean():
    """Errors of opposite sign do not cancel, and a label without rows counts for nothing."""
    labels = np.array([[1, 0, np.nan], [1, 0, np.nan]])
    probabilities = np.array([[0.7, 0.7, 0.5], [0.7, 0.7, 0.5]])
    assert calibration_error(ZerosAndOnes(), labels, probabilities) == pytest.approx(
        (0.3 + 0.7) / 2
    )


def test_calibration_error_of_known_cases():
    labels = np.array([[1.0], [1.0], [0.0], [np.nan]])
    sure = np.array([[1.0], [1.0], [1.0], [0.0]])
    assert calibration_error(Binary(), labels, sure) == pytest.approx(1 / 3)
    unsure = np.array([[0.6], [0.6], [0.6], [0.9]])
    assert calibration_error(Binary(), labels, unsure) == pytest.approx(2 / 3 - 0.6)
    classes, shares = np.array([[0.0], [2.0]]), np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
    assert calibration_error(Classes(), classes, shares) == pytest.approx((0.3 + 0.8) / 2)
    assert np.isnan(calibration_error(Binary(), labels[3:], sure[3:]))
    one_class = np.zeros((3, 1)), np.ones((3, 1))  # it is always right
    assert calibration_error(Classes(), *one_class) == 0


@pytest.mark.parametrize("classes", [1, 4])
def test_the_temperature_undoes_a_factor_of_the_logits(classes):
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, (20000, classes))
    label_type = Binary() if classes == 1 else Classes()
    if classes == 1:
        labels = (generator.random((20000, 1)) < expit(logits)).astype(float)
    else:
        labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)[:, None].astype(float)
    assert fit_temperature(label_type, 2.5 * logits, labels) == pytest.approx(2.5, rel=0.05)


def test_calibrated_probabilities_are_those_of_the_temperature(tuned, molecules):
    seed, table = tuned("binary") / "seed-0", str(molecules / "table.csv")
    plain, calibrated = (
        predicted(str(seed), table, str(molecules / "p.csv"), calibrated=c) for c in (False, True)
    )
    temperature = json.loads((seed / "config.json").read_text())["task"]["temperature"]
    logits = [np.log(p / (1 - p)) for p in (f["predicted nitrogen"] for f in (plain, calibrated))]
    np.testing.assert_allclose(logits[0], temperature * logits[1], atol=1e-6)
    with pytest.raises(InputError, match="calibrated probabilities need a classification"):
        predict(str(tuned("regression")), table, str(molecules / "p.csv"), calibrated=True)


@pytest.mark.parametrize("count", [39, 1000])  # kept as they are, and as quantiles
def test_intervals_contain_nine_labels_in_ten(count):
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        errors = Numbers().errors(generator.normal(5, 2, (count + 50, 1)), np.float64(5))
        kept = errors_to_keep(errors[:count])
        saved = SavedTask(task_type="regression", label_columns=["y"], validation_errors=kept)
        margins = conformal_margins(EncoderModel(Path("run"), saved, "cpu"), 0.9)
        covered.append(errors[count:] <= margins)
    assert 0.88 < np.mean(covered) < 0.92


def test_a_margin_has_the_rank_for_finitely_many_rows():
    def margin(count, level):
        errors = errors_to_keep(np.arange(1.0, count + 1)[:, None])
        saved = SavedTask(task_type="regression", label_columns=["pIC50"], validation_errors=errors)
        return conformal_margins(EncoderModel(Path("run"), saved, "cpu"), level)[0]

    assert [margin(count, 0.9) for count in (9, 10, 19, 29, 100)] == [9, 10, 18, 27, 91]
    assert [margin(9999, level) for level in (0.5, 0.9, 0.95, 0.99)] == [5000, 9000, 9500, 9900]
    assert margin(9999, 0.901) == 9050  # on the safe side
    for count, level, least in ((8, 0.9, 9), (18, 0.95, 19), (98, 0.99, 99)):
        with pytest.raises(
            InputError, match=f"with {count} .*'pIC50', .* of {level} needs {least}"
        ):
            margin(count, level)
        assert margin(least, level) == least


def test_predict_gives_intervals_for_numbers(tuned, molecules):
    output, table = tuned("regression"), str(molecules / "table.csv")
    frame = predicted(str(output), table, str(molecules / "p.csv"), interval=0.8)
    largest = np.zeros(2)
    for seed in (0, 1):
        rows = pd.read_csv(output / f"seed-{seed}" / "predictions.csv")
        valid = rows[rows["split"] == "valid"]
        for i, name in enumerate(COLUMNS["regression"]):
            errors = np.sort(np.abs(valid[name] - valid[f"predicted {name}"]))
            largest[i] = max(largest[i], errors[10])  # of 12 rows: ceil(0.8 * 13) is 11
    scores = evaluate(str(output), table, str(molecules / "e.json"), resamples=0, interval=0.8)
    for seed in (0, 1):  # each with margins of its own
        path = str(output / f"seed-{seed}")
        alone = evaluate(path, table, str(molecules / "e1.json"), resamples=0, interval=0.8)
        name = f"seed-{seed}"
        of_seed, of_model = (report["metrics"][name]["coverage"] for report in (scores, alone))
        assert of_seed["value"] == of_model["value"]
    for name, margin in zip(COLUMNS["regression"], largest, strict=True):
        middle = (frame[f"lower {name}"] + frame[f"upper {name}"]) / 2
        np.testing.assert_allclose(middle, frame[f"predicted {name}"], rtol=1e-6)
        np.testing.assert_allclose(frame[f"upper {name}"] - middle, margin, rtol=1e-4)


@pytest.mark.parametrize("task_type", ["binary", "multiclass"])
def test_predict_gives_sets_of_classes(tuned, molecules, task_type):
    seed, table = tuned(task_type) / "seed-0", str(molecules / "table.csv")
    [label] = COLUMNS[task_type]
    frame = predicted(str(seed), table, str(molecules / "p.csv"), interval=0.8)
    if task_type == "binary":
        frame["predicted 0"], frame["predicted 1"] = (
            1 - frame[f"predicted {label}"],
            frame["predicted nitrogen"],
        )
    rows = pd.read_csv(seed / "predictions.csv").query("split == 'valid'").index
    names = [0, 1] if task_type == "binary" else ["neither", "nitrogen", "oxygen"]
    true = [frame.loc[row, f"predicted {frame.loc[row, label]}"] for row in rows]
    least = np.sort(true)[1]  # of 12 rows: ceil(0.8 * 13) is 11, the last but one
    for _, row in frame.iterrows():
        likely = [name for name in names if row[f"predicted {name}"] >= least - 1e-6]
        assert json.loads(row[f"set {label}"]) == likely
    scores = evaluate(str(seed), table, str(molecules / "e.json"), resamples=0, interval=0.8)
    holds = [
        frame.loc[row, label] in json.loads(frame.loc[row, f"set {label}"]) for row in frame.index
    ]
    assert scores["metrics"]["seed-0"]["coverage"]["value"] == pytest.approx(np.mean(holds))


def test_a_row_without_a_prediction_has_no_set_and_an_unlabelled_file_has_them(tuned, molecules):
    (molecules / "new.csv").write_text("smiles\nCCO\nno molecule\n")
    arguments = str(molecules / "new.csv"), str(molecules / "p.csv")
    sets = predicted(str(tuned("multiclass")), *arguments, interval=0.8)["set element"]
    assert sets[0].startswith("[") and sets[1] == ""
    bounds = predicted(str(tuned("regression")), *arguments, interval=0.8)
    assert bounds[["lower weight", "upper carbons"]].notna().all(axis=1).tolist() == [True, False]


def test_intervals_that_cannot_be_given_are_refused(tuned, molecules, tmp_path):
    table = str(molecules / "table.csv")

    def refused(model, match, **options):
        with pytest.raises(InputError, match=match):
            predict(str(model), table, str(tmp_path / "p.csv"), **options)

    binary = tuned("binary")
    few = "12 validation rows that have the label 'nitrogen', and an interval of 0.95 needs 19"
    refused(binary, few, interval=0.95)
    for level in (0.0, 1.0, -1.0, float("nan")):
        refused(binary, "interval is .*; it must be over 0 and at most 0.995", interval=level)
    refused(binary, "leave out calibrated", interval=0.8, calibrated=True)
    refused(tuned("multilabel"), "a row, but the labels of .* are multilabel", interval=0.8)
    old = shutil.copytree(binary / "seed-0", tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    del config["task"]["validation_errors"]
    (old / "config.json").write_text(json.dumps(config))
    (old / "manifest.json").unlink()
    refused(old, "old keeps no errors of validation rows", interval=0.8)
    predict(str(old), table, str(tmp_path / "p.csv"))
