"""The report: every run in its cell, numbers by hand, the paper's apart, files that others can
read."""

import csv
import hashlib
import json
import math
import os
import re
import xml.etree.ElementTree
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from statistics import median, stdev

import pandas as pd
import pytest

from exlm import ExLMConfig
from exlm.errors import InputError
from exlm.model.evaluation import summary, zero_sums
from exlm.model.objectives import CTC, OBJECTIVES, VanillaMLM
from exlm.paper import values as paper
from exlm.paper.analyze import Space
from exlm.paper.estimates import Number, Results, Term, decide, weighted_sum
from exlm.paper.families import families
from exlm.paper.figures import repeated_figures
from exlm.paper.page import TEMPLATES, Section, Table, write_report
from exlm.paper.report import report
from exlm.paper.runs import find_runs
from exlm.paper.tables import as_table, left_out_table
from exlm.paper.values import ACCURACY, Cell
from exlm_command import main
from tests.paper.fake_runs import efficiency, finetuning, full_grid, pretraining, write


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A report of every experiment."""
    root = tmp_path_factory.mktemp("grid")
    full_grid(root / "runs")
    report([str(root / "runs")], str(root / "out"))
    return root


def read_csv(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def only_family(root):
    found = families(find_runs([str(root)]))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    "switches,cell",
    [
        (dict(objective="exlm", num_states=4), Cell("ExLM", 4, 0.15)),
        (dict(objective="exlm", num_states=8, p=0.387), Cell("ExLM", 8, 0.387)),
        (dict(rotary="1d"), Cell("ExLM w/o 2D RoPE", 4, 0.15)),
        (dict(objective="ctc"), Cell("ExLM w/o Transitions", 4, 0.15)),
        (dict(dag="sparse"), Cell("ExLM w/ Sparse DAG", 4, 0.15)),
        (dict(objective="mlm"), Cell("Vanilla MLM", 1, 0.15)),
        (dict(objective="mlm", p=0.789, r=8), Cell("Vanilla MLM", 1, 0.789, 8)),
    ],
)
def test_a_run_belongs_to_the_cell_of_its_settings_whatever_its_directory_is_called(
    tmp_path, switches, cell
):
    pretraining(tmp_path, "a-misleading-mlm-exlm-k2", **switches)
    assert list(only_family(tmp_path).cells) == [cell]


def test_a_vanilla_mlm_with_more_updates_than_exlm_is_mlm_plus_plus(tmp_path):
    pretraining(tmp_path, "a")
    pretraining(tmp_path, "b", objective="mlm")
    pretraining(tmp_path, "c", objective="mlm", steps=200)
    family = only_family(tmp_path)
    assert {cell.method for cell in family.cells} == {"ExLM", "Vanilla MLM", "Vanilla MLM++"}
    assert family.label.endswith("100 updates of 4,096 tokens")


def test_mlm_plus_plus_has_the_updates_closest_to_the_measured_cost(tmp_path):
    study = tmp_path / "study"
    efficiency(study)
    pretraining(study, "pretrain/exlm/seed-0")
    pretraining(study, "pretrain/plus/seed-0", objective="mlm", steps=160)
    pretraining(study, "pretrain/plus/seed-1", objective="mlm", steps=160, seed=1)
    pretraining(study, "pretrain/long/seed-0", objective="mlm", steps=190)
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = {row["model"]: row for row in read_csv(tmp_path / "out" / "tables" / "ablations.csv")}
    assert (
        len(rows["Vanilla MLM++"]["runs"].split()) == 2
        and rows["Vanilla MLM++"]["updates"] == "160.0"
    )
    groups = {
        row["updates"]: row["group"] for row in read_csv(tmp_path / "out" / "tables" / "runs.csv")
    }
    assert groups["160"] == groups["100"] != groups["190"]  # a family of its own


def test_without_a_measured_cost_mlm_plus_plus_took_about_as_long_as_exlm(tmp_path):
    """An update of ExLM takes 72 s here, 100 of them as long as 200 updates of an MLM."""
    pretraining(tmp_path, "exlm")
    for steps in (110, 190, 400):
        result = pretraining(tmp_path, f"mlm-{steps}", objective="mlm", steps=steps) / "result.json"
        result.write_text(
            json.dumps(json.loads(result.read_text()) | {"training_seconds": 36.0 * steps})
        )
    family = families(find_runs([str(tmp_path)]))[0]
    assert [run.steps for cell in family.select("Vanilla MLM++") for run in family.cells[cell]] == [
        190
    ]


def test_joint_nll_in_several_passes_stands_beside_that_in_one(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0, passes={"1": 2.0, "2": 1.9, "all": 1.7})
    pretraining(
        tmp_path,
        "mlm",
        objective="mlm",
        steps=190,
        joint=2.2,
        passes={"1": 2.2, "2": 1.8, "4": 1.6, "all": 1.5},
    )
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = read_csv(tmp_path / "out" / "tables" / "worth.csv")
    scores = {row["score"]: (float(row["ExLM"]), float(row["Vanilla MLM++"])) for row in rows}
    in_passes = {"Joint nll in 2 passes": (1.9, 1.8), "Joint nll, one mask per pass": (1.7, 1.5)}
    assert scores == {"Joint nll": (2.0, 2.2), **in_passes}  # ExLM was not measured in 4


def test_nll_by_the_number_of_masks_stands_in_a_table_of_its_own(tmp_path):
    for seed, one in ((0, 0.5), (1, 0.7)):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, by_masks={"1": one, "4": 0.4})
    pretraining(tmp_path, "mlm", objective="mlm", by_masks={"1": 0.3, "4": 0.45})
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = {row["model"]: row for row in read_csv(tmp_path / "out" / "tables" / "masks.csv")}
    assert {model: float(row["nll at 1 mask"]) for model, row in rows.items()} == {
        "ExLM, k = 4, p = 15%": pytest.approx(0.6), "Vanilla MLM, p = 15%": 0.3,
    }  # fmt: skip
    assert not rows["Vanilla MLM, p = 15%"]["nll at 16 masks"]  # not measured


def test_positions_in_all_features_and_ranges_of_masks_are_compared_among_themselves(tmp_path):
    for name, switches in {"2d": {}, "full": {"rotary": "full"}}.items():
        pretraining(tmp_path, f"exlm-{name}", **switches)
        pretraining(tmp_path, f"mlm-{name}", objective="mlm", **switches)
        pretraining(tmp_path, f"range-{name}", p=[0.02, 0.6], **switches)
    pretraining(tmp_path, "ablated", rotary="1d")
    groups = families(find_runs([str(tmp_path)]))
    names = {frozenset(run.path.name for run in group.runs) for group in groups}
    pair = {f: frozenset({f"exlm-{f}", f"mlm-{f}", "ablated"}) for f in ("2d", "full")}
    assert names == {*pair.values(), frozenset({"range-2d"}), frozenset({"range-full"})}
    [full] = [group for group in groups if {run.path.name for run in group.runs} == pair["full"]]
    assert "model.rotary = full" in full.label


def test_each_mask_ratio_has_its_own_mlm_plus_plus(tmp_path):
    for p, steps in ((0.15, 160), (0.387, 190)):
        pretraining(tmp_path, f"exlm-{p}", p)
        pretraining(tmp_path, f"mlm-{p}", p, objective="mlm", steps=steps)
    family = families(find_runs([str(tmp_path)]))[0]
    lengths = {
        cell.p: run.steps for cell in family.select("Vanilla MLM++") for run in family.cells[cell]
    }
    assert lengths == {0.15: 160, 0.387: 190}


def test_the_report_begins_with_exlm_beside_the_mlm_of_equal_cost(tmp_path):
    for seed in range(3):
        exlm = pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=2.0 + seed / 10)
        mlm = pretraining(
            tmp_path, f"mlm-{seed}", objective="mlm", steps=190, seed=seed, joint=2.2 + seed / 10
        )
        finetuning(tmp_path, f"exlm-rte-{seed}", exlm, "rte", [0.60, 0.61 + seed / 100])
        finetuning(tmp_path, f"mlm-rte-{seed}", mlm, "rte", [0.70, 0.71 + seed / 100])
    report([str(tmp_path)], str(tmp_path / "out"))
    joint, task = read_csv(tmp_path / "out" / "tables" / "worth.csv")
    # both models have the same standard deviation over 3 seeds
    difference, error = 0.2, math.sqrt(0.1**2 * 2 / 3)
    assert joint["score"] == "Joint nll" and float(joint["ExLM better by"]) == pytest.approx(
        difference
    )
    assert joint["interval"] == f"{difference - 2 * error:+.3f} to {difference + 2 * error:+.3f}"
    assert [float(joint[name]) for name in ("ExLM", "Vanilla MLM++", "cost")] == pytest.approx(
        [2.1, 2.3, 2.0]
    )
    assert task["score"] == "RTE" and float(task["ExLM better by"]) == pytest.approx(-10.0)
    assert (joint["ahead"], task["ahead"]) == ("ExLM", "Vanilla MLM++")
    page = (tmp_path / "out" / "report.md").read_text()
    assert (
        0
        < page.index("Is ExLM worth its price?")
        < page.index("cost-curves.png")
        < page.index("Which findings show")
    )
    assert (tmp_path / "out" / "figures" / "cost-curves.png").is_file()


def test_one_seed_decides_nothing_about_the_price_of_exlm(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0)
    pretraining(tmp_path, "mlm", objective="mlm", steps=190, joint=2.5)
    report([str(tmp_path)], str(tmp_path / "out"))
    (row,) = read_csv(tmp_path / "out" / "tables" / "worth.csv")
    assert row["interval"] == "" and row["ahead"] == "one seed, not decided"


def test_without_an_mlm_of_equal_cost_the_report_does_not_compare_prices(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0)
    pretraining(tmp_path, "mlm", objective="mlm", joint=2.5)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert not (tmp_path / "out" / "tables" / "worth.csv").exists()


def test_a_second_run_of_a_seed_is_left_out(tmp_path):
    pretraining(tmp_path, "a", max_position_embeddings=128)
    pretraining(tmp_path, "b", max_position_embeddings=256)
    report([str(tmp_path)], str(tmp_path / "out"))
    (row,) = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    assert (
        row["why"] == "another run has its seed" and row["what"] == "ExLM, k = 4, p = 15%, seed 0"
    )


def test_directories_are_printed_as_they_were_given(tmp_path, monkeypatch):
    model = pretraining(tmp_path, "runs/exlm")
    pretraining(tmp_path, "runs/mlm", objective="mlm")
    finetuning(tmp_path, "runs/rte", model, "rte", [0.6, 0.7])
    finetuning(tmp_path, "runs/cola", tmp_path / "gone", "cola", [0.6, 0.7])
    efficiency(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    report(["runs"], "out")
    assert "runs/exlm" in Path("out/report.md").read_text()
    for path in (
        path for path in Path("out").rglob("*") if path.suffix in (".md", ".html", ".csv", ".tex")
    ):
        assert str(tmp_path) not in path.read_text(), path


def test_more_updates_alone_make_no_mlm_plus_plus(tmp_path):
    for steps in (100, 200):
        pretraining(tmp_path, f"mlm-{steps}", objective="mlm", steps=steps)
    assert [set(f.cells) for f in families(find_runs([str(tmp_path)]))] == [
        {Cell("Vanilla MLM", 1, 0.15)}
    ] * 2


@pytest.mark.parametrize(
    "change", [{"corpus": "corpus/other"}, {"hidden_size": 256}, {"rate": 2e-3}, {"steps": 300}]
)
def test_families_are_kept_apart_and_labelled_apart(tmp_path, change):
    pretraining(tmp_path, "a")
    pretraining(tmp_path, "b", **change)
    first, second = families(find_runs([str(tmp_path)]))
    assert first.label != second.label
    pretraining(tmp_path, "c", objective="mlm", **change)
    report([str(tmp_path)], str(tmp_path / "out"))
    groups = {row["group"] for row in read_csv(tmp_path / "out" / "tables" / "runs.csv")}
    assert len(groups) == 2


@pytest.mark.parametrize(
    "change,words",
    [
        ({"prior": {"order": 10.0}}, "prior.order = 10.0"),
        ({"prior": {"sticky": 3}}, "prior.sticky = 3"),
        (
            {"prior": {"order": 4.5, "decay": [0.25, 0.5]}},
            "prior.decay = (0.25, 0.5) · prior.order = 4.5",
        ),
        ({"expanded_layers": 1}, "model.expanded_layers = 1"),
        ({"copy_embedding": 0.06}, "model.copy_embedding = 0.06"),
        ({"warmup": 30}, "transition_warmup = 30"),
    ],
)
def test_a_vanilla_mlm_is_compared_with_every_prior_and_expansion_of_exlm(tmp_path, change, words):
    pretraining(tmp_path, "mlm", objective="mlm", **change)
    pretraining(tmp_path, "exlm", warmup=0)
    pretraining(tmp_path, "exlm-now", seed=1, expanded_layers="all", copy_embedding=0.0)
    pretraining(tmp_path, "exlm-changed", **change)
    found = families(find_runs([str(tmp_path)]))
    assert [{cell.method for cell in family.cells} for family in found] == [
        {"ExLM", "Vanilla MLM"}
    ] * 2
    assert [len(family.runs) for family in found] == [3, 2]
    assert found[1].label == f"{found[0].label} · {words}"
    report([str(tmp_path)], str(tmp_path / "out"))
    assert len(read_csv(tmp_path / "out" / "tables" / "runs.csv")) == 4


def test_what_has_no_links_stands_beside_all_priors_and_repeated_tokens_stand_once(tmp_path):
    pretraining(tmp_path, "mlm", objective="mlm")
    pretraining(tmp_path, "repeated", objective="mlm", r=2)
    pretraining(tmp_path, "longer", objective="mlm", steps=200)
    pretraining(tmp_path, "ctc", objective="ctc", expanded_layers=1)
    for order in (0.0, 4.0, 10.0):
        pretraining(tmp_path, f"exlm-{order}", prior={"order": order}, expanded_layers=1)
    pretraining(tmp_path, "exlm-all", prior={"order": 10.0}, steps=200)
    found = families(find_runs([str(tmp_path)]))
    methods = [{cell.method for cell in family.cells} for family in found]
    late = {"ExLM", "ExLM w/o Transitions", "Vanilla MLM", "Vanilla MLM++"}
    assert methods == [late] * 3 + [{"ExLM", "Vanilla MLM"}]
    assert sum(cell.r == 2 for family in found for cell in family.cells) == 1


def test_means_medians_and_spread_over_both_kinds_of_seeds(tmp_path):
    values = {0: [0.70, 0.72, 0.80], 1: [0.60, 0.62, 0.61]}
    for seed, scores in values.items():
        model = pretraining(tmp_path, f"m{seed}", seed=seed, accuracy=0.2 + seed / 10)
        finetuning(tmp_path, f"t{seed}", model, "rte", scores)
    family = only_family(tmp_path)
    cell = Cell("ExLM", 4, 0.15)
    mean = family.results.number(cell, "rte")
    middle = Results(family.scores, median).number(cell, "rte")
    assert mean.value == pytest.approx((74.0 + 61.0) / 2) and middle.value == pytest.approx(
        (72.0 + 61.0) / 2
    )
    assert mean.spread == pytest.approx(100 * stdev([0.70, 0.72, 0.80, 0.60, 0.62, 0.61]))
    # in the order of their identifiers, which are hashes
    assert sorted(family.results.run_by_run(cell, "rte")) == pytest.approx([61.0, 74.0])
    assert family.results.number(cell, ACCURACY).value == pytest.approx(25.0)
    _, error = weighted_sum(family.results, [Term(1, cell, ["rte"])])
    assert error == pytest.approx(stdev([74.0, 61.0]) / 2**0.5)


def test_the_mean_of_tasks_is_that_of_the_runs_that_have_all(tmp_path):
    for seed in (0, 1):
        model = pretraining(tmp_path, f"m{seed}", seed=seed)
        finetuning(tmp_path, f"rte{seed}", model, "rte", [0.6, 0.8])
    finetuning(tmp_path, "cola", model, "cola", [0.5])
    results = only_family(tmp_path).results
    cell = Cell("ExLM", 4, 0.15)
    assert results.number(cell, "rte", "cola").value == pytest.approx(60.0)
    assert len(results.run_by_run(cell, "rte", "cola")) == 1
    assert results.number(cell, "rte", "mrpc") is None and results.number(cell) is None


def test_all_numbers_are_one_frame_with_a_row_for_each_run_score_and_seed(tmp_path):
    model = pretraining(tmp_path, "m", accuracy=0.25, entropy=3.0)
    finetuning(tmp_path, "t", model, "rte", [0.6, 0.7])
    finetuning(tmp_path, "u", model, "rte", [0.5], baseline="tfidf-lr")
    runs = find_runs([str(tmp_path)])
    scores = runs.scores.set_index("score")
    assert scores.loc["rte", "value"].tolist() == pytest.approx([60.0, 70.0, 50.0], abs=1e-9)
    assert scores.loc["rte", "seed"].tolist() == [0, 1, 0]
    assert scores.loc["rte", "source"].nunique() == 2
    assert scores.loc[ACCURACY, "source"] == only_family(tmp_path).runs[0].id
    assert scores.loc["Entropy, bits", "error"] == 0.03


def test_a_fine_tuning_is_linked_by_weights_before_names(tmp_path):
    for name, k in (("a", 2), ("b", 4)):
        run_dir = pretraining(tmp_path, name, num_states=k)
        write(run_dir / "manifest.json", {"files": {"model.safetensors": {"sha256": name * 64}}})
    weights = hashlib.sha256(b"b" * 64).hexdigest()
    finetuning(tmp_path, "t", tmp_path / "a", "rte", [0.6], model_sha256=weights)
    family = only_family(tmp_path)
    assert family.results.number(Cell("ExLM", 4, 0.15), "rte") and not family.results.number(
        Cell("ExLM", 2, 0.15), "rte"
    )


def test_only_fine_tunings_with_the_same_settings_are_compared(tmp_path):
    for k in (2, 4, 8):
        model = pretraining(tmp_path, f"m{k}", num_states=k)
        finetuning(tmp_path, f"t{k}", model, "rte", [0.6, 0.7], rate=1e-4 if k < 8 else 5e-4)
    finetuning(tmp_path, "scratch", tmp_path / "m4", "rte", [0.5, 0.5], from_scratch=True)
    family = only_family(tmp_path)
    assert sorted(tuning.path.name for tuning in family.tunings) == ["t2", "t4"]
    assert family.results.number(Cell("ExLM", 4, 0.15), "rte").value == pytest.approx(65.0)
    left_out = left_out_table(find_runs([str(tmp_path)]), [family]).rows
    reasons = {Path(row["file"]).name: row["why"] for row in left_out}
    assert reasons == {"t8": "other settings than most of its task", "scratch": "from scratch"}


def test_fine_tunings_that_differ_in_hyper_parameters_stand_beside_their_baseline(tmp_path):
    for rate, score in ((1e-4, 1.2), (5e-4, 0.9)):
        finetuning(
            tmp_path, f"t{rate}", tmp_path / "gone", "esol", [score, score + 0.2], "rmse", rate=rate
        )
    finetuning(tmp_path, "forest", tmp_path, "esol", [1.1], "rmse", baseline="ecfp-rf")
    finetuning(tmp_path, "other", tmp_path / "gone", "rte", [0.6])
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = read_csv(tmp_path / "out" / "tables" / "mine.csv")
    assert [(row["model"].split("/")[-1], row["settings"], row["score"]) for row in rows] == [
        ("gone", "train.learning_rate = 0.0005", "1.0"),
        ("ECFP4 + random forest", "train.learning_rate = 0.0001", "1.1"),
        ("gone", "train.learning_rate = 0.0001", "1.2999999999999998"),
        ("gone", "", "60.0"),
    ]
    listed = read_csv(tmp_path / "out" / "tables" / "runs.csv")
    assert {row["runs"] for row in rows} == {row["run"] for row in listed} and len(listed) == 4
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.index("## ") == page.index("## Your models beside their baselines")


def test_fine_tunings_on_other_rows_or_labels_are_not_beside_each_other(tmp_path):
    tasks = {
        "a": {},
        "b": {"standardize": "canonical", "on_invalid": "error", "duplicates": "keep"},
        "c": {"duplicates": "mean", "standardize": "parent"},
        "d": {"label_columns": ["measured", "other"]},
        "e": {},  # the same columns as of d, found and not named
    }
    for name, options in tasks.items():
        path = finetuning(tmp_path, name, tmp_path / name, "esol", [1.0], "rmse") / "results.json"
        result = json.loads(path.read_text())
        result["settings"]["task"] |= {"split": "random", **options}
        if name == "e":
            result["runs"][0]["label_columns"] = ["measured", "other"]
        write(path, result)
    report([str(tmp_path)], str(tmp_path / "out"))
    groups = defaultdict(set)
    for row in read_csv(tmp_path / "out" / "tables" / "mine.csv"):
        groups[row["group"].split("split ")[1]].add(row["model"][-1])
    assert groups == {
        "random": {"a", "b"},
        "random, duplicates mean, standardize parent": {"c"},
        "random, label_columns measured, other": {"d", "e"},
    }


def test_molecules_questions_and_regressions_have_their_units(tmp_path):
    model = pretraining(tmp_path, "m", corpus="corpus/molecules")
    finetuning(
        tmp_path, "a", model, "/data/bace.csv.gz", [0.8], "roc_auc", "test", {"valid": [0.1]}
    )
    finetuning(tmp_path, "b", model, "/data/delaney-processed.csv", [1.25], "rmse", "test")
    finetuning(tmp_path, "c", model, "squad2", [49.7], "f1")
    family = only_family(tmp_path)
    assert family.tasks == ["squad2", "bace", "esol"]
    values = [family.results.number(Cell("ExLM", 4, 0.15), task).value for task in family.tasks]
    assert values == pytest.approx([49.7, 80.0, 1.25])


def test_only_shares_are_shown_in_percent_and_averaged(tmp_path):
    model = pretraining(tmp_path, "m")
    pretraining(tmp_path, "ablated", rotary="1d")
    finetuning(tmp_path, "a", model, "rte", [0.6])
    finetuning(tmp_path, "b", model, "/data/screening.csv", [12.5], "enrichment", "test")
    # the name of a column, too
    finetuning(tmp_path, "c", model, "/data/entropy.csv", [0.3], "rmse", "test")
    report([str(tmp_path)], str(tmp_path / "out"))
    row = next(
        row for row in read_csv(tmp_path / "out/tables/ablations.csv") if row["model"] == "ExLM"
    )
    assert (row["RTE"], row["screening"], row["entropy"], row["avg."]) == (
        "60.0",
        "12.5",
        "0.3",
        "60.0",
    )


def test_an_objective_that_the_paper_does_not_have_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "electra", CTC)
    for objective in ("mlm", "exlm", "electra"):
        pretraining(tmp_path, objective, objective=objective)
    report([str(tmp_path)], str(tmp_path / "out"))
    names = {row["what"] for row in read_csv(tmp_path / "out/tables/runs.csv")}
    assert names == {"Vanilla MLM", "ExLM, k = 4", "electra, k = 4"}
    assert read_csv(tmp_path / "out" / "tables" / "ablations.csv")[-1]["model"] == "electra"


def test_the_model_says_whether_an_objective_has_states(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "electra", VanillaMLM)
    pretraining(tmp_path, "electra", objective="electra")
    assert list(only_family(tmp_path).cells) == [Cell("electra", 1, 0.15)]


def test_a_family_with_every_task_needs_no_command(tmp_path):
    model = pretraining(tmp_path, "m")
    for task in ("mnli", "qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b", "squad2"):
        finetuning(tmp_path, task, model, task, [0.6], "f1" if task == "squad2" else "accuracy")
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "exlm finetune" not in (tmp_path / "out/report.md").read_text().split("## Not run")[0]


def test_the_csv_has_the_same_numbers_and_marks_the_papers(grid):
    rows = read_csv(grid / "out" / "tables" / "repeated-mlm.csv")
    assert len(rows) == 14
    first = next(row for row in rows if row["r"] == "1" and row["p, %"] == "15.0")
    values = [0.597 + 0.004 * seed + 0.003 * i for seed in (0, 1) for i in range(3)]
    assert float(first["RTE"]) == pytest.approx(100 * sum(values) / 6)
    assert float(first["RTE s.d."]) == pytest.approx(100 * stdev(values))
    assert (
        first["paper: MNLI"] == "83.6"
        and len(first["runs"].split()) == 2
        and first["seeds"] == "2 × 3"
    )
    main_table = read_csv(grid / "out" / "tables" / "main-text.csv")
    sources = {row["model"]: row["source"] for row in main_table}
    assert (
        sources["BERT"] == "quoted"
        and sources["RoBERTa*"] == "paper"
        and sources["Vanilla MLM"] == "ours"
    )
    ablations = {row["model"]: row for row in read_csv(grid / "out" / "tables" / "ablations.csv")}
    assert float(ablations["Vanilla MLM++"]["avg."]) == pytest.approx(72.0, abs=0.01)
    assert ablations["ExLM w/ Sparse DAG"]["paper: MNLI"] == "84.4"
    assert (
        ablations["ExLM"]["paper: avg."] == "81.4"
        and ablations["ExLM"]["paper: GPU hours"] == "104.2"
    )
    assert ablations["ExLM"]["Hours"] == "2.0" and ablations["ExLM"]["updates"] == "100"


def test_every_run_that_a_table_points_to_is_listed(grid):
    listed = {row["run"] for row in read_csv(grid / "out" / "tables" / "runs.csv")}
    for path in (grid / "out" / "tables").glob("*.csv"):
        for row in read_csv(path):
            assert set((row.get("runs") or "").split()) <= listed
    page = (grid / "out" / "index.html").read_text()
    assert set(re.findall(r'href="#(run-\w+)"', page)) <= set(re.findall(r'id="(run-\w+)"', page))


def test_markdown_and_html_set_quoted_rows_apart(grid):
    text = (grid / "out" / "report.md").read_text()
    assert "| *BERT* |  | *84.5* | – |" in text and "quoted from the paper: other systems" in text
    page = (grid / "out" / "index.html").read_text()
    assert re.search(r'<tr class="quoted"><td>BERT</td><td></td><td class="number">84.5</td>', page)


def test_missing_cells_name_their_commands(tmp_path):
    model = pretraining(tmp_path, "runs/exlm")
    pretraining(tmp_path, "runs/mlm", objective="mlm")
    pretraining(tmp_path, "runs/mlm-2", objective="mlm", p=0.387, r=2)
    finetuning(tmp_path, "runs/rte", model, "rte", [0.6, 0.7])
    report([str(tmp_path / "runs")], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    assert re.search("parameters.*: mnli, qqp, qnli, sst-2, cola, rte, mrpc, sts-b, squad2\n", text)
    command = "exlm finetune recipes/text/glue-small.yaml --model RUN --task.dataset TASK"
    assert text.count(f"{command} --output RUN-finetuned/TASK") == 1
    assert "exlm analyze repeated-mlm RECIPE" in text
    assert (
        re.search("p = 78.9%, r = 4; Vanilla MLM, p = 78.9%, r = 8", text)
        and "p = 15%, r = 8" not in text
    )
    not_run = text[text.index("## Not run") :]
    assert (
        "States k" in not_run
        and "exlm analyze sweep" in not_run
        and "Molecules: main results" in not_run
    )
    assert "Repeated MLM" not in not_run


def test_runs_of_a_study_are_continued_by_its_own_recipe(tmp_path):
    for name in ("pretrain/exlm/seed-0", "pretrain/mlm/seed-0"):
        pretraining(tmp_path / "my study", name, objective=name.split("/")[1])
    pretraining(tmp_path / "my study", "pretrain/mlm-r2/seed-0", p=0.387, r=2, objective="mlm")
    write(tmp_path / "my study" / "recipe.yaml", {})
    report([str(tmp_path)], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    for experiment in ("repeated-mlm", "ablations", "sweep", "efficiency"):
        assert f"exlm analyze {experiment} '{tmp_path}/my study/recipe.yaml'" in text
    assert "RECIPE\n" not in text


def test_latex_rows_are_balanced_and_characters_escaped(grid):
    for path in (grid / "out" / "tables").glob("*.tex"):
        body = path.read_text().split(r"\toprule")[1].split(r"\bottomrule")[0]
        rows = [row for row in body.split(r"\\") if row.strip() and r"\multicolumn" not in row]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1, path.name
        assert not re.search(r"(?<!\\)[%#_]", body) and body.isascii()
    assert TEMPLATES.filters["latex"]("a_b & 5% ± ^") == r"a\_b \& 5\% $\pm$ \textasciicircum{}"


def test_tables_survive_strange_words(tmp_path):
    words = {"group": "a & b", "source": "ours", "a|b": 'x,"|<b>'}
    rows = [words | {"paper: c": Number(1 / 3, 0.1)}]
    table = Table("t", "T & t", "50% of_it", ["a|b", "paper: c"], rows)
    write_report(tmp_path, "<title>", ["one_two"], [Section("S", "about", blocks=[table])])
    (line,) = read_csv(tmp_path / "tables" / "t.csv")
    assert line["paper: c"] == repr(1 / 3) and line["a|b"] == 'x,"|<b>' and line["group"] == "a & b"
    latex = (tmp_path / "tables" / "t.tex").read_text()
    assert r"\caption{T \& t. 50\% of\_it}" in latex and r"\textit{0.3 $\pm$ 0.1} \\" in latex
    assert r"\multicolumn{2}{l}{\textbf{a \& b}} \\" in latex and r"\begin{tabular}{lr}" in latex
    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "index.html").read_text()
    assert r'| x,"\|\<b\> | *0.3 ± 0.1* |' in text and "one\\_two" in text
    assert "x,&#34;|&lt;b&gt;" in page and "<h1>&lt;title&gt;</h1>" in page


def test_a_row_with_a_key_that_is_no_column_is_an_error():
    with pytest.raises(ValueError, match="the table left-out has no column reason"):
        as_table("left-out", [{"file": "a", "reason": "damaged"}])


def test_the_report_reads_what_an_evaluation_writes():
    """The names of scores stand in two places: where they are measured, and in values.yaml."""
    written = {*summary(zero_sums(ExLMConfig())), "nll_by_masks", "joint_nll_in_passes"}
    assert {place.key.split("/")[0] for place in paper.EVALUATION.values()} <= written
    assert {*paper.VALUES["curves"].values()} <= written


class Page(HTMLParser):
    """Open tags, references and ids of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.references, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.references += [
            value for name, value in attributes if name in ("src", "href", "xlink:href")
        ]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(grid):
    text = (grid / "out" / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open and all(
        r.startswith(("#", "data:image/svg+xml;base64,")) for r in page.references
    )
    assert len(page.ids) == len(set(page.ids)) and {
        r[1:] for r in page.references if r[0] == "#"
    } <= set(page.ids)
    assert "@import" not in text and "<script" not in text and not re.search(r"url\((?!#)", text)
    assert "color-scheme: light dark" in text


def test_figures_are_svg_and_png(grid):
    names = {path.name for path in (grid / "out" / "figures").iterdir()}
    expected = {"cost-curves", "repeated-mlm", "repeated-curves", "entropy", "sweep-curves"}
    assert names == {f"{name}.{kind}" for name in expected for kind in ("svg", "png")}
    for path in (grid / "out" / "figures").iterdir():
        if path.suffix == ".svg":
            xml.etree.ElementTree.parse(path)


def test_the_same_runs_give_the_same_bytes(grid, tmp_path):
    report([str(grid / "runs")], str(tmp_path / "out"))
    files = sorted(
        p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file()
    )
    assert files == sorted(
        p.relative_to(grid / "out") for p in (grid / "out").rglob("*") if p.is_file()
    )
    for file in files:
        assert (tmp_path / "out" / file).read_bytes() == (grid / "out" / file).read_bytes(), file


def test_a_loss_is_drawn_under_its_earlier_name_too(tmp_path):
    """A run that was begun by an earlier version and resumed has both names in its log."""

    def curves():
        _, figure = repeated_figures(only_family(tmp_path))
        assert figure.name == "repeated-curves"
        return figure.svg

    for r in (1, 2):
        pretraining(tmp_path, f"r{r}", 0.15, r, objective="mlm")
    before = curves()
    for log in tmp_path.rglob("log.jsonl"):
        lines = log.read_text().splitlines()
        resumed = [line.replace('"loss"', '"mlm_loss"') for line in lines[8:]]
        log.write_text("\n".join(lines[:8] + resumed))
    assert b"training loss" in before and curves() == before


def test_findings_say_what_the_numbers_say(grid):
    rows = read_csv(grid / "out/tables/findings.csv")
    found = {row["claim"]: row for row in rows}
    # every claim names cells that are there
    assert len(found) == len(rows) == len(paper.CLAIMS)
    assert f"{len(rows)} claims are looked at" in (grid / "out" / "report.md").read_text()
    assert found["ExLM scores higher than the vanilla MLM"]["our runs"] == "shows"
    assert found["a sparse DAG costs"]["our runs"] == "within the spread of seeds"
    assert found["ExLM's entropy (marginal) is below that of MLM"]["our runs"] == "does not show"
    assert found["ExLM's entropy (per state) is below that of MLM"]["our runs"] == "shows"
    numbers = found["removing the transitions costs"]["numbers"]
    words = "+1 × 73.12 ExLM; -1 × 71.50 ExLM w/o Transitions (QNLI, RTE, MRPC)"
    assert numbers == f"+1.62 (standard error 0.28): {words}"  # s.d. of a seed: 0.4 / sqrt(2)


def test_without_tasks_only_equal_masks_are_compared(tmp_path):
    for p in (0.15, 0.387):
        for name in ("mlm", "exlm"):
            pretraining(tmp_path, f"{name}-{p}", p, objective=name)
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = {row["claim"]: row for row in read_csv(tmp_path / "out/tables/findings.csv")}
    assert set(rows) == {
        f"ExLM scores higher than the vanilla MLM{end}" for end in ("", " at p = 38.7%")
    }
    assert all(row["numbers"].endswith("(Held-out accuracy)") for row in rows.values())
    assert all(row["our runs"] == "one seed, not decided" for row in rows.values())


def test_a_claim_is_said_once_if_its_names_mean_the_same_cells(tmp_path):
    for name in ("mlm", "exlm"):
        pretraining(tmp_path, name, 0.387, objective=name)
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = read_csv(tmp_path / "out/tables/findings.csv")
    assert [row["claim"] for row in rows] == ["ExLM scores higher than the vanilla MLM"]


def test_joint_numbers_stand_beside_the_marginal_ones(grid):
    rows = {
        row["model"]: row
        for row in read_csv(grid / "out/tables/sweep.csv")
        if row["p, %"] == "15.0"
    }
    exlm, mlm = rows["ExLM, k = 4"], rows["Vanilla MLM"]
    assert (
        float(exlm["Perplexity"])
        == float(mlm["Perplexity"])
        == pytest.approx(float(mlm["Joint perplexity"]))
    )
    assert float(exlm["Joint perplexity"]) == pytest.approx(
        50 * (math.exp(-0.1) + math.exp(-0.12)) / 2
    )
    assert float(exlm["Own mask, %"]) == pytest.approx(96) and mlm["Own mask, %"] == ""
    assert "Joint perplexity" in read_csv(grid / "out/tables/ablations.csv")[0]
    results = {
        row["result"]
        for row in read_csv(grid / "out/tables/runs.csv")
        if row["kind"] == "pre-training"
    }
    assert (
        "Held-out accuracy 25.00, Perplexity 50.00, Joint perplexity 45.24, Own mask, % 96.00"
        in results
    )
    assert "own mask, p = 38.7%" in (grid / "out/figures/sweep-curves.svg").read_text()


def test_exlm_knows_masks_together_if_its_seeds_say_so(grid, tmp_path):
    found = read_csv(grid / "out/tables/findings.csv")
    found = {
        row["claim"]: row for row in found if row["claim"].startswith("ExLM knows masks together")
    }
    assert len(found) == 2 and {row["our runs"] for row in found.values()} == {"shows"}
    words = found["ExLM knows masks together (its joint nll is below its own marginal nll)"][
        "numbers"
    ]
    error = stdev([0.10, 0.12]) / 2**0.5  # pooled over the two numbers, of which one does not vary
    terms = "+1 × 3.912 ExLM; -1 × 3.802 ExLM (Marginal nll and Joint nll)"
    assert words == f"+0.110 (standard error {error:.3f}): {terms}"
    pretraining(tmp_path, "mlm", objective="mlm", joint=math.log(50))
    for seed, joint in enumerate((3.8, 4.0, 4.2)):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=joint)
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = [
        row
        for row in read_csv(tmp_path / "out/tables/findings.csv")
        if "masks together" in row["claim"]
    ]
    assert [row["our runs"] for row in rows] == [
        "within the spread of seeds",
        "one seed, not decided",
    ]


