"""What the report says: the price of ExLM, claims, and the rule by which a difference counts."""

import math
from statistics import stdev

import pytest

from exlm.paper.comparisons import Difference, decide, weighted_sum
from exlm.paper.display import CLAIMS, Variant
from exlm.paper.groups import SeedMeans
from exlm.paper.report import report
from tests.paper.fake_runs import editing, finetuning, pretraining
from tests.paper.reports import only_group, read_csv, report_table


def test_the_report_begins_with_exlm_beside_the_mlm_of_equal_cost(tmp_path):
    for seed in range(3):
        exlm = pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=2.0 + seed / 20)
        mlm = pretraining(
            tmp_path, f"mlm-{seed}", objective="mlm", steps=190, seed=seed, joint=2.2 + seed / 20
        )
        finetuning(tmp_path, f"exlm-rte-{seed}", exlm, "rte", [0.60, 0.61 + seed / 100])
        finetuning(tmp_path, f"mlm-rte-{seed}", mlm, "rte", [0.70, 0.71 + seed / 100])
    report([str(tmp_path)], str(tmp_path / "out"))
    joint, task = read_csv(tmp_path / "out/tables/worth.csv")
    # both models have the same standard deviation over 3 seeds
    difference, margin = 0.2, 2.7764 * math.sqrt(0.05**2 * 2 / 3)  # 4 degrees of freedom
    assert joint["score"] == "Joint nll" and float(joint["ExLM better by"]) == pytest.approx(
        difference
    )
    assert joint["interval"] == f"{difference - margin:+.3f} to {difference + margin:+.3f}"
    assert [float(joint[name]) for name in ("ExLM", "Vanilla MLM++", "cost")] == pytest.approx(
        [2.05, 2.25, 2.0]
    )
    assert task["score"] == "RTE" and float(task["ExLM better by"]) == pytest.approx(-10.0)
    assert (joint["ahead"], task["ahead"]) == ("ExLM", "Vanilla MLM++")
    page = (tmp_path / "out" / "report.md").read_text()
    assert (
        0
        < page.index("Is ExLM worth its price?")
        < page.index("cost-curves.png")
        < page.index("Which claims show")
    )
    assert (tmp_path / "out" / "figures" / "cost-curves.png").is_file()


def test_one_seed_decides_nothing_about_the_price_of_exlm(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0)
    pretraining(tmp_path, "mlm", objective="mlm", steps=190, joint=2.5)
    (row,) = report_table(tmp_path, "worth")
    assert row["interval"] == "" and row["ahead"] == "one seed, not decided"


def test_without_an_mlm_of_equal_cost_the_report_does_not_compare_prices(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0)
    pretraining(tmp_path, "mlm", objective="mlm", joint=2.5)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert not (tmp_path / "out" / "tables" / "worth.csv").exists()


def test_claims_say_what_the_numbers_say(grid):
    rows = read_csv(grid / "out/tables/claims.csv")
    found = {row["claim"]: row for row in rows}
    # every claim has models that are there
    assert len(found) == len(rows) == len(CLAIMS)
    assert f"{len(rows)} claims are looked at" in (grid / "out" / "report.md").read_text()
    assert found["ExLM scores higher than the vanilla MLM"]["our runs"] == "shows"
    assert found["a sparse DAG costs"]["our runs"] == "within the spread of seeds"
    assert found["ExLM's entropy (marginal) is below that of MLM"]["our runs"] == "does not show"
    assert found["ExLM's entropy (per state) is below that of MLM"]["our runs"] == "shows"
    numbers = found["removing the transitions costs"]["numbers"]
    words = "+1 × 73.12 ExLM, k = 4, p = 15%; -1 × 71.50 ExLM w/o Transitions, k = 4, p = 15%"
    assert (
        numbers == f"+1.62 (standard error 0.28): {words} (QNLI, RTE, MRPC)"
    )  # s.d. of a seed: 0.4 / sqrt(2)


def test_claims_say_on_how_many_seeds_and_rows_they_stand(tmp_path):
    for seed in (0, 1):
        for name, scores in (("exlm", [0.6, 0.7, 0.8]), ("mlm", [0.5, 0.6])):
            run = pretraining(tmp_path, f"{name}-{seed}", seed=seed, objective=name)
            tuned = finetuning(tmp_path, f"{name}-rte-{seed}", run, "rte", scores)
            with editing(tuned / "results.json") as results:
                for result in results["runs"]:
                    result["counts"] = {"valid": {"rows": 277}}
    pretraining(tmp_path, "exlm-2", seed=2)
    [row] = report_table(tmp_path, "claims")
    assert (row["seeds"], row["rows"]) == ("2 × 3; 2 × 2", "RTE 277")
    assert (
        "other test rows is not in the standard error" in (tmp_path / "out/report.md").read_text()
    )


