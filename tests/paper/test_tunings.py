"""Fine-tunings in the report: means and spreads by hand, and which are compared."""

import hashlib
from collections import defaultdict
from pathlib import Path
from statistics import median, stdev

import pytest

from exlm.paper.comparisons import weighted_sum
from exlm.paper.display import Variant
from exlm.paper.find_runs import find_runs
from exlm.paper.groups import SeedMeans
from exlm.paper.report import report
from exlm.paper.tables import runs_table
from tests.paper.fake_runs import editing, finetuning, pretraining, write
from tests.paper.reports import only_group, read_csv, report_table


def test_means_medians_and_spread_over_both_kinds_of_seeds(tmp_path):
    values = {0: [0.70, 0.72, 0.80], 1: [0.60, 0.62, 0.61]}
    for seed, scores in values.items():
        model = pretraining(tmp_path, f"m{seed}", seed=seed, accuracy=0.2 + seed / 10)
        finetuning(tmp_path, f"t{seed}", model, "rte", scores)
    group = only_group(tmp_path)
    exlm = Variant("exlm", 4, 0.15)
    mean, deviation = group.means.mean(exlm, "rte")
    middle, _ = SeedMeans(group.numbers, median).mean(exlm, "rte")
    assert mean == pytest.approx((74.0 + 61.0) / 2)
    assert middle == pytest.approx((72.0 + 61.0) / 2)
    assert deviation == pytest.approx(100 * stdev([0.70, 0.72, 0.80, 0.60, 0.62, 0.61]))
    # in the order of their identifiers, which are hashes
    assert sorted(group.means.run_by_run(exlm, "rte")) == pytest.approx([61.0, 74.0])
    assert group.means.mean(exlm, "evaluation/accuracy")[0] == pytest.approx(25.0)
    difference = weighted_sum(group.means, [(1, exlm, ["rte"])])
    assert difference.error == pytest.approx(stdev([74.0, 61.0]) / 2**0.5)


def test_the_mean_of_tasks_is_that_of_the_runs_that_have_all(tmp_path):
    for seed in (0, 1):
        model = pretraining(tmp_path, f"m{seed}", seed=seed)
        finetuning(tmp_path, f"rte{seed}", model, "rte", [0.6, 0.8])
    finetuning(tmp_path, "cola", model, "cola", [0.5])
    means = only_group(tmp_path).means
    exlm = Variant("exlm", 4, 0.15)
    assert means.mean(exlm, "rte", "cola")[0] == pytest.approx(60.0)
    assert len(means.run_by_run(exlm, "rte", "cola")) == 1
    assert means.mean(exlm, "rte", "mrpc") is means.mean(exlm) is None


def test_a_run_has_a_number_for_each_score_and_seed(tmp_path):
    model = pretraining(tmp_path, "m", accuracy=0.25, entropy=3.0)
    finetuning(tmp_path, "t", model, "rte", [0.6, 0.7])
    finetuning(tmp_path, "u", model, "rte", [0.5], baseline="tfidf-lr")
    runs = find_runs([str(tmp_path)])
    for [run], scores in ((runs.finetunings, [60.0, 70.0]), (runs.baselines, [50.0])):
        assert run.scores.numbers["rte"] == pytest.approx(scores, abs=1e-9)
    [run] = runs.pretrainings
    assert run.numbers["evaluation/accuracy"] == [25.0]
    assert (run.numbers["entropy/mean"], run.numbers["entropy/stderr"]) == ([3.0], [0.03])


def test_a_fine_tuning_is_linked_by_weights_before_names(tmp_path):
    for name, k in (("a", 2), ("b", 4)):
        run_dir = pretraining(tmp_path, name, num_states=k)
        write(run_dir / "manifest.json", {"files": {"model.safetensors": {"sha256": name * 64}}})
    weights = hashlib.sha256(b"b" * 64).hexdigest()
    finetuning(tmp_path, "t", tmp_path / "a", "rte", [0.6], model_sha256=weights)
    group = only_group(tmp_path)
    assert group.means.mean(Variant("exlm", 4, 0.15), "rte")
    assert not group.means.mean(Variant("exlm", 2, 0.15), "rte")