def test_runs_without_joint_numbers_are_read_and_blank(tmp_path):
    pretraining(tmp_path, "mlm", objective="mlm", joint=3.9)
    for k in (2, 4):
        pretraining(tmp_path, f"exlm-{k}", num_states=k)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "masks together" not in (tmp_path / "out/tables/findings.csv").read_text()
    row = next(
        row for row in read_csv(tmp_path / "out/tables/sweep.csv") if row["model"] == "ExLM, k = 4"
    )
    assert row["Joint perplexity"] == "" and row["Perplexity"]
    assert "own mask, p" not in (tmp_path / "out/figures/sweep-curves.svg").read_text()


def test_the_rule_of_two_standard_errors(tmp_path):
    assert decide(1.0, 0.4) == "yes" and decide(-1.0, 0.4) == "no"
    assert decide(0.7, 0.4) == decide(-0.7, 0.4) == "unclear"
    assert decide(1.0, None) == "one seed"
    values = {"exlm": [0.60, 0.64, 0.62], "mlm": [0.60, 0.61]}
    for name, scores in values.items():
        for seed, score in enumerate(scores):
            model = pretraining(tmp_path, f"{name}-{seed}", objective=name, seed=seed)
            finetuning(tmp_path, f"t-{name}-{seed}", model, "rte", [score - 0.01, score + 0.01])
    pretraining(tmp_path, "ablated", rotary="1d")
    family = only_family(tmp_path)
    exlm, mlm = (Cell("ExLM", 4, 0.15), Cell("Vanilla MLM", 1, 0.15))

    def error(weight, other, score):
        terms = [Term(weight, exlm, [score]), Term(-1, other, [score])]
        return weighted_sum(family.results, terms)[1]

    pooled = (2 * 4.0 + 1 * 0.5) / 3  # variances of pre-training seeds, by their degrees of freedom
    assert error(1, mlm, "rte") == pytest.approx((pooled * (1 / 3 + 1 / 2)) ** 0.5)
    assert error(2, mlm, "rte") == pytest.approx((pooled * (4 / 3 + 1 / 2)) ** 0.5)
    assert error(1, Cell("ExLM w/o 2D RoPE", 4, 0.15), ACCURACY) is None


