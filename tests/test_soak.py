"""A few trials of each quick test of `python -m tests.soak`, which breaks things on purpose."""

import pytest

from tests.soak import TESTS
from tests.soak.__main__ import main, one, read, report, run

QUICK = {
    "damaged checkpoint": range(0, 300, 12),
    "damaged corpus": range(0, 100, 3),
    "failing disk": range(0, 92, 3),
    "alignment": (0,),
    "resume every step": (23,),
    "fuzz smiles": (0,),
    "fuzz binary tables": (0,),
    "fuzz recipes": (0,),
}


@pytest.mark.parametrize("name", QUICK)
def test_what_is_broken_on_purpose_is_survived(name, tmp_path):
    [test] = [test for test in TESTS if test.name == name]
    for index in QUICK[name]:
        found = one(test, index, tmp_path)
        assert found["passed"], found


def test_trials_are_counted_and_not_repeated(tmp_path, capsys):
    [test] = [test for test in TESTS if test.name == "damaged checkpoint"]
    results = tmp_path / "build/results.jsonl"
    assert run([test], 0.01, results, tmp_path / "work")
    assert [record["trial"] for record in read(results)] == [0, 1, 2]
    assert "3 of 3" in report(results)
    capsys.readouterr()
    assert run([test], 0.01, results, tmp_path / "work") and not capsys.readouterr().out
    broken = type(test)("broken", "nothing", 1, lambda index, directory: 1 / 0)
    assert not run([broken], 1.0, results, tmp_path / "work")
    assert "ZeroDivisionError" in read(results)[-1]["error"] and "0 of 1" in report(results)


def test_the_command_knows_its_tests(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["soak", "damaged corpus", "--share", "0.01"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert len(read(tmp_path / "build/soak.jsonl")) == 1