def test_only_fine_tunings_with_the_same_settings_are_compared(tmp_path):
    for k in (2, 4, 8):
        model = pretraining(tmp_path, f"m{k}", num_states=k)
        finetuning(tmp_path, f"t{k}", model, "rte", [0.6, 0.7], rate=1e-4 if k < 8 else 5e-4)
    finetuning(tmp_path, "scratch", tmp_path / "m4", "rte", [0.5, 0.5], from_scratch=True)
    group = only_group(tmp_path)
    assert sorted(run.path.name for run in group.finetunings) == ["t2", "t4"]
    assert group.means.mean(Variant("exlm", 4, 0.15), "rte")[0] == pytest.approx(65.0)
    listed = runs_table([group], find_runs([str(tmp_path)])).rows
    others = defaultdict(set)
    for row in listed:
        others[row["group"].partition(":")[0]].add(Path(row["directory"]).name)
    assert others["other fine-tunings of these models"] == {"t8"}
    assert others["other fine-tunings"] == {"scratch"}


def test_a_fine_tuning_on_another_label_keeps_the_id_of_its_pre_training(tmp_path):
    model = pretraining(tmp_path, "m")
    for name in ("activity", "qc"):
        path = finetuning(tmp_path, name, model, "assay.csv", [0.6]) / "results.json"
        with editing(path) as result:
            for settings in (result["settings"], result["runs"][0]["settings"]):
                settings["task"]["label_columns"] = [name]
    runs = find_runs([str(tmp_path)])
    *_, first, second = runs_table([only_group(tmp_path)], runs).rows
    assert first["what"].startswith(f"assay from {runs.pretrainings[0].id}, ")
    assert second["what"] == f"assay from {runs.pretrainings[0].id}"
    assert second["group"].startswith("other fine-tunings of these models: other labels")


def test_label_columns_are_no_other_setting_where_a_user_named_them(tmp_path):
    model = pretraining(tmp_path, "m")
    for name, rate in (("named", 1e-4), ("found", 2e-4)):
        path = finetuning(tmp_path, name, model, "assay.csv", [0.6], rate=rate) / "results.json"
        with editing(path) as result:
            result["runs"][0]["label_columns"] = ["logD"]
            if name == "named":
                for settings in (result["settings"], result["runs"][0]["settings"]):
                    settings["task"]["label_columns"] = ["logD"]
    report([str(tmp_path)], str(tmp_path / "out"))
    rows = read_csv(tmp_path / "out/tables/mine.csv")
    assert len(rows) == 2 and len({row["group"] for row in rows}) == 1
    assert all(row["settings"] and "label_columns" not in row["settings"] for row in rows)


def test_the_table_of_runs_has_hours_rows_and_checksums_of_fine_tunings(tmp_path):
    path = finetuning(tmp_path, "t", tmp_path / "model", "/data/assay.csv", [0.6, 0.7])
    with editing(path / "results.json") as result:
        for run in result["runs"]:
            run["split"] = {"train": 8, "valid": 2}
            run["file_sha256"] = {"/data/assay.csv": "ab" * 32}
            log = path / result["best"] / f"seed-{run['seed']}" / "log.jsonl"
            log.write_text(
                '{"step": 1, "kind": "train", "seconds": 900}\n{"step": 1, "kind": "eval"}\n'
            )
    report([str(tmp_path)], str(tmp_path / "out"))
    [row] = read_csv(tmp_path / "out/tables/runs.csv")
    assert float(row["hours"]) == 0.5 and row["rows"] == "8 train, 2 valid"
    assert row["SHA-256 of the data"] == f"assay.csv {'ab' * 32}"


def test_the_rows_that_a_training_had_are_a_range_over_seeds(tmp_path):
    path = finetuning(tmp_path, "t", tmp_path / "model", "esol", [1.0, 1.1, 1.2], "rmse", "test")
    with editing(path / "results.json") as result:
        result["counts"] = {"test": {"rows": {"median": 224.0}}}
        for run, count in zip(result["runs"], (18, 15, 17), strict=True):
            run |= {"in_train": {"test": count}, "in_earlier_training": {"test": None}}
    [tuning] = find_runs([str(tmp_path)]).finetunings
    assert tuning.scored_rows.count_with_seen == "224, 15 to 18 of them in the training"


