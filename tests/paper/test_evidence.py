"""docs/results: the rule of the plan, and that the numbers of pages are those of their runs."""

import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "results"))
import analysis  # noqa: E402  (it lies beside the results, not in the package)
import cost_ratios  # noqa: E402
import evidence  # noqa: E402
import pages  # noqa: E402
import table_1  # noqa: E402

import filling  # noqa: E402


@pytest.mark.parametrize(
    ("differences", "other_error", "ahead"),
    [
        ([0.02, 0.03, 0.025], 0.001, "ExLM"),
        ([-0.02, -0.03, -0.025], 0.001, "MLM"),
        ([-0.02, 0.001, -0.025], 0.001, "level"),  # one seed says otherwise
        ([0.01, 0.09, 0.02], 0.001, "level"),  # within twice the standard error over seeds
        ([0.02, 0.03, 0.025], 0.02, "level"),  # within twice the other standard error
        ([0.02, 0.03], 0.001, "too few seeds"),
        ([0.02], 0.001, "one seed"),
    ],
)
def test_a_model_is_ahead_if_all_seeds_agree_and_the_mean_is_clear(differences, other_error, ahead):
    assert evidence.verdict(differences, other_error) == ahead


def test_tasks_are_compared_in_standard_deviations_of_the_mlm_with_errors_turned_round():
    probes = [
        {"set": name, "model": f"models/pair{side}-s{seed}", "layers": layers, "valid": valid}
        | {"test": 1.0 + 0.1 * seed + (0.0 if side else better)}
        for name, better in (("bbbp", 0.1), ("esol", -0.2))
        for side in ("", "-mlm")
        for seed in (0, 1, 2)
        for layers, valid in ((3, 0.1), (4, 0.9))
    ]
    for record in probes:  # an error: lower is better, on valid too
        record["valid"] *= -1.0 if record["set"] == "esol" else 1.0
    tasks = evidence.compare_tasks("pair", probes)
    assert tasks.layer == 4
    expected = pd.Series({"bbbp": 1.0, "esol": 2.0})
    assert tasks.scaled.mean(axis=1).to_dict() == pytest.approx(expected.to_dict())


@pytest.mark.parametrize("page", ["docs/results/evidence.md", "README.md"])
def test_the_tables_of_the_pages_are_those_of_their_runs(page, tmp_path):
    tables = evidence.parts() if page.endswith("evidence.md") else {"found": evidence.short_table()}
    original = (ROOT / page).read_text()
    copy = tmp_path / "page.md"
    copy.write_text(original)
    pages.fill(copy, tables)
    assert copy.read_text() == original, "make them again: python docs/results/evidence.py"


@pytest.mark.parametrize(
    ("page", "program"),
    [
        ("filling.md", filling),
        ("table-1.md", table_1),
        ("analysis.md", analysis),
        ("../performance.md", cost_ratios),
    ],
    ids=["filling", "table-1", "analysis", "performance"],
)
def test_the_tables_of_the_pages_are_those_that_their_programs_make(page, program, tmp_path):
    original = (ROOT / "docs/results" / page).read_text()
    copy = tmp_path / "page.md"
    copy.write_text(original)
    pages.fill(copy, program.parts())
    assert copy.read_text() == original, f"make them again: python {program.__file__}"


PAGE = " ".join((ROOT / "docs" / "results" / "evidence.md").read_text().split())


def test_the_times_in_the_text_are_those_of_its_runs():
    records = {record["name"]: record for record in evidence.read("pairs.jsonl")}

    def beside_the_mlm(kind: str, measure: str) -> list[int]:
        """By how many percent the trainings of ExLM took longer, at least and at most."""
        exlms = [r for r in records.values() if "mlm" in r and evidence.kind_of(r["name"]) == kind]
        ratios = [r[measure] / records[r["mlm"]][measure] for r in exlms]
        return [round(100 * (ratio - 1)) for ratio in (min(ratios), max(ratios))]

    least, most = beside_the_mlm("short-k2", "cpu")
    assert f"ExLM still took {least} to {most}% longer" in PAGE
    for kind, text in (
        ("long-k2", "{} to {}% less time"),
        ("short-k4", "four states {} to {}% less"),
        ("text-k2", "of text {} to {}% less"),
    ):
        least, most = beside_the_mlm(kind, "seconds")
        assert text.format(-most, -least) in PAGE


def test_verdicts_with_exactly_so_many_masks_are_those_of_one_mask():
    pairs, differences = evidence.read("pairs.jsonl"), evidence.read("pairs-differences.jsonl")
    for kind in evidence.KINDS:
        of_masks = [
            evidence.compare(kind, f"{n} masks", pairs, differences) for n in evidence.MASKS
        ]
        assert len({comparison.verdict for comparison in of_masks}) == 1
