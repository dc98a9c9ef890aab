"""Groups: every run is of its model, beside the runs it can be compared with, under a label."""

import json
from pathlib import Path

import pytest

from exlm.model.objectives import CTC, OBJECTIVES, VanillaMLM
from exlm.paper.analyze import Space
from exlm.paper.comparisons import claims_table
from exlm.paper.display import Variant
from exlm.paper.find_runs import find_runs
from exlm.paper.groups import group_runs
from exlm.pretrain.settings import DataConfig
from tests.paper.fake_runs import editing, efficiency, finetuning, pretraining
from tests.paper.reports import only_group, read_csv, report_table


@pytest.mark.parametrize(
    "switches,model",
    [
        (dict(objective="exlm", num_states=4), Variant("exlm", 4, 0.15)),
        (dict(objective="exlm", num_states=8, p=0.387), Variant("exlm", 8, 0.387)),
        (dict(rotary="1d"), Variant("exlm-1d", 4, 0.15)),
        (dict(objective="ctc"), Variant("ctc", 4, 0.15)),
        (dict(dag="sparse"), Variant("exlm-sparse", 4, 0.15)),
        (dict(objective="mlm"), Variant("mlm", 1, 0.15)),
        (dict(objective="mlm", p=0.789, r=8), Variant("mlm", 1, 0.789, 8)),
    ],
)
def test_a_run_belongs_to_the_model_of_its_settings_whatever_its_directory_is_called(
    tmp_path, switches, model
):
    pretraining(tmp_path, "a-misleading-mlm-exlm-k2", **switches)
    assert list(only_group(tmp_path).models) == [model]


def test_a_vanilla_mlm_with_more_updates_than_exlm_is_mlm_plus_plus(tmp_path):
    pretraining(tmp_path, "a")
    pretraining(tmp_path, "b", objective="mlm")
    pretraining(tmp_path, "c", objective="mlm", steps=200)
    group = only_group(tmp_path)
    assert {model.method for model in group.models} == {"exlm", "mlm", "mlm-plus-plus"}
    assert group.label.endswith("100 updates of 4,096 tokens")


def test_mlm_plus_plus_has_the_updates_closest_to_the_measured_cost(tmp_path):
    study = tmp_path / "study"
    efficiency(study)
    pretraining(study, "pretrain/exlm/seed-0")
    pretraining(study, "pretrain/plus/seed-0", objective="mlm", steps=160)
    pretraining(study, "pretrain/plus/seed-1", objective="mlm", steps=160, seed=1)
    pretraining(study, "pretrain/long/seed-0", objective="mlm", steps=190)
    rows = {row["model"]: row for row in report_table(tmp_path, "ablations")}
    assert (
        len(rows["Vanilla MLM++"]["runs"].split()) == 2
        and rows["Vanilla MLM++"]["updates"] == "160"
    )
    groups = {
        row["updates"]: row["group"] for row in read_csv(tmp_path / "out" / "tables" / "runs.csv")
    }
    assert groups["160"] == groups["100"] != groups["190"]  # a group of its own


def test_without_a_measured_cost_mlm_plus_plus_took_about_as_long_as_exlm(tmp_path):
    """An update of ExLM takes 72 s here, 100 of them as long as 200 updates of an MLM."""
    pretraining(tmp_path, "exlm")
    for steps in (110, 190, 400):
        result = pretraining(tmp_path, f"mlm-{steps}", objective="mlm", steps=steps) / "result.json"
        result.write_text(
            json.dumps(json.loads(result.read_text()) | {"training_seconds": 36.0 * steps})
        )
    group = group_runs(find_runs([str(tmp_path)]))[0]
    [plus] = group.select("mlm-plus-plus")
    assert [run.steps for run in group.runs_of(plus)] == [190]


def test_positions_in_all_features_and_ranges_of_masks_are_compared_among_themselves(tmp_path):
    for name, switches in {"2d": {}, "full": {"rotary": "full"}}.items():
        pretraining(tmp_path, f"exlm-{name}", **switches)
        pretraining(tmp_path, f"mlm-{name}", objective="mlm", **switches)
        pretraining(tmp_path, f"range-{name}", p=[0.02, 0.6], **switches)
    pretraining(tmp_path, "ablated", rotary="1d")
    groups = group_runs(find_runs([str(tmp_path)]))
    names = {frozenset(run.path.name for run in group.runs) for group in groups}
    pair = {f: frozenset({f"exlm-{f}", f"mlm-{f}", "ablated"}) for f in ("2d", "full")}
    assert names == {*pair.values(), frozenset({"range-2d"}), frozenset({"range-full"})}
    [full] = [group for group in groups if {run.path.name for run in group.runs} == pair["full"]]
    assert "model.rotary = full" in full.label