def test_fine_tunings_that_differ_in_hyper_parameters_stand_beside_their_baseline(tmp_path):
    for rate, score in ((1e-4, 1.2), (5e-4, 0.9)):
        settings = {"rate": rate, "precision": "bf16"}  # of a model, not of the baseline
        scores = [score, score + 0.2]
        finetuning(tmp_path, f"t{rate}", tmp_path / "gone", "esol", scores, "rmse", **settings)
    finetuning(tmp_path, "forest", tmp_path, "esol", [1.1], "rmse", baseline="ecfp-rf")
    finetuning(tmp_path, "other", tmp_path / "gone", "rte", [0.6])
    rows = report_table(tmp_path, "mine")
    assert [(row["model"].split("/")[-1], row["settings"], row["score"]) for row in rows] == [
        ("gone", "train.learning_rate = 0.0005", "1.0"),
        ("ECFP4 + random forest", "train.learning_rate = 0.0001", "1.1"),
        ("gone", "train.learning_rate = 0.0001", "1.2999999999999998"),
        ("gone", "", "60.0"),
    ]
    assert {(row["interval"], row["rows"]) for row in rows} == {("", "")}  # of an earlier version
    listed = read_csv(tmp_path / "out" / "tables" / "runs.csv")
    assert {row["runs"] for row in rows} == {row["run"] for row in listed} and len(listed) == 4


def test_a_report_of_somebodys_own_models_is_not_about_the_paper(tmp_path):
    finetuning(tmp_path, "tuned", tmp_path / "gone", "bbbp", [0.6])
    finetuning(tmp_path, "forest", tmp_path, "bbbp", [0.5], baseline="ecfp-rf")
    out = tmp_path / "out"
    report([str(tmp_path)], str(out))
    page = (out / "report.md").read_text()
    assert page.startswith("# Runs and their scores\n")
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == ["## Your models beside their baselines", "## Runs"]
    assert {path.stem for path in (out / "tables").iterdir()} == {"mine", "runs"}
    pretraining(tmp_path, "own")  # there is nothing to compare it with
    report([str(tmp_path)], str(out))
    assert (out / "report.md").read_text().startswith("# Runs and their scores\n")
    pretraining(tmp_path, "mlm", objective="mlm")
    report([str(tmp_path)], str(out))
    assert (out / "report.md").read_text().startswith("# The paper's experiments")


def test_models_that_differ_in_their_start_or_precision_are_told_apart(tmp_path):
    settings = {"precision": "fp32"}
    finetuning(tmp_path, "plain", tmp_path / "model", "esol", [1.0], "rmse", **settings)
    settings["start_from"] = "runs/logd"
    finetuning(tmp_path, "later", tmp_path / "model", "esol", [0.9], "rmse", **settings)
    settings["precision"] = "bf16"
    finetuning(tmp_path, "half", tmp_path / "model", "esol", [0.8], "rmse", **settings)
    rows = report_table(tmp_path, "mine")
    assert [row["settings"] for row in rows] == [
        "start_from = runs/logd, precision = bf16",
        "start_from = runs/logd, precision = fp32",
        "precision = fp32",
    ]


def test_the_interval_over_rows_is_that_of_the_fine_tuning(tmp_path):
    """In percent where the score is; undefined without both classes, say."""
    for name, metric, interval in (
        ("esol", "rmse", {"low": {"median": 0.93}, "high": {"median": 1.43}}),
        ("bbbp", "roc_auc", {"low": {"median": 0.651}, "high": {"median": 0.75}}),
        ("bace", "roc_auc", {"low": {"median": None}, "high": {"median": None}}),
    ):
        path = finetuning(tmp_path, name, tmp_path / "model", name, [0.7], metric) / "results.json"
        with editing(path) as result:
            result |= {
                "counts": {"valid": {"rows": {"median": 20.0}}},
                "interval": {"valid": interval},
            }
    rows = report_table(tmp_path, "mine")
    shown = {row["group"].split(":")[0]: (row["interval"], row["rows"]) for row in rows}
    assert shown == {
        "ESOL": ("0.930 to 1.430", "20"), "BBBP": ("65.1 to 75.0", "20"), "BACE": ("", "20"),
    }  # fmt: skip


