"""The main job end to end, as short as it can be."""

import pandas as pd
import pytest
from examples.demo import demo


def test_the_demo_compares_both_models_and_says_where_everything_is(tmp_path, capsys):
    pytest.importorskip("chemicals")
    demo(str(tmp_path / "out"), steps=4, epochs=1)
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
    assert is_test.sum() > 200
    assert predictions.loc[is_test, "predicted melting_point"].notna().all()
