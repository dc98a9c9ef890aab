"""The main job end to end, as short as it can be."""

import pandas as pd
import pytest
from examples.demo import demo


def test_the_demo_compares_both_models_and_says_where_everything_is(tmp_path, capsys):
    pytest.importorskip("chemicals")
    demo(str(tmp_path / "out"), steps=4, epochs=1, seeds=[0])
    text = capsys.readouterr().out
    table = (tmp_path / "out/results.md").read_text()
    assert table in text and all(
        f"| {name} " in table for name in ("ExLM (k = 4)", "MLM, same updates", "MLM, same time")
    )
    # it says where ExLM stands, either way
    assert "joint perplexity" in table and "lower than" in text
    assert (tmp_path / "out/training.png").stat().st_size > 10_000
    predictions = pd.read_csv(tmp_path / "out/melting-points-exlm/seed-0/predictions.csv")
    assert (predictions["exlm split"] == "test").sum() > 200
    assert (
        predictions.loc[predictions["exlm split"] == "test", "predicted melting_point"]
        .notna()
        .all()
    )