def test_f1_of_answers_is_in_percent_already_and_f1_of_two_classes_is_not(tmp_path):
    for name, score in (("squad2", 49.7), ("/data/screening.csv", 0.5)):
        path = finetuning(tmp_path, name[-6:], tmp_path / "model", name, [score], "f1")
        with editing(path / "results.json") as result:
            result["interval"] = {
                "valid": {"low": {"median": score}, "high": {"median": score}},
            }
    rows = report_table(tmp_path, "mine")
    shown = {(row["score"], row["interval"]) for row in rows}
    assert shown == {("49.7", "49.7 to 49.7"), ("50.0", "50.0 to 50.0")}
    assert all(" valid f1, %," in row["group"] for row in rows)


def test_scores_of_a_metric_that_is_not_known_are_not_ranked(tmp_path):
    for name, score in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        finetuning(tmp_path, name, tmp_path / name, "/data/screening.csv", [score], "enrichment")
    rows = report_table(tmp_path, "mine")
    assert [row["model"][-1] for row in rows] == ["a", "b", "c"]
    assert {row["group"].split("split ")[1] for row in rows} == {
        "parts, in no order (this version does not have the metric)"
    }


def test_a_data_set_called_as_a_column_leaves_the_column_alone(tmp_path):
    model = pretraining(tmp_path, "m")
    pretraining(tmp_path, "mlm", objective="mlm")
    for number, name in enumerate(("seeds", "model", "group", "avg.")):
        finetuning(tmp_path, name, model, f"/data/{name}.csv", [0.5 + number / 10])
    row = report_table(tmp_path, "ablations")[-1]
    assert (row["model"], row["seeds"], row["avg."]) == ("ExLM", "1 × 1", "65.0")
    assert [row[f"data set {name}"] for name in ("seeds", "model")] == ["50.0", "60.0"]


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
        with editing(path) as result:
            result["settings"]["task"] |= {"split": "random", **options}
            if name == "e":
                result["runs"][0]["label_columns"] = ["measured", "other"]
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
    group = only_group(tmp_path)
    assert group.tasks == ["squad2", "bace", "esol"]
    values = [group.means.mean(Variant("exlm", 4, 0.15), task)[0] for task in group.tasks]
    assert values == pytest.approx([49.7, 80.0, 1.25])


def test_only_shares_are_shown_in_percent_and_averaged(tmp_path):
    model = pretraining(tmp_path, "m")
    pretraining(tmp_path, "ablated", rotary="1d")
    finetuning(tmp_path, "a", model, "rte", [0.6])
    finetuning(tmp_path, "b", model, "/data/screening.csv", [12.5], "enrichment", "test")
    # the name of a column, too
    finetuning(tmp_path, "c", model, "/data/entropy.csv", [0.3], "rmse", "test")
    row = next(row for row in report_table(tmp_path, "ablations") if row["model"] == "ExLM")
    assert (row["RTE"], row["screening"], row["entropy"], row["avg."]) == (
        "60.0",
        "12.5",
        "0.3",
        "60.0",
    )


@pytest.mark.parametrize(
    "split,seeds,rows,headings",
    [
        ("scaffold", [2, 2], [113, 113], [""]),
        ("scaffold", [2, 3], [113, 113], [""]),
        ("scaffold", [2, 2], [113, 112], [", rows scored: 112", ", rows scored: 113"]),
        ("scaffold", [2, 2], [None, 113], [", rows scored: 113", ", rows scored: unknown"]),
        ("random", [2, 2], [113, 113], [""]),
        (
            "random",
            [2, 3],
            [113, 113],
            [", rows scored: 113 with seeds 0 1", ", rows scored: 113 with seeds 0 1 2"],
        ),
    ],
)
def test_scores_of_different_rows_are_not_ranked_together(tmp_path, split, seeds, rows, headings):
    """A model leaves out what it cannot read, and a random split samples other rows by seed."""
    for name, count, rows_scored in zip("ab", seeds, rows, strict=True):
        values = [1.0 + seed / 10 for seed in range(count)]
        path = finetuning(tmp_path, name, tmp_path / name, "esol", values, "rmse", "test")
        with editing(path / "results.json") as result:
            result["settings"]["task"]["split"] = split
            for run in result["runs"]:
                if rows_scored is not None:
                    run["counts"] = {"test": {"rows": rows_scored}}
    groups = [row["group"] for row in report_table(tmp_path, "mine")]
    assert len(groups) == 2
    assert sorted(set(groups)) == [f"ESOL: test rmse, split {split}{end}" for end in headings]