def test_without_tasks_only_equal_masks_are_compared(tmp_path):
    for p in (0.15, 0.387):
        for name in ("mlm", "exlm"):
            pretraining(tmp_path, f"{name}-{p}", p, objective=name)
    rows = {row["claim"]: row for row in report_table(tmp_path, "claims")}
    assert set(rows) == {
        f"ExLM scores higher than the vanilla MLM{end}" for end in ("", " at p = 38.7%")
    }
    assert all(row["numbers"].endswith("(Held-out accuracy)") for row in rows.values())
    assert all(row["our runs"] == "one seed, not decided" for row in rows.values())


def test_a_claim_is_said_once_if_its_terms_are_those_of_another(tmp_path):
    for name in ("mlm", "exlm"):
        pretraining(tmp_path, name, 0.387, objective=name)
    rows = report_table(tmp_path, "claims")
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
        50 * (math.exp(-0.1) + math.exp(-0.11)) / 2
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
    found = read_csv(grid / "out/tables/claims.csv")
    found = {
        row["claim"]: row for row in found if row["claim"].startswith("ExLM knows masks together")
    }
    assert len(found) == 2 and {row["our runs"] for row in found.values()} == {"shows"}
    words = found["ExLM knows masks together (its joint nll is below its own marginal nll)"][
        "numbers"
    ]
    error = stdev([0.10, 0.11]) / 2**0.5  # pooled over the two numbers, of which one does not vary
    terms = "+1 × 3.912 ExLM, k = 4, p = 15%; -1 × 3.807 ExLM, k = 4, p = 15%"
    assert words == f"+0.105 (standard error {error:.3f}): {terms} (Marginal nll and Joint nll)"
    pretraining(tmp_path, "mlm", objective="mlm", joint=math.log(50))
    for seed, joint in enumerate((3.8, 4.0, 4.2)):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=joint)
    rows = [row for row in report_table(tmp_path, "claims") if "masks together" in row["claim"]]
    assert [row["our runs"] for row in rows] == [
        "within the spread of seeds",
        "one seed, not decided",
    ]


@pytest.mark.parametrize(
    "ties,words",
    [
        ([4e-4, 4e-4], "does not show: both are equal, as the links tie no masks together"),
        ([4e-4], "does not show: both are equal, as the links tie no masks together"),
        ([0.0, 1.8e-3], "within the spread of seeds"),  # one run ties masks
        ([-3e-3, 3e-3], "within the spread of seeds"),
        ([5e-3], "one seed, not decided"),
    ],
)
def test_links_tie_nothing_if_they_do_so_in_every_run(tmp_path, ties, words):
    for seed, tie in enumerate(ties):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=math.log(50) - tie)
    pretraining(tmp_path, "mlm", objective="mlm")
    rows = {row["claim"]: row for row in report_table(tmp_path, "claims")}
    row = rows["ExLM knows masks together (its joint nll is below its own marginal nll)"]
    assert row["our runs"] == words
    if len(ties) > 1:
        assert "(standard error 0.00" in row["numbers"]


def test_numbers_within_runs_are_of_the_runs_that_have_both(tmp_path):
    for seed, tie in enumerate((0.10, 0.11, 5.0)):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=math.log(50) - tie)
    with editing(tmp_path / "exlm-2" / "result.json") as result:
        del result["evaluation"]["nll"]
    pretraining(tmp_path, "mlm", objective="mlm")
    rows = {row["claim"]: row for row in report_table(tmp_path, "claims")}
    row = rows["ExLM knows masks together (its joint nll is below its own marginal nll)"]
    assert row["seeds"] == "2 × 0; 2 × 0"
    assert "+1 × 3.912 ExLM" in row["numbers"] and "-1 × 3.807 ExLM" in row["numbers"]


