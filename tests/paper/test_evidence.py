"""The rules of docs/results/evidence-plan.md: who is called ahead, and what an MLM of equal cost
scores."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "results"))
import evidence  # noqa: E402  (it lies beside the results, not in the package)


def runs(
    kind: str, losses: list[float], cpu: float = 100.0, curve: list[tuple[int, float]] | None = None
) -> list[dict]:
    """A run for every seed, with the same loss for both scores and both shares of masks."""
    return [
        {
            "name": f"{kind}-s{seed}",
            "seed": seed,
            "cpu": cpu,
            "evaluation": {ratio: {"joint_nll": loss, "nll": loss} for ratio in ("0.15", "0.387")},
            "curve": [{"step": step, "joint_nll": value} for step, value in curve or [(100, loss)]],
        }
        for seed, loss in enumerate(losses)
    ]


@pytest.mark.parametrize(
    ("exlm", "mlm", "verdict"),
    [
        ([0.30, 0.31, 0.32], [0.33, 0.34, 0.33], "ExLM"),
        ([0.33, 0.34, 0.33], [0.30, 0.31, 0.32], "MLM"),
        ([0.30, 0.31, 0.34], [0.33, 0.34, 0.33], "level"),  # one seed says otherwise
        ([0.325, 0.335, 0.325], [0.33, 0.34, 0.33], "level"),  # less than 0.01 nats
        ([0.10, 0.10], [0.33, 0.34], "too few seeds"),
    ],
)
def test_a_model_is_ahead_if_all_three_seeds_agree_and_the_mean_difference_is_clear(
    exlm, mlm, verdict
):
    records = runs("late-k2", exlm) + runs("mlm-5750", mlm)
    found = evidence.pair(records, "late-k2", "mlm-5750", "joint_nll")
    assert found.verdict == verdict
    assert np.allclose(found.differences, np.subtract(mlm, exlm))


def test_seeds_without_a_partner_are_left_out():
    records = runs("late-k2", [0.3, 0.3, 0.3]) + runs("mlm-5750", [0.4])
    assert len(evidence.pair(records, "late-k2", "mlm-5750", "joint_nll").differences) == 1
    assert evidence.pair(records, "all-k2", "mlm-5850", "joint_nll") is None


@pytest.mark.parametrize(("seconds", "expected"), [(50.0, 0.5), (99.0, 0.4), (130.0, 0.4)])
def test_an_mlm_that_took_longer_is_read_off_its_curve_at_the_time_of_exlm(seconds, expected):
    """Its loss falls from 0.6 to 0.5 in the first half of its updates and to 0.4 in the second."""
    mlm = runs("mlm-5750", [0.4], 100.0, [(1, 0.6), (50, 0.5), (100, 0.4)])
    found = evidence.pair(
        [*runs("late-k2", [0.3], seconds), *mlm], "late-k2", "mlm-5750", "joint_nll"
    )
    assert found.mlm == pytest.approx([expected])


def probes(score) -> list[dict]:
    """Linear models of every kind of Repeated MLM: on two sets, one of them with an error as
    score."""
    return [
        {
            "set": name,
            "model": f"models/{kind}-s{seed}",
            "layers": 2,
            "valid": 0.5,
            "test": sign * score(*cell, seed),
        }
        for name, sign in (("bbbp", 1.0), ("esol", -1.0))
        for kind, cell in evidence.REPEATED.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("score", "claim"),
    [
        (lambda masks, copies, seed: -(masks**copies), "confirmed"),
        (lambda masks, copies, seed: -masks, "refuted"),
        (lambda masks, copies, seed: -(masks**copies) if seed else -masks, "not decided"),
    ],
)
def test_what_linear_models_say_of_corruption_and_unreal_tokens(score, claim):
    assert evidence.claim(evidence.repeated(probes(score))) == claim


def test_a_choice_is_the_one_with_the_best_mean_rank_of_the_mlm_on_valid():
    """Higher ROC-AUC and lower RMSE are better; a set without every choice does not count."""
    valid = {
        ("bbbp", 3): 0.9,
        ("bbbp", 4): 0.8,
        ("esol", 3): 1.0,
        ("esol", 4): 0.9,
        ("bace", 3): 0.7,
        ("bace", 4): 0.9,
    }
    cells = [
        {"set": name, "layers": layers, "valid": value} for (name, layers), value in valid.items()
    ]
    cells.append({"set": "sider", "layers": 3, "valid": 0.9})
    records = [{**cell, "model": "models/mlm-s0", "test": 0.0} for cell in cells]
    assert evidence.chosen_with(evidence.table_of(records, "mlm")) == "4 layers"


def test_downstream_differences_are_in_sds_of_the_mlm_and_positive_where_exlm_is_better():
    tests = {"mlm": [0.70, 0.80, 0.90], "exlm": [0.80, 0.90, 1.00]}
    records = [
        {
            "set": name,
            "model": f"models/{kind}-s{seed}",
            "layers": 4,
            "valid": 0.5,
            "test": sign * value,
        }
        for kind, values in tests.items()
        for seed, value in enumerate(values)
        for name, sign in (("bace", 1.0), ("freesolv", -1.0))
    ]
    found = evidence.downstream(records, "exlm", "mlm", "4 layers")
    assert found.mean == pytest.approx(1.0) and found.wins == 2 and found.verdict == "ExLM"
    assert np.allclose(found.table.filter(like="in s.d."), 1.0)


def test_downstream_has_no_verdict_with_fewer_than_three_seeds():
    scores = {"mlm": (0.70, 0.75), "exlm": (0.80, 0.90)}
    records = [
        {"set": "bace", "model": f"models/{kind}-s{seed}", "layers": 4, "valid": 0.5, "test": value}
        for kind, values in scores.items()
        for seed, value in enumerate(values)
    ]
    for seeds in (1, 2):
        part = [record for record in records if int(record["model"][-1]) < seeds]
        found = evidence.downstream(part, "exlm", "mlm", "4 layers")
        assert (found.seeds, found.wins, found.verdict) == (seeds, 1, "too few seeds")
