"""Metrics by hand, by their formulas, and where they are not defined."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from exlm.errors import Diverged
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.labels.entities import entity_f1, has_entities, score_entities
from exlm.tasks.labels.label_types import LABEL_TYPES, Numbers
from exlm.tasks.labels.metrics import ANSWER_METRICS, Metric, summarise
from exlm.tasks.labels.scores import (
    find_metrics,
    goodness,
    metric_names,
    score_predictions,
)
from exlm.tasks.printing import in_digits
from exlm.tasks.tables.labelled_predictions import LabelledPredictions

NAN = np.nan


def test_small_numbers_keep_digits_that_count_and_counts_are_whole():
    shown = [in_digits(value) for value in (0.98765, 12.0, 0.0, 2.34567e-9, -0.0005, math.nan, 12)]
    assert shown == ["0.9877", "12.0000", "0.0000", "2.35e-09", "-0.0005", "nan", "12"]


def test_the_page_names_every_metric():
    page = Path(__file__).parents[2].joinpath("docs/finetuning.md").read_text()
    table = page.split("## Metrics")[1].split("\n\n")[2]
    words = re.sub(r"[-_]", " ", table.lower().replace("²", "2"))
    for name in find_metrics(None) | ANSWER_METRICS:
        assert re.search(rf"\b{name.replace('_', ' ')}\b", words), name


def test_binary_scores_by_hand():
    labels = np.array([[0.0], [0.0], [1.0], [1.0], [NAN]])
    scores = score_predictions(
        LABEL_TYPES["binary"], labels, np.array([[0.1], [0.6], [0.55], [0.9], [0.0]])
    )
    assert scores["roc_auc"] == pytest.approx(3 / 4)  # 3 of 4 pairs in order
    assert scores["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["accuracy"] == pytest.approx(3 / 4)
    assert scores["tasks_scored"] == 1
    assert scores["brier"] == pytest.approx((0.1**2 + 0.6**2 + 0.45**2 + 0.1**2) / 4)
    assert scores["log_loss"] == pytest.approx(-math.log(0.9 * 0.4 * 0.55 * 0.9) / 4)


def test_multilabel_averages_over_tasks_with_both_classes():
    # Task 0 ranks perfectly, task 1 inversely, task 2 has one class, task 3 no label.
    labels = np.array([[0, 0, 1, NAN], [1, 1, 1, NAN], [NAN, 1, NAN, NAN]])
    predictions = np.array([[0.2, 0.9, 0.8, 0.5], [0.7, 0.1, 0.3, 0.5], [0.0, 0.2, 0.1, 0.5]])
    scores = score_predictions(LABEL_TYPES["multilabel"], labels, predictions)
    assert scores["roc_auc"] == 0.5
    assert scores["tasks_scored"] == 2
    assert scores["accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)


def test_no_scorable_task_gives_nan():
    scores = score_predictions(
        LABEL_TYPES["binary"], np.array([[1.0], [1.0]]), np.array([[0.3], [0.9]])
    )
    assert math.isnan(scores["roc_auc"]) and scores["tasks_scored"] == 0
    assert scores["accuracy"] == 0.5


def test_multiclass_scores_by_hand():
    labels = np.array([[0.0], [1.0], [2.0], [2.0], [NAN]])
    predictions = np.eye(3)[[0, 2, 2, 2, 1]]
    scores = score_predictions(LABEL_TYPES["multiclass"], labels, predictions)
    assert scores["accuracy"] == pytest.approx(3 / 4)
    assert scores["macro_f1"] == pytest.approx((1 + 0 + 0.8) / 3)


def test_f1_and_matthews_by_formula():
    tp, fp, fn, tn = 5, 2, 3, 7
    labels = np.array([[1.0]] * (tp + fn) + [[0.0]] * (fp + tn) + [[NAN]])
    # 0.5 counts as 1
    predictions = np.array([[0.9]] * tp + [[0.4]] * fn + [[0.5]] * fp + [[0.1]] * tn + [[0.9]])
    scores = score_predictions(LABEL_TYPES["binary"], labels, predictions)
    assert scores["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert scores["matthews"] == pytest.approx((tp * tn - fp * fn) / math.sqrt(product))
    swapped = score_predictions(LABEL_TYPES["binary"], 1 - labels, predictions)
    assert swapped["matthews"] == pytest.approx(-scores["matthews"])


def test_multilabel_f1_and_matthews_are_means_over_the_labelled_tasks():
    labels = np.array([[0, 1, NAN], [1, 1, NAN], [1, NAN, NAN], [0, 0, NAN], [1, 0, NAN]])
    predictions = np.array(
        [[0.2, 0.9, 0], [0.8, 0.1, 0], [0.3, 0.9, 0], [0.6, 0.2, 0], [0.9, 0.7, 0]]
    )
    tasks = [([0, 1, 1, 0, 1], [0, 1, 0, 1, 1]), ([1, 1, 0, 0], [1, 0, 0, 1])]
    scores = score_predictions(LABEL_TYPES["multilabel"], labels, predictions)
    assert scores["f1"] == pytest.approx(np.mean([f1_score(*task) for task in tasks]))
    assert scores["matthews"] == pytest.approx(
        np.mean([matthews_corrcoef(*task) for task in tasks])
    )


def test_what_compares_two_classes_is_a_mean_over_the_labels_that_have_both():
    labels = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    predictions = np.array([[0.9, 0.9], [0.2, 0.1], [0.8, 0.1]])
    scores = score_predictions(LABEL_TYPES["multilabel"], labels, predictions)
    assert [scores[name] for name in ("roc_auc", "average_precision", "f1", "matthews")] == [
        1.0
    ] * 4
    assert scores["tasks_scored"] == 1 and scores["accuracy"] == pytest.approx(5 / 6)


def test_multiclass_matthews():
    truth, guess = [0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 2, 0, 2]
    scores = score_predictions(
        LABEL_TYPES["multiclass"], np.array(truth, dtype=float)[:, None], np.eye(3)[guess]
    )
    assert scores["matthews"] == pytest.approx(matthews_corrcoef(truth, guess))
    assert scores["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))


@pytest.mark.parametrize(("label", "guess"), [(1, 0.9), (1, 0.1), (0, 0.9), (0, 0.1)])
def test_of_one_class_alone_nothing_is_defined_that_compares_two(label, guess):
    labels = np.full((3, 1), float(label))
    scores = score_predictions(LABEL_TYPES["binary"], labels, np.full((3, 1), guess))
    for name in ("roc_auc", "average_precision", "f1", "matthews"):
        assert math.isnan(scores[name])
    assert scores["accuracy"] == float(label == round(guess))


def test_one_class_of_many_alone_has_no_correlation():
    scores = score_predictions(LABEL_TYPES["multiclass"], np.ones((3, 1)), np.eye(3)[[0, 1, 1]])
    assert math.isnan(scores["matthews"]) and scores["accuracy"] == pytest.approx(2 / 3)


def test_guessing_one_class_of_many_has_no_correlation():
    labels = np.array([[0.0], [1.0], [2.0]])
    scores = score_predictions(LABEL_TYPES["multiclass"], labels, np.eye(3)[[1, 1, 1]])
    assert scores["matthews"] == 0 and scores["accuracy"] == pytest.approx(1 / 3)


def test_pearson_by_formula_and_spearman_by_ranks():
    truth, guess = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.5, 2.5, 3.0, 20.0])
    scores = score_predictions(LABEL_TYPES["regression"], truth[:, None], guess[:, None])
    x, y = truth - truth.mean(), guess - guess.mean()
    assert scores["pearson"] == pytest.approx((x @ y) / math.sqrt((x @ x) * (y @ y)))
    assert scores["spearman"] == pytest.approx(1) and scores["pearson"] < 0.99
    shifted = score_predictions(LABEL_TYPES["regression"], truth[:, None], 3 - 2 * guess[:, None])
    assert shifted["pearson"] == pytest.approx(-scores["pearson"])
    constant = score_predictions(LABEL_TYPES["regression"], truth[:, None], np.ones((4, 1)))
    assert math.isnan(constant["pearson"]) and math.isnan(constant["spearman"])


def test_regression_scores_are_means_over_tasks():
    labels = np.array([[1.0, 10.0], [2.0, NAN], [3.0, 30.0], [4.0, 20.0]])
    predictions = labels + np.array([[1.0, 3.0], [1.0, 99.0], [1.0, 3.0], [1.0, 3.0]])
    predictions[1, 1] = 99.0
    scores = score_predictions(LABEL_TYPES["regression"], labels, predictions)
    assert scores["rmse"] == pytest.approx(2)
    assert scores["mae"] == pytest.approx(2)
    assert scores["r2"] == pytest.approx(((1 - 4 / 5) + (1 - 27 / 200)) / 2)
    assert scores["spearman"] == pytest.approx(1)


def test_constant_values_leave_correlations_undefined():
    scores = score_predictions(
        LABEL_TYPES["regression"], np.array([[2.0], [2.0]]), np.array([[1.0], [3.0]])
    )
    assert scores["rmse"] == 1
    assert math.isnan(scores["r2"]) and math.isnan(scores["spearman"])


@pytest.mark.parametrize(
    "task_type,metric",
    [
        (name, metric)
        for name, labels in LABEL_TYPES.items()
        for metric in metric_names(labels, None)
    ],
)
def test_every_metric_is_reported_and_its_direction_holds(task_type, metric):
    label_type = LABEL_TYPES[task_type]
    labels = np.array([[0.0], [1.0], [0.0], [1.0]])
    good = labels
    if label_type.has_classes:
        good = np.array([[0.9, 0.1], [0.1, 0.9]] * 2)
    # one unit per row, and one that is neither labelled nor predicted
    if label_type.of_units:
        good, labels = np.full((4, 2, 2), np.nan), np.full((4, 2), np.nan)
        labels[:, 0], good[:, 0] = [0, 1, 0, 1], [[0.9, 0.1], [0.1, 0.9]] * 2
    best = score_predictions(label_type, labels, good)[metric]
    worst = score_predictions(label_type, labels, 1 - good)[metric]
    definition = label_type.metrics[metric]
    assert best < worst if definition.is_error else best > worst
    assert goodness(best, definition) > goodness(worst, definition)
    assert definition.is_error or best == definition.best == 1
    assert find_metrics(task_type)[metric] == definition


def test_a_metric_of_a_new_label_type_needs_no_other_entry(monkeypatch):
    class Distances(Numbers):
        metrics = {"distance": Metric(lambda y, p: np.abs(y - p).sum(), is_error=True)}

    assert "distance" not in find_metrics(None) and not find_metrics("distances")
    monkeypatch.setitem(LABEL_TYPES, "distances", Distances())
    distance = find_metrics("distances")["distance"]
    assert goodness(1.0, distance) > goodness(2.0, distance) > goodness(NAN, distance)
    assert distance.best is None and distance.factor == 1
    assert find_metrics(None)["distance"] == distance


def test_metrics_of_answers_are_in_percent_already_and_more_is_better():
    assert list(find_metrics("question_answering")) == ["f1", "em", "best_f1", "best_em"]
    for metric in find_metrics("question_answering").values():
        assert goodness(2.0, metric) > goodness(1.0, metric) and metric.factor == 1
    assert find_metrics("binary")["f1"].factor == 100


def test_diverged_predictions_are_refused():
    labels = np.array([[0.0], [1.0]])
    with pytest.raises(Diverged, match="1 of 2 predictions are not finite"):
        score_predictions(LABEL_TYPES["binary"], labels, np.array([[NAN], [0.5]]))


def test_equal_scores_do_not_vary():
    for score in (0.1 + 0.2, 2.04, 1 / 3):
        summary = summarise([{"rmse": score}] * 3)["rmse"]
        assert summary == {"mean": score, "std": 0, "median": score, "min": score, "max": score}
    assert in_digits(summarise([{"f1": 0.1 + 0.2}] * 3)["f1"]["std"]) == "0.0000"


def test_summarise_gives_median_mean_sample_deviation_and_range():
    rows = [{"rmse": value} for value in (1.0, 3.0, 8.0)]
    deviation = math.sqrt(((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 2)
    summary = {"mean": 4.0, "std": pytest.approx(deviation), "median": 3.0, "min": 1.0, "max": 8.0}
    assert summarise(rows) == {"rmse": summary}
    assert summarise(rows[:1])["rmse"] == {
        "mean": 1.0,
        "std": 0.0,
        "median": 1.0,
        "min": 1.0,
        "max": 1.0,
    }


@pytest.mark.parametrize("scores", [[NAN], [NAN, NAN], [0.5, NAN, 0.5]])
def test_statistics_of_what_is_not_defined_are_not_either(scores):
    summary = summarise([{"roc_auc": score} for score in scores])["roc_auc"]
    assert len(summary) == 5 and all(math.isnan(value) for value in summary.values())


@pytest.mark.parametrize(
    ("truth", "predicted", "score"),
    [
        # the example of seqeval's documentation: 1 of 2 entities, and 1 of 2 predicted
        (
            ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"],
            0.5,
        ),
        (["B-PER B-PER"], ["B-PER I-PER"], 0.0),  # two entities, not one
        (["I-PER I-PER O"], ["B-PER I-PER O"], 1.0),  # I behind O begins an entity
        (["B-PER I-LOC"], ["B-PER B-LOC"], 1.0),  # another kind begins another entity
        (["S-PER I-PER"], ["S-PER B-PER"], 1.0),  # so does what is behind S or E
        (["B-PER", "I-PER"], ["B-PER", "B-PER"], 1.0),  # and every row
        (["B-PER O B-LOC"], ["B-PER B-LOC O"], 0.5),
        (["B-PER - I-PER"], ["B-PER O I-PER"], 1.0),  # what has no label does not count
        (["B-PER L-PER U-PER"], ["B-PER I-PER B-PER"], 1.0),  # BILOU
        (["O O"], ["O B-PER"], 0.0),
        (["O O"], ["O O"], NAN),
    ],
)
def test_f1_of_entities_by_hand(truth, predicted, score):
    classes = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O", "S-PER", "B-MISC", "I-MISC"]
    classes += ["L-PER", "U-PER"]
    width = max(len(row.split()) for row in truth)
    labels = np.full((len(truth), width), NAN)
    predictions = np.full((len(truth), width, len(classes)), NAN)
    for row, (names, others) in enumerate(zip(truth, predicted, strict=True)):
        for unit, (name, other) in enumerate(zip(names.split(), others.split(), strict=True)):
            predictions[row, unit] = np.eye(len(classes))[classes.index(other)]
            if name != "-":
                labels[row, unit] = classes.index(name)
    np.testing.assert_equal(entity_f1(labels, predictions, classes), score)
    scores = score_predictions(
        LABEL_TYPES["token_classification"], labels, predictions, class_names=classes
    )
    np.testing.assert_equal(scores["entity_f1"], score)


def test_scores_of_classes_and_of_kinds_of_entities_by_hand():
    labels = np.array([[0.0], [0.0], [0.0], [1.0], [1.0]])
    predictions = np.eye(3)[[0, 0, 1, 1, 2]]
    saved_task = SavedTask(task_type="multiclass", class_names=["a", "b", "c"])
    labelled = LabelledPredictions(saved_task, labels, predictions)
    of_classes = labelled.score_classes(np.arange(5))
    assert of_classes["a"] == pytest.approx({"rows": 3, "precision": 1, "recall": 2 / 3, "f1": 0.8})
    assert of_classes["b"] == pytest.approx({"rows": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5})
    assert of_classes["c"] == {"rows": 0, "precision": 0, "recall": 0, "f1": 0}
    table = labelled.confusion(np.arange(5))
    assert [list(row.values()) for row in table.values()] == [[2, 1, 0], [0, 1, 1], [0, 0, 0]]

    classes = ["O", "B-PER", "B-LOC"]
    tags = np.array([[1, 0, 2, NAN], [1, 1, 0, 0]])
    outputs = np.eye(3)[np.array([[1, 2, 2, 0], [1, 0, 0, 0]])]
    assert score_entities(tags, outputs, classes) == {
        "LOC": pytest.approx({"entities": 1, "precision": 0.5, "recall": 1, "f1": 2 / 3}),
        "PER": pytest.approx({"entities": 3, "precision": 1, "recall": 2 / 3, "f1": 0.8}),
    }
    # the unit without a label does not count
    saved_task = SavedTask(task_type="token_classification", class_names=classes)
    units = LabelledPredictions(saved_task, tags, outputs).confusion(np.arange(2))
    assert units["O"] == {"O": 2, "B-PER": 0, "B-LOC": 1}


def test_only_tags_of_entities_have_entities():
    assert metric_names(LABEL_TYPES["token_classification"], ["O", "B-X"])[0] == "entity_f1"
    for classes in (["H", "E", "C"], ["O"], ["0", "1"], ["B-X", "noun"], None):
        assert not has_entities(classes)


def test_metrics_of_one_name_say_the_same_of_their_scores():
    """Version 0.1 did not record a task type that it inferred."""
    for label_type in LABEL_TYPES.values():
        for name, metric in label_type.metrics.items():
            by_name = find_metrics(None)[name]
            assert replace(metric, function=by_name.function) == by_name