def test_a_label_says_corpus_size_and_updates(tmp_path):
    pretraining(tmp_path, "m")
    assert (
        only_family(tmp_path).label
        == "text · 4 layers × 128 · 1.0M parameters · 100 updates of 4,096 tokens"
    )


def test_equal_labels_get_the_settings_that_differ(tmp_path):
    for rate in (1e-3, 2e-3):
        pretraining(tmp_path, f"m{rate}", rate=rate)
    first, second = sorted(family.label for family in families(find_runs([str(tmp_path)])))
    assert first.endswith("4,096 tokens · train.optimizer.learning_rate = 0.001")
    assert second == first.replace("0.001", "0.002")


def test_the_grid_of_the_report_is_that_of_the_experiment(tmp_path):
    pretraining(tmp_path, "a", r=2, objective="mlm")
    shown = [(cell.p, cell.r) for cell in only_family(tmp_path).grid()]
    assert sorted(shown) == sorted(Space().grid()) and len(shown) == 14
    assert (0.15, 4) in shown and (0.387, 8) not in shown


def test_an_entropy_of_no_token_is_blank_and_costs_nothing_else(tmp_path):
    run_dir = pretraining(tmp_path, "a", 0.387, 4, objective="mlm", entropy=4.0)
    pretraining(tmp_path, "b", 0.387, 2, objective="mlm", entropy=4.0)
    content = json.loads((run_dir / "measurements.json").read_text())
    content["entropy"] |= {"mean": None, "std": None, "stderr": None, "tokens": 0}
    write(run_dir / "measurements.json", content)
    assert not find_runs([str(tmp_path)]).damaged
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = {
        r["r"]: r for r in read_csv(tmp_path / "out/tables/repeated-mlm.csv") if r["p, %"] == "38.7"
    }
    assert rows["4"]["Entropy, bits"] == "" and rows["4"]["Tokens of entropy"] == "0.0"
    assert float(rows["4"]["Corrupted, %"]) == pytest.approx(100 * 0.387**4, rel=0.2)
    assert rows["2"]["Entropy, bits s.d."] == "0.03" and rows["2"]["Tokens of entropy"] == "2500.0"