def test_tables_of_one_name_have_headings_of_their_own(tmp_path):
    """A path that held another table once, train.csv of two projects, or one table in two
    formats."""
    for name, content in {"own.csv": "1" * 64, "own.jsonl": "2" * 64}.items():
        path = finetuning(tmp_path, name, tmp_path / name, name, [1.0], "rmse") / "results.json"
        with editing(path) as result:
            result["settings"]["data_sha256"] = content
    headings = {row["group"] for row in report_table(tmp_path, "mine")}
    assert {heading.rpartition(", data ")[2] for heading in headings} == {
        f"{checksum} (not compared with other files or formats)"
        for checksum in ("11111111", "22222222")
    }


def test_models_of_other_training_tables_are_ranked_together_on_the_same_test_rows(tmp_path):
    for name, score, rows in (("old", 1.0, "r"), ("new", 0.9, "r"), ("other", 0.8, "s")):
        path = finetuning(tmp_path, name, tmp_path / name, "own.csv", [score], "rmse", "test")
        with editing(path / "results.json") as result:
            result["settings"]["data_sha256"] = name * 20
            result["runs"][0]["rows_sha256"] = {"test": rows * 64}
    report([str(tmp_path)], str(tmp_path / "out"))
    groups = defaultdict(list)
    for row in read_csv(tmp_path / "out" / "tables" / "mine.csv"):
        groups[row["group"]].append(row["model"].split("/")[-1])
    assert sorted(groups.values()) == [["new", "old"], ["other"]]


def test_baselines_of_the_same_rows_stand_in_the_main_table_whatever_their_file(tmp_path):
    for objective in ("exlm", "mlm"):
        model = pretraining(tmp_path, objective, objective=objective)
    tuned = finetuning(tmp_path, "tuned", model, "bbbp", [0.7], "roc_auc", "test")
    same = finetuning(tmp_path, "same", model, "bbbp", [0.6], "roc_auc", "test", baseline="ecfp-rf")
    other = finetuning(tmp_path, "o", model, "bbbp", [0.5], "roc_auc", "test", baseline="ecfp-lr")
    for path, data, rows in ((tuned, "1", "r"), (same, "2", "r"), (other, "3", "s")):
        with editing(path / "results.json") as result:
            result["settings"]["data_sha256"] = data * 64
            result["runs"][0]["rows_sha256"] = {"test": rows * 64}
    rows = report_table(tmp_path, "main-molecules")
    assert [row["model"] for row in rows if "baselines" in row["group"]] == [
        "ECFP4 + random forest"
    ]


def test_scores_of_the_same_runs_are_compared_run_by_run():
    """The runs differ much, their two scores never do."""
    exlm = Variant("exlm", 4, 0.15)
    values = {"a": 1.0, "b": 3.0, "c": 5.0}
    numbers = {run: {"marginal": [value], "joint": [value - 0.5]} for run, value in values.items()}
    means = SeedMeans({exlm: numbers})
    terms = [(1, exlm, ["marginal"]), (-1, exlm, ["joint"])]
    difference = weighted_sum(means, terms)
    assert (difference.value, difference.error) == (0.5, 0.0)


def test_a_run_with_the_settings_of_another_is_named(tmp_path):
    for name in "ab":
        finetuning(tmp_path / name, "tuned", tmp_path / "model", "esol", [1.0], "rmse")
    (run,) = report_table(tmp_path, "mine")
    rows = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    (row,) = [row for row in rows if row["file"] == str(tmp_path / "b" / "tuned")]
    assert row["what"] == f"run {run['runs']}"
