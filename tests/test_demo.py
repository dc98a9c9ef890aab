"""The main job end to end, as short as it can be."""

import pandas as pd
import pytest
from examples import demo as module


def test_the_demo_compares_both_models_and_says_where_everything_is(tmp_path, capsys, monkeypatch):
    pytest.importorskip("chemicals")
    for table in ("molecules", "melting_points"):
        whole = getattr(module, table)
        monkeypatch.setattr(module, table, lambda count, whole=whole: whole(count // 5))
    module.demo(str(tmp_path / "out"), steps=4, epochs=1)
    text = capsys.readouterr().out
    table = (tmp_path / "out/results.md").read_text()
    assert table in text
    assert all(
        f"| {name} " in table for name in ("ExLM (k = 2)", "MLM, equal time", "molecules-5M")
    )
    # the shipped model fills the acid of aspirin
    assert "CC(=O)Oc1ccccc1C(=O)O" in text.split("and by molecules-5M")[1].split("similar")[0]
    assert (tmp_path / "out/training.png").stat().st_size > 10_000
    predictions = pd.read_csv(tmp_path / "out/melting-points/seed-0/predictions.csv")
    is_test = predictions["exlm split"] == "test"
    assert is_test.sum() > 50
    assert predictions.loc[is_test, "predicted melting_point"].notna().all()