def test_each_mask_ratio_has_its_own_mlm_plus_plus(tmp_path):
    for p, steps in ((0.15, 160), (0.387, 190)):
        pretraining(tmp_path, f"exlm-{p}", p)
        pretraining(tmp_path, f"mlm-{p}", p, objective="mlm", steps=steps)
    group = group_runs(find_runs([str(tmp_path)]))[0]
    plus = group.select("mlm-plus-plus")
    lengths = {model.p: run.steps for model in plus for run in group.runs_of(model)}
    assert lengths == {0.15: 160, 0.387: 190}


def test_a_second_run_of_a_seed_is_left_out(tmp_path):
    pretraining(tmp_path, "a", max_position_embeddings=128)
    pretraining(tmp_path, "b", max_position_embeddings=256)
    (row,) = report_table(tmp_path, "left-out")
    assert (
        row["why"] == "another run has its seed" and row["what"] == "ExLM, k = 4, p = 15%, seed 0"
    )


def test_more_updates_alone_make_no_mlm_plus_plus(tmp_path):
    for steps in (100, 200):
        pretraining(tmp_path, f"mlm-{steps}", objective="mlm", steps=steps)
    assert [set(group.models) for group in group_runs(find_runs([str(tmp_path)]))] == [
        {Variant("mlm", 1, 0.15)}
    ] * 2


@pytest.mark.parametrize(
    "change", [{"corpus": "corpus/other"}, {"hidden_size": 256}, {"rate": 2e-3}, {"steps": 300}]
)
def test_groups_are_kept_apart_and_labelled_apart(tmp_path, change):
    pretraining(tmp_path, "a")
    pretraining(tmp_path, "b", **change)
    first, second = group_runs(find_runs([str(tmp_path)]))
    assert first.label != second.label
    pretraining(tmp_path, "c", objective="mlm", **change)
    groups = {row["group"] for row in report_table(tmp_path, "runs")}
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
    ],
)
def test_a_vanilla_mlm_is_compared_with_every_prior_and_expansion_of_exlm(tmp_path, change, words):
    pretraining(tmp_path, "mlm", objective="mlm", **change)
    pretraining(tmp_path, "exlm")
    pretraining(tmp_path, "exlm-now", seed=1, expanded_layers="all", copy_embedding=0.0)
    pretraining(tmp_path, "exlm-changed", **change)
    found = group_runs(find_runs([str(tmp_path)]))
    assert [{model.method for model in group.models} for group in found] == [{"exlm", "mlm"}] * 2
    assert [len(group.runs) for group in found] == [3, 2]
    assert found[1].label == f"{found[0].label} · {words}"
    assert len(report_table(tmp_path, "runs")) == 4


def test_what_has_no_links_stands_beside_all_priors_and_repeated_tokens_stand_once(tmp_path):
    pretraining(tmp_path, "mlm", objective="mlm")
    pretraining(tmp_path, "repeated", objective="mlm", r=2)
    pretraining(tmp_path, "longer", objective="mlm", steps=200)
    pretraining(tmp_path, "ctc", objective="ctc", expanded_layers=1)
    for order in (0.0, 4.0, 10.0):
        pretraining(tmp_path, f"exlm-{order}", prior={"order": order}, expanded_layers=1)
    pretraining(tmp_path, "exlm-all", prior={"order": 10.0}, steps=200)
    found = group_runs(find_runs([str(tmp_path)]))
    methods = [{model.method for model in group.models} for group in found]
    late = {"exlm", "ctc", "mlm", "mlm-plus-plus"}
    assert methods == [late] * 3 + [{"exlm", "mlm"}]
    assert sum(model.r == 2 for group in found for model in group.models) == 1


def test_an_objective_that_the_paper_does_not_have_keeps_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "electra", CTC)
    for objective in ("mlm", "exlm", "electra"):
        pretraining(tmp_path, objective, objective=objective)
    names = {row["what"] for row in report_table(tmp_path, "runs")}
    assert names == {"Vanilla MLM", "ExLM, k = 4", "electra, k = 4"}
    assert read_csv(tmp_path / "out" / "tables" / "ablations.csv")[-1]["model"] == "electra"