def test_runs_without_joint_numbers_are_read_and_blank(tmp_path):
    pretraining(tmp_path, "mlm", objective="mlm", joint=3.9)
    for k in (2, 4):
        pretraining(tmp_path, f"exlm-{k}", num_states=k)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "masks together" not in (tmp_path / "out/tables/claims.csv").read_text()
    row = next(
        row for row in read_csv(tmp_path / "out/tables/sweep.csv") if row["model"] == "ExLM, k = 4"
    )
    assert row["Joint perplexity"] == "" and row["Perplexity"]
    assert "own mask, p" not in (tmp_path / "out/figures/sweep-curves.svg").read_text()


def test_every_number_of_states_has_a_curve(tmp_path):
    pretraining(tmp_path, "mlm", objective="mlm")
    states = (2, 3, 4, 5, 6, 8)
    for k in states:
        pretraining(tmp_path, f"exlm-{k}", num_states=k)
    report([str(tmp_path)], str(tmp_path / "out"))
    drawing = (tmp_path / "out/figures/sweep-curves.svg").read_text()
    assert all(f"k = {k}" in drawing for k in states)


@pytest.mark.parametrize("freedom,quantile", [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)])
def test_a_difference_counts_beyond_the_quantile_of_student(freedom, quantile):
    def verdict(difference):
        return decide(Difference(difference, 0.4, freedom, size=100.0), "yes", "no")

    above, below = 0.4 * quantile + 0.001, 0.4 * quantile - 0.001
    assert verdict(above) == "yes" and verdict(-above) == "no"
    assert verdict(below) == verdict(-below) == "within the spread of seeds"
    assert decide(Difference(1.0), "yes", "no") == "one seed, not decided"


@pytest.mark.parametrize("error", [0.0, 0.4])
@pytest.mark.parametrize("rounding", [-1e-14, 0.0, 1e-14])
def test_a_difference_of_rounding_alone_decides_nothing(error, rounding):
    margin = Difference(0.0, error, 2).margin
    for sign in (1, -1):
        difference = Difference(sign * (margin + rounding), error, 2, size=100.0)
        assert decide(difference, "yes", "no") == "within the spread of seeds"


def test_the_standard_error_is_pooled_and_has_the_degrees_of_freedom_of_all_cells(tmp_path):
    values = {"exlm": [0.60, 0.64, 0.62], "mlm": [0.60, 0.61]}
    for name, scores in values.items():
        for seed, score in enumerate(scores):
            model = pretraining(tmp_path, f"{name}-{seed}", objective=name, seed=seed)
            finetuning(tmp_path, f"t-{name}-{seed}", model, "rte", [score - 0.01, score + 0.01])
    pretraining(tmp_path, "ablated", rotary="1d")
    group = only_group(tmp_path)
    exlm, mlm = (Variant("exlm", 4, 0.15), Variant("mlm", 1, 0.15))

    def difference(weight, other, score):
        terms = [(weight, exlm, [score]), (-1, other, [score])]
        return weighted_sum(group.means, terms)

    pooled = (2 * 4.0 + 1 * 0.5) / 3  # variances of pre-training seeds, by their degrees of freedom
    assert difference(1, mlm, "rte").error == pytest.approx((pooled * (1 / 3 + 1 / 2)) ** 0.5)
    assert difference(2, mlm, "rte").error == pytest.approx((pooled * (4 / 3 + 1 / 2)) ** 0.5)
    assert difference(1, mlm, "rte").freedom == 3
    assert difference(1, mlm, "rte").size == pytest.approx(62 + 60.5)
    ablated = difference(1, Variant("exlm-1d", 4, 0.15), "evaluation/accuracy")
    assert ablated.error is ablated.margin is None


def test_differences_within_runs_are_of_runs_that_have_both_numbers():
    model = Variant("exlm", 2, 0.15)
    nlls = {"a": 1.0, "b": 2.0, "c": 6.0}
    numbers = {run: {"nll": [value]} for run, value in nlls.items()}
    for run in ("a", "b"):
        numbers[run]["joint_nll"] = [nlls[run]]
    means = SeedMeans({model: numbers})
    terms = [(1, model, ["nll"]), (-1, model, ["joint_nll"])]
    difference = weighted_sum(means, terms)
    assert (difference.value, difference.error, difference.freedom) == (0.0, 0.0, 1)
    apart = SeedMeans({model: {"a": {"nll": [1.0]}, "b": {"joint_nll": [1.0]}}})
    difference = weighted_sum(apart, terms)
    assert math.isnan(difference.value) and difference.error is None