def test_data_that_are_not_the_published_are_named(tmp_path):
    model = pretraining(tmp_path, "m")
    finetuning(
        tmp_path,
        "t",
        model,
        "mrpc",
        [0.68, 0.69],
        departures=["valid has 1,725 rows, GLUE's has 408"],
    )
    report([str(tmp_path)], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Not the published data: MRPC: valid has 1,725 rows, GLUE's has 408." in text


def test_damaged_files_are_counted_and_named(tmp_path, capsys):
    good = pretraining(tmp_path, "good", entropy=3.0)
    pretraining(tmp_path, "cut").joinpath("result.json").write_text('{"identity": {')
    write(tmp_path / "odd" / "result.json", {"identity": {}})
    write(tmp_path / "list" / "results.json", [1])
    write(good / "measurements.json", {"entropy": {"mean": "high"}})
    pretraining(tmp_path, "endless", joint=math.inf, seed=1)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "experiments: 5. Of these, damaged: 5." in capsys.readouterr().out
    rows = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    assert {row["file"].split("/")[-2] for row in rows} == {"cut", "odd", "list", "good", "endless"}
    assert [row["directory"] for row in read_csv(tmp_path / "out" / "tables" / "runs.csv")] == [
        str(good)
    ]


def test_measured_cost_alone_is_a_report(tmp_path):
    efficiency(tmp_path / "cost")
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = read_csv(tmp_path / "out" / "tables" / "efficiency.csv")
    assert [row["model"] for row in rows] == [
        "ExLM, k = 4",
        "Vanilla MLM",
        "ExLM, k = 4, expanded layers: all",
    ]
    assert [row["times MLM"] for row in rows] == ["1.9", "1.0", "1.6"] and rows[0][
        "source"
    ] == "paper"
    assert rows[2]["clock"] == "wall time" and rows[2]["quartiles"] == "1.55–1.66"


@pytest.mark.parametrize(
    "roots,message",
    [([], "at least one"), (["empty"], "no finished run"), (["no"], "is not a directory")],
)
def test_nothing_to_report_is_one_sentence(tmp_path, capsys, roots, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(
            ["report", *(str(tmp_path / root) for root in roots), "--output", str(tmp_path / "out")]
        )
    error = capsys.readouterr().err
    assert (
        caught.value.code == 2
        and message in error
        and "Traceback" not in error
        and not (tmp_path / "out").exists()
    )
    with pytest.raises(InputError):
        find_runs([str(tmp_path / "empty")])


def test_drawn_cases_are_shown(tmp_path):
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><g id="a"/></svg>'
    run_dirs = [pretraining(tmp_path / "runs", f"exlm {seed}", seed=seed) for seed in range(4)]
    ids = [run.id for run in only_family(tmp_path / "runs").runs]
    for run_dir in run_dirs[:2]:
        (run_dir / "case.svg").write_text(svg)
    out = tmp_path / "out"
    report([str(tmp_path / "runs")], str(out))
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"case-{name}.svg" for name in ids[:2]
    }
    assert (out / "figures" / f"case-{ids[0]}.svg").read_text() == svg
    text, page = (out / "report.md").read_text(), (out / "index.html").read_text()
    assert f"](figures/case-{ids[0]}.svg)" in text and "ExLM, k = 4, p = 15%, seed 0" in text
    assert page.count('src="data:image/svg+xml;base64,') == 2 and 'id="a"' not in page


def test_a_file_is_no_place_for_a_report(tmp_path):
    pretraining(tmp_path / "runs", "exlm")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out is a file; give a directory"):
        report([str(tmp_path / "runs")], str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"


@pytest.fixture(scope="module")
def source():
    """The paper's LaTeX source, or a skip."""
    base = Path(os.environ.get("EXLM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = base.parent / "reference" / "exlm_paper.tex"
    if not path.is_file():
        pytest.skip(
            f"the paper's source is not at {path}; set EXLM_DATA to the data folder beside it"
        )
    return path.read_text()


def table_of(source, label):
    """(first cells, numbers) of every row of a table; a dash or nothing is None."""
    position = source.index(f"\\label{{{label}}}")
    start = source.rindex(r"\begin{table", 0, position)
    body = source[start : source.index(r"\end{table", position)].split(r"\midrule", 1)[1]
    rows = []
    for line in re.sub(r"\\(midrule|bottomrule|rowcolor\{\w+\})", "", body).split(r"\\"):
        cells = [
            re.sub(r"\\(textbf|underline|mathrm|rm)\b|[{}$*^_]", "", cell).strip()
            for cell in line.split("&")
        ]
        numbers = [
            float(c) if re.fullmatch(r"[\d.]+", c) else None
            for cell in cells[1:]
            for c in cell.split("/")
        ]
        if len(cells) > 4 and any(numbers):
            rows.append((line, numbers))
    return rows


def same(numbers, values):
    assert len(numbers) == len(values) and all(a == b for a, b in zip(numbers, values, strict=True))


def test_the_papers_main_tables_are_the_sources(source):
    def printed(name):
        main = paper.MAIN_TABLES[name]
        return [*main["quoted"].values(), *main["paper"].values()]

    rows = table_of(source, "table::classification")
    for (_, numbers), values in zip(rows, printed("main-molecules"), strict=True):
        same(numbers, values)
    rows = table_of(source, "tab:main_res")
    for (_, numbers), values in zip(rows, printed("main-text"), strict=True):
        padded = numbers if len(numbers) == 12 else [numbers[0], None, *numbers[1:]]
        same(padded, values)


def test_the_papers_ablations_and_states_are_the_sources(source):
    names = {"w/o 2D RoPE": "ExLM w/o 2D RoPE", "w/o Transitions": "ExLM w/o Transitions"}
    names |= {"Sparse": "ExLM w/ Sparse DAG", "MLM++": "Vanilla MLM++", "MLM ": "Vanilla MLM"}
    seen = set()
    for label in ("table::ablations", "table::ablations_sparse"):
        for line, numbers in table_of(source, label):
            name = next((full for part, full in names.items() if part in line), "ExLM")
            seen.add(name)
            same(numbers, paper.ABLATIONS[name][:5])
    assert seen == set(paper.ABLATIONS)
    rows, p = {}, None
    for line, numbers in table_of(source, "table::impact_ratio"):
        if found := re.search(r"(\d+\.?\d*)\\%", line):
            p = round(float(found[1]) / 100, 4)
        k = re.search(r"k=\$?(\d)", line)
        rows[p, int(k[1]) if k else 1] = numbers[-5:]
    cells = {Cell("ExLM" if k > 1 else "Vanilla MLM", k, p): row for (p, k), row in rows.items()}
    assert cells == paper.SWEEP


def test_the_papers_stated_numbers_are_in_its_text(source):
    assert "from $83.6$ to $82.8$" in source and "from $82.8$ to $79.6$" in source
    mnli = {(cell.p, cell.r): row[0] for cell, row in paper.REPEATED.items() if cell.k == 1}
    assert mnli == {(0.15, 1): 83.6, (0.789, 8): 82.8, (0.789, 1): 79.6, (0.387, 1): 83.3}
    assert "GPU Time (Hours)  & 54.7 & 104.2" in source and "approximately 1.9 times" in source
    hours = [paper.ABLATIONS[method][5] for method in ("Vanilla MLM", "ExLM")]
    assert hours == [54.7, 104.2] and paper.VALUES["cost"]["times MLM"] == 1.9


def test_scores_of_the_same_runs_are_compared_run_by_run():
    """The runs differ much, their two scores never do."""
    cell = Cell("ExLM", 4, 0.15)
    values = [("a", 1.0), ("b", 3.0), ("c", 5.0)]
    rows = [(*cell, run, "marginal", value, None) for run, value in values]
    rows += [(*cell, run, "joint", value - 0.5, None) for run, value in values]
    columns = [*Cell._fields, "run", "score", "value", "error"]
    results = Results(pd.DataFrame(rows, columns=columns))
    terms = [Term(1, cell, ["marginal"]), Term(-1, cell, ["joint"])]
    assert weighted_sum(results, terms) == (0.5, 0.0)
    with pytest.raises(ValueError, match="has the weights 1 and 2"):
        weighted_sum(results, [terms[0], Term(-2, cell, ["joint"])])


def test_tables_of_one_name_have_headings_of_their_own(tmp_path):
    """A path that held another table once, or train.csv of two projects."""
    for name, content in {"a": "1" * 64, "b": "2" * 64}.items():
        path = finetuning(tmp_path, name, tmp_path / name, "esol", [1.0], "rmse") / "results.json"
        result = json.loads(path.read_text())
        result["settings"]["data_sha256"] = content
        write(path, result)
    report([str(tmp_path)], str(tmp_path / "out"))
    headings = {row["group"] for row in read_csv(tmp_path / "out" / "tables" / "mine.csv")}
    assert {heading.rpartition(", data ")[2] for heading in headings} == {"1" * 8, "2" * 8}


def test_a_run_with_the_settings_of_another_is_named(tmp_path):
    for name in "ab":
        finetuning(tmp_path / name, "tuned", tmp_path / "model", "esol", [1.0], "rmse")
    report([str(tmp_path)], str(tmp_path / "out"))
    (run,) = read_csv(tmp_path / "out" / "tables" / "mine.csv")
    rows = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    (row,) = [row for row in rows if row["file"] == str(tmp_path / "b" / "tuned")]
    assert row["what"] == f"run {run['runs']}"