def test_the_model_says_whether_an_objective_has_states(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "electra", VanillaMLM)
    pretraining(tmp_path, "electra", objective="electra")
    assert list(only_group(tmp_path).models) == [Variant("electra", 1, 0.15)]


def test_a_label_says_corpus_size_and_updates(tmp_path):
    pretraining(tmp_path, "m")
    assert (
        only_group(tmp_path).label
        == "text · 4 layers × 128 · 1.0M parameters · 100 updates of 4,096 tokens"
    )


def test_equal_labels_get_the_settings_that_differ(tmp_path):
    for rate in (1e-3, 2e-3):
        pretraining(tmp_path, f"m{rate}", rate=rate)
    first, second = sorted(group.label for group in group_runs(find_runs([str(tmp_path)])))
    assert first.endswith("4,096 tokens · train.optimizer.learning_rate = 0.001")
    assert second == first.replace("0.001", "0.002")


def test_runs_scored_on_other_held_out_sequences_are_in_no_claim_together(tmp_path):
    for seed in (0, 1):
        for name, joint, count in (("exlm", 2.0 + seed / 9, 20), ("mlm", 2.9 + seed / 9, 0)):
            path = pretraining(tmp_path, f"{name}-{seed}", seed=seed, objective=name, joint=joint)
            with editing(path / "result.json") as result:
                result["recipe"]["data"]["eval_sequences"] = count
    groups = group_runs(find_runs([str(tmp_path)]))
    endings = sorted(group.label.split(" · ")[-1] for group in groups)
    assert endings == ["data.eval_sequences = 0", "data.eval_sequences = 20"]
    assert [row["claim"] for row in claims_table(groups).rows] == [
        "ExLM knows masks together (its joint nll is below its own marginal nll)"
    ]


def test_a_run_that_records_no_number_of_held_out_sequences_had_the_default(tmp_path):
    pretraining(tmp_path, "before")
    with editing(pretraining(tmp_path, "now", seed=1) / "result.json") as result:
        result["recipe"]["data"]["eval_sequences"] = DataConfig.eval_sequences
    assert len(only_group(tmp_path).runs) == 2


def scored(path, sequences, setting=2000):
    """Records how many held-out sequences were scored, and the setting."""
    with editing(path / "result.json") as result:
        result["evaluation"]["sequences"] = sequences
        result["recipe"]["data"]["eval_sequences"] = setting
    return path


def test_runs_that_scored_equally_many_sequences_are_compared_whatever_was_asked_for(tmp_path):
    for seed, setting in enumerate((0, 2000, 123)):
        scored(pretraining(tmp_path, f"exlm-{seed}", seed=seed), 123, setting)
    group = only_group(tmp_path)
    assert len(group.runs) == 3
    assert group.label.endswith("4,096 tokens · 123 held-out sequences scored")


def test_a_copy_that_was_scored_on_other_sequences_is_no_repetition(tmp_path):
    scored(pretraining(tmp_path, "a", joint=2.0), 2000)
    scored(pretraining(tmp_path, "b", joint=2.0), 2000)
    tuned = scored(pretraining(tmp_path, "c", joint=3.0), 20, setting=20)
    finetuning(tmp_path, "tuned", tuned, "rte", [0.6, 0.7])
    scored(pretraining(tmp_path, "mlm", objective="mlm", joint=3.5), 20, setting=20)
    [left_out] = report_table(tmp_path, "left-out")
    assert left_out["file"].endswith("/b") and "repetition" in left_out["why"]
    runs = read_csv(tmp_path / "out" / "tables" / "runs.csv")
    ids = {Path(row["directory"]).name: row["run"] for row in runs}
    assert set(ids) == {"a", "c", "mlm", "tuned"}
    assert ids["c"] == f"{ids['a']}-2"
    results = {row["run"]: row["result"] for row in runs}
    assert "Joint perplexity 7.39" in results[ids["a"]]
    assert "Joint perplexity 20.09" in results[ids["c"]]
    # The fine-tuning is of the model, however this was scored.
    for group in group_runs(find_runs([str(tmp_path)])):
        assert group.tasks == ["rte"]


def test_the_grid_of_the_report_is_that_of_the_experiment(tmp_path):
    pretraining(tmp_path, "a", r=2, objective="mlm")
    shown = [(model.p, model.r) for model in only_group(tmp_path).repeated_mlms()]
    assert sorted(shown) == sorted(Space().repeated_pairs()) and len(shown) == 14
    assert (0.15, 4) in shown and (0.387, 8) not in shown
